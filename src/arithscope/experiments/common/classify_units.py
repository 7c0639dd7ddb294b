"""Units of work of the classification: matching neurons, the null of indirect heuristics, and examining matches."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics import calibration
from arithscope.heuristics.catalogue import Catalogue, stratum_catalogue
from arithscope.heuristics.kinds import parse
from arithscope.heuristics.naming import Naming
from arithscope.heuristics.neuron_matching import NeuronBatch, match_neurons, tries
from arithscope.heuristics.rule import ANSWER, BOTH, RESULT
from arithscope.heuristics.variance import Coverage
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Stratum
from arithscope.stats.intervals import Floats
from arithscope.utils.progress import Advance
from arithscope.utils.threads import thread_pool

ONE_OPERAND = ["op1_only", "op2_only", "two_operands"]
EXAMINED = ["row", "heuristic", "on", "direct", "sign", "size", "overlap", "neg_log10_p", "calibrated"]  # of matches

Vocabulary = tuple[str, Stratum, bool]  # arguments of `stratum_catalogue`: operator, stratum, both_operands
Columns = dict[str, Any]  # of a table: arrays, or lists of texts


class _Examiner(NamedTuple):
    """What the neurons of an operator are examined with."""

    coverage: Coverage
    permutations: Tensor
    naming: Naming


@lru_cache(maxsize=len(OPERATORS))
def _catalogue(vocabulary: Vocabulary, device: torch.device) -> Catalogue:
    """Cached, because several units of an operator need it."""
    return stratum_catalogue(*vocabulary, device)


@lru_cache(maxsize=len(OPERATORS))
def _examiner(vocabulary: Vocabulary, seed: int, device: torch.device) -> _Examiner:
    sets = _catalogue(vocabulary, device)
    return _Examiner(Coverage(sets), calibration.one_operand_permutations(sets, seed), Naming(sets))


def match_unit(
    model: Model, vocabulary: Vocabulary, draws: int, seed: int, names: list[str], *maps: Any, advance: Advance
) -> tuple[Columns, Columns, Floats, Floats, Floats]:
    """Unit of work: match some neurons with all heuristics. Returns the parts of `MatchedPairs`."""
    activations, logits = maps
    batch, sets = NeuronBatch(activations, logits, model.architecture.gated), _catalogue(vocabulary, model.device)
    found = match_neurons(batch, sets, draws, seed, names, advance)
    return columns_of(found.matches), columns_of(found.best), found.strongest, found.best_score, found.null


def indirect_null_unit(model: Model, vocabulary: Vocabulary, seed: int, *, advance: Advance) -> tuple[Floats, int, int]:
    """Unit of work: permutation null of an operator's indirect heuristics, and numbers of indirect and direct heuristics."""
    sets, gated = _catalogue(vocabulary, model.device), model.architecture.gated
    return calibration.indirect_null(sets, seed, gated), *tries(sets, gated)


def columns_of(table: pd.DataFrame) -> Columns:
    """A table as arrays and lists, which units of work can take and return."""
    return {str(n): x.to_numpy() if x.dtype.kind in "biuf" else [str(v) for v in x] for n, x in table.items()}


def frame_of(columns: Columns) -> pd.DataFrame:
    """A table from arrays and lists."""
    texts = {name: np.array(x, dtype=object) for name, x in columns.items() if isinstance(x, list)}
    return pd.DataFrame({**columns, **texts})


def examine_unit(
    model: Model, vocabulary: Vocabulary, seed: int, columns: Columns, *maps: Any, advance: Advance
) -> tuple[NDArray[np.float32], Floats, list[dict[str, Any]]]:
    """Unit of work: one-operand scores [matches, ONE_OPERAND] of some neurons' matches, their coverage [neurons, 2] by raw and
    by calibrated matches, and a row for the name of each neuron that has a calibrated match."""
    sets, neurons, matches = _catalogue(vocabulary, model.device), NeuronBatch(*maps), frame_of(columns)
    examiner = _examiner(vocabulary, seed, model.device)
    heuristics = [parse(h) for h in matches.heuristic]
    calibrated, direct, sign = (matches[name].to_numpy() for name in ("calibrated", "direct", "sign"))
    tested = calibrated & matches.on.isin([RESULT, ANSWER, BOTH]).to_numpy()
    size, overlap = (torch.tensor(matches[name].to_numpy()) for name in ("size", "overlap"))
    statistic = matches.neg_log10_p.to_numpy()
    one_operand = np.full((len(matches), len(ONE_OPERAND)), np.nan, dtype=np.float32)
    coverage = np.empty((len(neurons), 2))
    by_row = {int(str(row)): np.asarray(places) for row, places in matches.groupby("row").indices.items()}
    activations, on_answers = neurons.on_prompts(range(len(neurons)), sets)
    on_cpu = activations.cpu().numpy()

    def examine(row: int) -> dict[str, Any] | None:
        own = by_row.get(row, np.empty(0, dtype=np.int64))  # its matches
        coverage[row] = examiner.coverage(on_cpu[row], [heuristics[i] for i in own], sign[own] == 1, calibrated[own])
        for is_direct, own_sign in {(bool(direct[i]), int(sign[i])) for i in own[tested[own]]}:
            some = own[tested[own] & (direct[own] == is_direct) & (sign[own] == own_sign)]
            weights = on_answers[row] if is_direct else torch.full_like(on_answers[row], own_sign)
            rules, largest = [heuristics[i] for i in some], int(size[some].max())
            permuted = examiner.permutations
            overlaps = calibration.one_operand_overlaps(activations[row], weights, rules, largest, sets, permuted).cpu()
            one_operand[some, 1::-1] = (overlaps / size[some]).T.numpy()  # op2 alone comes first
            one_operand[some, 2] = calibration.needs_both_operands(overlap[some], size[some], overlaps).numpy()
        named = None
        if calibrated[own].any():
            ranked = own[calibrated[own]]
            ranked = ranked[np.argsort(-statistic[ranked], kind="stable")]
            best = ranked[0]
            same = ranked[(direct[ranked] == direct[best]) & (sign[ranked] == sign[best])]
            found = examiner.naming.name(
                neurons.activations[row], on_answers[row].cpu().numpy(), int(sign[best]), [heuristics[i] for i in same]
            )
            rule, aliases = found.rule, [str(alias) for alias in found.aliases]
            text = {"heuristic": str(rule), "kind": rule.kind, "on": rule.on, "best_match": str(heuristics[best])}
            named = {"row": row, **text, "sign": int(sign[best]), "fit": found.fit, "aliases": aliases}
        advance(1)
        return named

    with thread_pool() as pool:
        names = list(pool.map(examine, range(len(neurons))))
    return one_operand, coverage, [name for name in names if name is not None]
