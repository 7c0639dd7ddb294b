"""Classification: which heuristics the top neurons implement, and which matches can be trusted (Section 4.1, Appendices E, F).

1. Match every top neuron with every heuristic of its operator: a score of at least 0.6 is a (raw) match.
2. Calibrate: p against the permutation null, then the false-discovery rate over the operator's neurons. Matches with a rate
   of at most 0.05 are calibrated.
3. For calibrated matches about the result or both operands: the score that remains if activations depend on one operand only.
4. Coverage: the share of each activation map's variance that the neuron's heuristics explain together.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result, of_neuron, summary_table
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps, as_slice
from arithscope.heuristics import calibration
from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.heuristics.kinds import BOTH, RESULT, parse
from arithscope.heuristics.neuron_matching import NeuronBatch, calibrate, match_neurons, tries, with_p
from arithscope.heuristics.overlaps import CPU_ELEMENTS, GPU_ELEMENTS
from arithscope.heuristics.variance import Coverage
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS
from arithscope.settings import Settings
from arithscope.stats.intervals import Floats, Mean, unit_mean
from arithscope.utils.executor import split_evenly
from arithscope.utils.progress import Advance
from arithscope.utils.threads import thread_pool

RAW, CALIBRATED = CRITERIA = ("raw", "calibrated")
ANY = "any"  # all kinds of heuristics together
ALL_LAYERS = -1
NEURONS_IN_UNIT = 256
VERIFIED_NEURONS = 32  # neurons of each operator that `verify` matches again
ONE_OPERAND = ["op1_only", "op2_only", "two_operands"]
_NEURON = ["operator", "layer", "neuron"]
_COVERAGE = [f"coverage_{criterion}" for criterion in CRITERIA]
_EXAMINED = ["row", "heuristic", "on", "direct", "sign", "size", "overlap", "calibrated"]

Vocabulary = tuple[str, int, int, bool]  # arguments of `catalogue`: operator, max_operand, limit, both_operands
Columns = dict[str, Any]  # of a table: arrays, or lists of texts
_Tables = tuple[pd.DataFrame, pd.DataFrame]

_MATCH = (
    *schema.NEURON_KEY,
    schema.text("heuristic", "the heuristic, as in `op1 in [0, 10]`", key=True),
    schema.text("kind", "its kind: `range`, `modulo`, `pattern`, `identical` or `multi-result`"),
    schema.text("on", "what it is about: `op1`, `op2`, `op1, op2` or `result`"),
    schema.boolean("direct", "whether it is about the result: activations are weighted by the value vector's logits"),
    schema.number("sign", "1 if the neuron fires on its prompts; −1 if the negative activation matches"),
    schema.number("size", "number k of legal prompts for which it holds"),
    schema.number("overlap", "how many of them are among the neuron's top k"),
    schema.number("neg_log10_p_hypergeom", "−log₁₀ of the hypergeometric tail probability of the overlap"),
    schema.number("expected", "score expected from the value vector alone; for operand heuristics, chance"),
    schema.number("neg_log10_p", "−log₁₀ of the tail probability of the overlap, given the expected score"),
    schema.number("score", "overlap / k; a match if at least 0.6"),
    schema.number("chance", "k / number of legal prompts"),
    schema.number("corrected", "(score − chance) / (1 − chance)"),
    schema.number("p", "p against the permutation null, over all heuristics tried"),
    schema.number("fdr", "false-discovery rate among the operator's neurons"),
    schema.boolean("calibrated", "score ≥ 0.6 and fdr ≤ 0.05"),
)


@dataclass(frozen=True, repr=False)
class Classification(Result):
    """Matches of top neurons with heuristics, and shares of neurons that have one."""

    matches: pd.DataFrame = schema.table(
        "Every neuron and heuristic with a score of at least 0.6.",
        *_MATCH,
        schema.number("op1_only", "mean score left if activations depend on op1 only (calibrated, two-operand rules)"),
        schema.number("op2_only", "mean score left if activations depend on op2 only"),
        schema.number("two_operands", "1 if the score is clearly larger than both, 0 if not, NaN if not tested"),
    )
    best: pd.DataFrame = schema.table(
        "For each neuron and kind of heuristic, the heuristic with the largest `neg_log10_p`, match or not.", *_MATCH
    )
    neurons: pd.DataFrame = schema.table(
        "All top neurons, classified or not.",
        *schema.NEURON_KEY,
        schema.number("p", "smallest p among its best heuristics"),
        schema.number("fdr", "false-discovery rate among the operator's neurons"),
        schema.number("coverage_raw", "share of the map's variance that all its matches explain together"),
        schema.number("coverage_calibrated", "the same for calibrated matches"),
        schema.boolean("raw", "whether it has a match"),
        schema.boolean("calibrated", "whether it has a calibrated match"),
        schema.boolean("two_operands", "whether it has a match that clearly needs both operands"),
    )
    shares: pd.DataFrame = schema.table(
        "Share of top neurons with at least one match.",
        schema.OPERATOR,
        schema.integer("layer", "layer, from 0; −1 for all layers", key=True),
        schema.text("kind", "kind of heuristic, or `any`", key=True),
        schema.text("on", "what the heuristic is about, or `any`", key=True),
        schema.CRITERION,
        *schema.MEAN_COLUMNS,
    )
    table: pd.DataFrame = schema.table("Shares of classified neurons and mean coverage, by operator.")

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.neurons.operator.unique()]

    def matched(self, operator: str | None, criterion: str) -> pd.DataFrame:
        """Matches of an operator, or of all: every match (`raw`) or the calibrated ones."""
        matches = self.matches if operator is None else self.matches[self.matches.operator == operator]
        return matches if criterion == RAW else matches[matches.calibrated]

    def of_neuron(self, operator: str, layer: int, neuron: int) -> pd.DataFrame:
        """Matches of a neuron, by descending `neg_log10_p`."""
        matches = of_neuron(self.matches, operator, layer, neuron)
        return matches.sort_values("neg_log10_p", ascending=False, kind="stable")


def _memory(model: Model, settings: Settings) -> int:
    """Sort keys, orders and counts. Activation maps do not count: they are memory-mapped."""
    if model.device.type == "cuda":
        return 80 * GPU_ELEMENTS
    return 2**29 + 40 * CPU_ELEMENTS * torch.get_num_threads()


@stage(needs=(ActivationMaps,), reads=("both_operands", "sizes", "seed"), memory=_memory, paper="4.1, App. E, F")
def classify(ctx: Context) -> Classification:
    """Match every top neuron with every heuristic, and calibrate the matches."""
    top = ctx.results[ActivationMaps].neurons[_NEURON].reset_index(drop=True)
    parts = [part for operator in ctx.results[ActivationMaps].operators for part in _parts(ctx, operator)]
    with ctx.progress.task("classify", 2 * len(top)) as advance:
        found = _match(ctx, top, parts, advance)
        calibrated = [calibrate(_NEURON, *(x[x.operator == o] for x in found)) for o in top.operator.unique()]
        matches, best, rates = (pd.concat(x, ignore_index=True) for x in zip(*calibrated, strict=True))
        matches, coverage = _examine(ctx, top, matches, parts, advance)
    row = _rows(top, matches)
    matched = {RAW: row, CALIBRATED: row[matches.calibrated], "two_operands": row[matches.two_operands == 1]}
    neurons = top.merge(rates, how="left", on=_NEURON).merge(coverage, how="left", on=_NEURON)
    neurons = neurons.assign(**{name: top.index.isin(rows) for name, rows in matched.items()})
    return Classification(matches, best, neurons, _shares(neurons, matches), _summary(neurons))


@dataclass(frozen=True, eq=False)
class _Part:
    """Neurons of a unit of work, with their rows among the top neurons."""

    vocabulary: Vocabulary
    rows: NDArray[np.int64]
    maps: tuple[NDArray[np.float16], NDArray[np.float32]]  # activations and logits


def _parts(ctx: Context, operator: str) -> Iterator[_Part]:
    maps = ctx.results[ActivationMaps]
    every = maps.rows(operator)
    rows = every.start + ctx.sample(every.stop - every.start, VERIFIED_NEURONS, "classify", operator)
    for chunk in split_evenly(len(rows), NEURONS_IN_UNIT):
        at = as_slice(rows[chunk])
        vocabulary = operator, maps.max_operand, maps.limit, ctx.settings.both_operands
        yield _Part(vocabulary, rows[chunk], (np.asarray(maps.activations[at]), np.asarray(maps.logits[at])))


def _match(ctx: Context, top: pd.DataFrame, parts: list[_Part], advance: Advance) -> _Tables:
    """Matches, and the best heuristics of each neuron, with p but without false-discovery rates."""
    seed, draws = ctx.settings.seed, ctx.settings.sizes.permutations
    names = np.array([neuron_name(*x) for x in zip(top.layer, top.neuron, strict=True)], dtype=object)
    units = [(x.vocabulary, draws, seed, names[x.rows].tolist(), *x.maps) for x in parts]
    found = ctx.map(match_unit, units, advance)
    vocabularies = list(dict.fromkeys(part.vocabulary for part in parts))
    nulls = ctx.map(indirect_null_unit, [(vocabulary, seed) for vocabulary in vocabularies], advance)
    tables: list[list[pd.DataFrame]] = []
    sampled_null: dict[str, int] = {}  # number of neurons, where not all are matched
    for vocabulary, (null_of_indirect, *tried) in zip(vocabularies, nulls, strict=True):
        own = [(part.rows, x) for part, x in zip(parts, found, strict=True) if part.vocabulary == vocabulary]
        null_of_direct = np.concatenate([null for _, (_, _, null) in own])
        if len(null_of_direct) < (top.operator == vocabulary[0]).sum():
            sampled_null[vocabulary[0]] = len(null_of_direct)
        pairs = []  # matches, then best heuristics
        for i in (0, 1):
            frames = [_frame({**x[i], "row": rows[x[i]["row"]]}) for rows, x in own]
            null = null_of_indirect, null_of_direct.ravel()
            pairs.append(with_p(pd.concat(frames, ignore_index=True), null, (tried[0], tried[1])))
        tables.append(pairs)
    joined = (pd.concat(each, ignore_index=True) for each in zip(*tables, strict=True))
    # Replace `row` by operator, layer and neuron.
    matches, best = (top.iloc[x.row].reset_index(drop=True).join(x.drop(columns="row")) for x in joined)
    matches = ctx.confirmed("matches", matches, sampled_null=sampled_null)
    return matches, ctx.confirmed("best", best, sampled_null=sampled_null)


def _examine(ctx: Context, top: pd.DataFrame, matches: pd.DataFrame, parts: list[_Part], advance: Advance) -> _Tables:
    """Matches with one-operand scores, and the coverage of every neuron."""
    row, units, chosen = _rows(top, matches), [], []
    for part in parts:
        chosen.append(np.flatnonzero(np.isin(row, part.rows)))
        own = matches.iloc[chosen[-1]].assign(row=np.searchsorted(part.rows, row[chosen[-1]]))
        units.append((part.vocabulary, ctx.settings.seed, columns_of(own[_EXAMINED]), *part.maps))
    one_operand, coverage = (np.concatenate(x) for x in zip(*ctx.map(examine_unit, units, advance), strict=True))
    keys = matches.iloc[np.concatenate(chosen)][[*_NEURON, "heuristic"]]
    scored = ctx.confirmed("matches", keys.assign(**dict(zip(ONE_OPERAND, one_operand.T, strict=True))))
    neurons = top.iloc[np.concatenate([part.rows for part in parts])]
    covered = ctx.confirmed("neurons", neurons.assign(**dict(zip(_COVERAGE, coverage.T, strict=True))))
    matches = matches.assign(**{name: scored[name].to_numpy() for name in ONE_OPERAND})
    return matches, covered[[*_NEURON, *_COVERAGE]]


def _rows(top: pd.DataFrame, table: pd.DataFrame) -> NDArray[np.int64]:
    """For each row of a table, the row of its neuron in `top`."""
    places, wanted = (pd.MultiIndex.from_frame(each[_NEURON]) for each in (top, table))
    return places.get_indexer(wanted)


@lru_cache(maxsize=len(OPERATORS))
def _catalogue(vocabulary: Vocabulary, device: torch.device) -> Catalogue:
    """Cached, because several units of an operator need it."""
    return catalogue(*vocabulary, device)


@lru_cache(maxsize=len(OPERATORS))
def _coverage_and_permutations(vocabulary: Vocabulary, seed: int, device: torch.device) -> tuple[Coverage, Tensor]:
    sets = _catalogue(vocabulary, device)
    return Coverage(sets), calibration.one_operand_permutations(sets, seed)


def match_unit(
    model: Model, vocabulary: Vocabulary, draws: int, seed: int, names: list[str], *maps: NDArray[Any], advance: Advance
) -> tuple[Columns, Columns, Floats]:
    """Unit of work: match some neurons with all heuristics. Returns matches, best heuristics and the direct null."""
    batch, sets = NeuronBatch(*maps), _catalogue(vocabulary, model.device)
    matches, best, null = match_neurons(batch, sets, draws, seed, names, advance)
    return columns_of(matches), columns_of(best), null


def indirect_null_unit(model: Model, vocabulary: Vocabulary, seed: int, *, advance: Advance) -> tuple[Floats, int, int]:
    """Unit of work: permutation null of an operator's indirect heuristics, and numbers of indirect and direct heuristics."""
    sets = _catalogue(vocabulary, model.device)
    return calibration.indirect_null(sets, seed), *tries(sets)


