"""How often noise is called a finding, and how often a planted effect is found.

clear     comparisons whose true difference is zero: share of trials in which any is called clear, by Holm's method and
          if every interval that excludes zero counted
failures  two features of correct and incorrect prompts, of which one differs by some standard deviations: share of
          trials in which they are called predictive, and coverage of the intervals; on noise, also the share with an AUC
          that is fitted and scored on the same prompts and has a percentile bootstrap interval above ½

python -m benchmarks.noise [--trials 400] [--record NAME]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from arithscope.stats import classifiers
from arithscope.stats.classifiers import _newton, cross_validated_auc, logistic, standardised
from arithscope.stats.intervals import (
    clear_signs,
    difference,
    holm,
    paired_difference,
    signs_of_rows,
    t_intervals,
    t_mean,
)
from benchmarks.record import Table, record, record_option

PROMPTS = 50  # behind each comparison
COMPARISONS = (1, 4, 16, 2000)
GROUPS = ((50, 50), (25, 25), (50, 12))  # correct and incorrect prompts
OPERATORS = 4
NULL_TRIALS = 5  # times as many without an effect
EFFECTS = (0.0, 0.25, 0.5, 1.0, 2.0)  # standard deviations
PERMUTATIONS = 199  # instead of 1,000, which would take five times as long and find a little more
RESAMPLES = 200

Floats = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    record_option(parser)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    classifiers.PERMUTATIONS = PERMUTATIONS
    tables = {"clear": clear_table(arguments.trials, random), **failure_tables(arguments.trials, random)}
    for name, table in tables.items():
        print(f"{name}\n{table.columns}")
        for row in table.rows:
            print(*(f"{x:.3f}" if isinstance(x, float) else x for x in row))
    if arguments.record:
        more = f"of failures without an effect {NULL_TRIALS} times as many, with {PERMUTATIONS} permutations"
        record(arguments.record, tables, [f"{arguments.trials} trials, {more}"])


def clear_table(trials: int, random: np.random.Generator) -> Table:
    rows: list[list[Any]] = []
    for skewed in (False, True):
        for m in COMPARISONS:
            called = np.zeros(3)
            for _ in range(trials):
                values = random.standard_normal((m, PROMPTS))
                value, low, high = t_intervals(np.exp(values) - np.exp(0.5) if skewed else values)
                signs = signs_of_rows(value, low, high, PROMPTS)
                called += [(signs > 0).any(), (signs < 0).any(), ((low > 0) | (high < 0)).any()]
            rows.append(["log-normal effects" if skewed else "normal effects", m, *(called / trials).tolist()])
    for m in COMPARISONS[:-1]:
        called = np.zeros(3)
        for _ in range(trials):
            pairs = random.random((2, m, PROMPTS)) < 0.8
            means = [paired_difference(a, b) for a, b in zip(*pairs, strict=True)]
            found = clear_signs(means)
            called += [1 in found, -1 in found, any(mean.low > 0 or mean.high < 0 for mean in means)]
        rows.append(["paired shares of .8", m, *(called / trials).tolist()])
    columns = ["comparisons of", "comparisons", "any clearly above", "any clearly below", "any interval without zero"]
    return Table(columns, rows)


def failure_tables(trials: int, random: np.random.Generator) -> dict[str, Table]:
    """Rates of calls, and coverage. The AUC that is to be covered is the mean over trials, which is that of a regression
    fitted to nine tenths of the prompts and scored on new ones."""
    called: list[list[Any]] = []
    covered: list[list[Any]] = []
    for (positives, negatives), effect in ((g, e) for g in GROUPS for e in EFFECTS):
        y = np.arange(positives + negatives) < positives
        old, p, areas, inside = 0, [], [], np.zeros(3)
        tried = trials if effect else NULL_TRIALS * trials
        for i in range(tried):
            x = np.column_stack([random.normal(effect * y), random.poisson(20, len(y))]).astype(np.float64)
            found = cross_validated_auc(x, y, random)
            p.append(found.p if found.auc.value > 0.5 else 1.0)
            areas.append([found.auc.value, found.auc.low, found.auc.high])
            old += effect == 0 and i < trials and in_sample_auc_is_clear(x, y, random)
            _, first, second = logistic(x, y)
            gap = difference(t_mean(x[y, 0]), t_mean(x[~y, 0]))
            truths = (effect * x[:, 0].std(), 0.0, effect)
            inside += [m.low <= truth <= m.high for m, truth in zip((first, second, gap), truths, strict=True)]
        value, low, high = np.array(areas).T
        expected = max(float(value.mean()), 0.5)
        auc = float(((low <= expected) & (expected <= high)).mean())
        name, calls = f"{positives} and {negatives}", np.array(p)
        best = float(norm.cdf(effect / np.sqrt(2)))
        by_study = (holm(p_of_operators).any() for p_of_operators in calls.reshape(-1, OPERATORS))
        rates = [float((calls <= 0.05).mean()), float(np.mean(list(by_study)))]
        called.append([name, effect, best, float(value.mean()), *rates, old / trials if effect == 0 else None])
        covered.append([name, effect, auc, *(inside / tried).tolist()])
    columns = ["correct and incorrect", "effect", "best possible AUC", "mean AUC", "p ≤ .05"]
    columns += ["any of 4 operators, by Holm's method", "in-sample AUC"]
    kinds = ["AUC", "coefficient", "coefficient of 0", "difference of means"]
    return {
        "failures": Table(columns, called),
        "failures-coverage": Table(["correct and incorrect", "effect", *kinds], covered),
    }


def in_sample_auc_is_clear(features: Floats, outcome: NDArray[np.bool_], random: np.random.Generator) -> bool:
    """Whether the percentile bootstrap interval of the AUC of a regression on its own prompts lies above ½."""
    n, y = len(outcome), outcome.astype(np.float64)
    x = np.column_stack([np.ones(n), standardised(features)])
    counts = random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)
    fits, _ = _newton(x, np.broadcast_to(y, counts.shape), counts)
    scores = fits @ x.T
    higher = (np.sign(scores[:, outcome, None] - scores[:, None, ~outcome]) + 1) / 2
    pairs = counts[:, outcome, None] * counts[:, None, ~outcome]
    return bool(np.quantile((higher * pairs).sum((1, 2)) / pairs.sum((1, 2)), 0.025) > 0.5)


if __name__ == "__main__":
    main()
