"""Heuristics: some neurons are matched again, and all that follows from matches is put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.classify import (
    CRITERIA,
    Classification,
    Vocabulary,
    columns_of,
    looked_closer,
    matched,
    null_and_tries,
    shares,
    summary_table,
)
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.heuristics.calibration import CLASSES, LEVEL, chance_of, false_discovery_rate
from arithscope.heuristics.matching import is_match
from arithscope.verify.compare import EXACT, Noise, Tally
from arithscope.verify.inputs import Inputs, some_of

NEURONS = 32  # of each operator
NEURON = ["operator", "layer", "neuron"]
# Overlaps are counts of prompts, so that they are the same; what is computed from them is, but for the last digits of
# logarithms on another device.
COUNTED = Noise("of logarithms", 1e-5, 1e-6)
STANDARD_ERRORS = 5.0  # by which a p that is counted among some neurons' permutations may be off


def check_classify(inputs: Inputs, stored: Classification, tally: Tally) -> None:
    s, patterns = inputs.settings, inputs["patterns"]
    tally.table("neurons", stored.neurons[NEURON], patterns.neurons[NEURON])
    total = 0
    for operator in patterns.operators:
        rows = patterns.rows(operator)
        some = some_of(inputs.chooser("classify", operator), rows.stop - rows.start, NEURONS)
        words = operator, patterns.max_operand, patterns.limit, s.both_operands
        null = _check_matches(inputs, stored, tally, words, patterns, some)
        _check_calibration(inputs, stored, tally, words, null, whole=len(some) == rows.stop - rows.start)
        _check_closer(inputs, stored, tally, words, patterns, some)
        total += len(some)
    tally.table("shares", stored.shares, shares(stored.neurons, stored.matches, s.seed))
    tally.table("table", stored.table, summary_table(stored.neurons, s.seed))
    tally.did(
        f"{total} neurons against all heuristics with {s.sizes.permutations} permutations, the calibration of all"
    )


def _of(table: pd.DataFrame, operator: str) -> pd.DataFrame:
    return table[table.operator == operator].reset_index(drop=True)


def _arrays(patterns: ActivationMaps, operator: str, some: NDArray[np.int64]) -> list[NDArray[Any]]:
    return [np.asarray(x[patterns.rows(operator).start + some]) for x in (patterns.activations, patterns.logits)]


def _check_matches(
    inputs: Inputs,
    stored: Classification,
    tally: Tally,
    words: Vocabulary,
    patterns: ActivationMaps,
    some: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Matches and best heuristics of some neurons; returns what permutations of them show."""
    s, operator = inputs.settings, words[0]
    mine = patterns.neurons.iloc[patterns.rows(operator)].iloc[some][NEURON].reset_index(drop=True)
    names = [neuron_name(*x) for x in zip(mine.layer, mine.neuron, strict=True)]
    arrays = _arrays(patterns, operator, some)
    model, draws = inputs.model, s.sizes.permutations
    *tables, null = matched(model, words, draws, s.seed, names, *arrays, advance=lambda n: None)
    for name, columns in zip(("matches", "best"), tables, strict=True):
        found = pd.DataFrame(columns)
        now = mine.iloc[found.row.to_numpy()].reset_index(drop=True).join(found.drop(columns="row"))
        theirs = _of(getattr(stored, name), operator).merge(mine, on=NEURON)
        # A neuron's rows stand together, in the order in which they were found.
        order = theirs.set_index(NEURON).index.map(
            {key: i for i, key in enumerate(mine.itertuples(index=False, name=None))}
        )
        theirs = theirs.iloc[np.argsort(np.asarray(order), kind="stable")]
        tally.table(name, theirs[list(now.columns)], now, COUNTED)
    return null