def columns_of(table: pd.DataFrame) -> Columns:
    """A table as arrays and lists, which units of work can take and return."""
    return {str(n): x.to_numpy() if x.dtype.kind in "biuf" else [str(v) for v in x] for n, x in table.items()}


def _frame(columns: Columns) -> pd.DataFrame:
    texts = {name: np.array(x, dtype=object) for name, x in columns.items() if isinstance(x, list)}
    return pd.DataFrame({**columns, **texts})


def examine_unit(
    model: Model, vocabulary: Vocabulary, seed: int, columns: Columns, *maps: NDArray[Any], advance: Advance
) -> tuple[NDArray[np.float32], Floats]:
    """Unit of work: one-operand scores [matches, ONE_OPERAND] of some neurons' matches, and coverage [neurons, criteria]."""
    sets, neurons, matches = _catalogue(vocabulary, model.device), NeuronBatch(*maps), _frame(columns)
    cover, permuted = _coverage_and_permutations(vocabulary, seed, model.device)
    heuristics = [parse(h) for h in matches.heuristic]
    calibrated, direct, sign = (matches[name].to_numpy() for name in ("calibrated", "direct", "sign"))
    tested = calibrated & matches.on.isin([RESULT, BOTH]).to_numpy()
    size, overlap = (torch.tensor(matches[name].to_numpy()) for name in ("size", "overlap"))
    one_operand = np.full((len(matches), len(ONE_OPERAND)), np.nan, dtype=np.float32)
    coverage = np.empty((len(neurons), len(CRITERIA)))
    by_row = {int(str(row)): np.asarray(places) for row, places in matches.groupby("row").indices.items()}
    activations, on_answers = neurons.on_prompts(range(len(neurons)), sets)
    on_cpu = activations.cpu().numpy()

    def examine(row: int) -> None:
        own = by_row.get(row, np.empty(0, dtype=np.int64))  # its matches
        every = np.ones(len(own), dtype=np.bool_)
        coverage[row] = cover(on_cpu[row], [heuristics[i] for i in own], every, calibrated[own])
        for is_direct, own_sign in {(bool(direct[i]), int(sign[i])) for i in own[tested[own]]}:
            some = own[tested[own] & (direct[own] == is_direct) & (sign[own] == own_sign)]
            weights = on_answers[row] if is_direct else torch.full_like(on_answers[row], own_sign)
            rules, largest = [heuristics[i] for i in some], int(size[some].max())
            overlaps = calibration.one_operand_overlaps(activations[row], weights, rules, largest, sets, permuted).cpu()
            one_operand[some, 1::-1] = (overlaps / size[some]).T.numpy()  # op2 alone comes first
            one_operand[some, 2] = calibration.needs_both_operands(overlap[some], size[some], overlaps).numpy()
        advance(1)

    with thread_pool() as pool:
        list(pool.map(examine, range(len(neurons))))
    return one_operand, coverage


def _shares(neurons: pd.DataFrame, matches: pd.DataFrame) -> pd.DataFrame:
    """Share of neurons with at least one match, by operator, layer, kind of heuristic and criterion."""
    kinds = [(ANY, ANY), *sorted(set(zip(matches.kind, matches.on, strict=True)))]
    rows = []
    for operator, own in neurons.groupby("operator", sort=False):
        found, layers = matches[matches.operator == operator], own.layer.to_numpy()
        place, has_match = _rows(own, found), {}
        for kind, on in kinds:
            of_kind = ((found.kind == kind) & (found.on == on)).to_numpy() | (kind == ANY)
            for criterion, chosen in ((RAW, of_kind), (CALIBRATED, of_kind & found.calibrated.to_numpy())):
                has_match[kind, on, criterion] = np.isin(np.arange(len(own)), place[chosen])
        for layer in (ALL_LAYERS, *sorted(own.layer.unique())):
            here = (layers == layer) | (layer == ALL_LAYERS)
            for (kind, on, criterion), matched in has_match.items():
                key = {"operator": operator, "layer": layer, "kind": kind, "on": on, "criterion": criterion}
                rows.append({**key, **asdict(unit_mean(matched[here]))})
    return pd.DataFrame(rows)


def _summary(neurons: pd.DataFrame) -> pd.DataFrame:
    shares = {f"{criterion}_share": criterion for criterion in CRITERIA}
    columns = {**shares, **{name: name for name in _COVERAGE}, "two_operand_share": "two_operands"}
    measured: dict[str, dict[str, Mean]] = {}
    for operator, rows in neurons.groupby("operator", sort=False):
        measured[str(operator)] = {name: unit_mean(rows[x]) for name, x in columns.items()}
    return summary_table(measured)