def _check_calibration(
    inputs: Inputs, stored: Classification, tally: Tally, words: Vocabulary, null: NDArray[np.float64], whole: bool
) -> None:
    """Of indirect heuristics p is known; of direct ones it was counted among the permutations of all neurons, and is counted
    again among those of some. Rates of false discovery follow from the p of all neurons."""
    operator = words[0]
    of_indirect, tried, tried_direct = null_and_tries(inputs.model, words, inputs.settings.seed, advance=lambda n: None)
    neurons, best = _of(stored.neurons, operator), _of(stored.best, operator)
    own = best.groupby(NEURON, sort=False).p.min().reset_index().merge(neurons[NEURON], on=NEURON)
    tally.rows("p of neurons", neurons, own, NEURON, EXACT)
    p_of_neurons = neurons.p.to_numpy()
    tally.close("fdr of neurons", neurons.fdr, false_discovery_rate(p_of_neurons, p_of_neurons), EXACT)
    for name, table in (("matches", _of(stored.matches, operator)), ("best", best)):
        if table.empty:
            continue
        p, neg_log10_p, direct = (table[c].to_numpy() for c in ("p", "neg_log10_p", "direct"))
        known = np.minimum(CLASSES * chance_of(neg_log10_p[~direct], of_indirect, tried), 1.0)
        tally.close(f"p of indirect {name}", p[~direct], known, COUNTED)
        counted = np.minimum(CLASSES * chance_of(neg_log10_p[direct], null.ravel(), tried_direct), 1.0)
        share = np.clip(np.maximum(counted, p[direct]) / CLASSES, 1 / (1 + null.size), 1.0)
        error = 0.0 if whole else STANDARD_ERRORS * CLASSES * np.sqrt(share / len(null))
        sampled = Noise("of permutations of a sample", 0.0, 0.0) if not whole else COUNTED
        tally.close(f"p of direct {name}", p[direct], counted, sampled, more=error)
        fdr = false_discovery_rate(p, p_of_neurons)
        tally.close(f"fdr of {name}", table.fdr, fdr, EXACT)
        calibrated = is_match(table.overlap, table["size"]) & (table.fdr.to_numpy() <= LEVEL)
        tally.table(f"calibrated {name}", table[["calibrated"]], pd.DataFrame({"calibrated": calibrated}))


def _check_closer(
    inputs: Inputs,
    stored: Classification,
    tally: Tally,
    words: Vocabulary,
    patterns: ActivationMaps,
    some: NDArray[np.int64],
) -> None:
    """What is left of some neurons' matches if one operand counts, and what the matches explain of their patterns."""
    operator = words[0]
    mine = _of(stored.neurons, operator).iloc[some].reset_index(drop=True)
    matches = _of(stored.matches, operator).merge(mine[NEURON].assign(row=np.arange(len(mine))), on=NEURON)
    arrays = _arrays(patterns, operator, some)
    given = {name: x for name, x in matches.items() if name not in NEURON}
    left, coverage = looked_closer(
        inputs.model,
        words,
        inputs.settings.seed,
        columns_of(pd.DataFrame(given)),
        *arrays,
        advance=lambda n: None,
    )
    noise = Noise("of sums", 1e-4, 1e-5)
    for i, name in enumerate(("op1_only", "op2_only", "two_operands")):
        tally.close(name, matches[name], left[:, i], noise, lambda j: f"{matches.heuristic[j]}, {operator}")
    for i, criterion in enumerate(CRITERIA):
        tally.close(f"coverage_{criterion}", mine[f"coverage_{criterion}"], coverage[:, i], noise)
    every, by = _of(stored.neurons, operator), _of(stored.matches, operator)
    chosen = {"raw": by, "calibrated": by[by.calibrated], "two_operands": by[by.two_operands == 1]}
    for name, rows in chosen.items():
        keys = set(zip(rows.layer, rows.neuron, strict=True))
        flags = [pair in keys for pair in zip(every.layer, every.neuron, strict=True)]
        tally.table(f"neurons with a match, {name}", every[[name]], pd.DataFrame({name: flags}))
