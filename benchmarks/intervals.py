"""How often the 95 % intervals of arithscope.stats hold the truth, at the sample sizes in use.

shares       exact coverage for shares, by the binomial distribution, beside the percentile bootstrap
means        means of values of single prompts, drawn from what tiny-llama does on 3,000 prompts of + and of ×:
             probability of the answer, faithfulness and correctness of circuits with random heads or neurons
paired       differences of two of these on the same prompts
differences  differences of two independent shares, exactly
draws        means over random circuits, drawn from 200 circuits; ratios over checkpoints, of made-up values

python -m benchmarks.intervals [--trials 2000] [--record NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

import arithscope
from arithscope.experiments.accuracy import Accuracy, accuracy
from arithscope.experiments.common.ablation import circuit_scores, nested_sets
from arithscope.experiments.common.stage import Context, Results
from arithscope.experiments.means import MeanActivations, means
from arithscope.figures.style import SIGNS
from arithscope.prompts import Prompts, random_source, sample
from arithscope.settings import Settings
from arithscope.stats.faithfulness import faithfulness_by_prompt
from arithscope.stats.intervals import (
    Mean,
    Z,
    difference,
    paired_difference,
    ratio,
    score_interval,
    share,
    t_means,
    unit_means,
)
from arithscope.utils.progress import Silent
from benchmarks.record import Table, record, record_option

SIZES = (25, 32, 50, 100, 200)
ALL_PROMPTS = 45_000  # about the number of legal prompts of an operator
SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
NEARBY = 0.01  # shares over which coverage is averaged: it oscillates from one share to the next
OPERATORS, PROMPTS, BATCH = "+*", 3000, 250
HEADS, NEURONS, FIRST_LAYER = (12, 16, 20), (100, 200, 400), 2
DRAWS = (4, 10)
RESAMPLES = 1000

Floats = NDArray[np.float64]
Populations = dict[str, Floats]  # values of single prompts, in the same order for one operator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="samples drawn from each population")
    record_option(parser)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    values, draws = populations()
    tables = {
        **share_tables(),
        "means": mean_table(values, arguments.trials, random),
        "paired": paired_table(values, arguments.trials, random),
        "differences": difference_table(),
        "draws": draw_table(draws, arguments.trials, random),
    }
    for name, table in tables.items():
        print(f"{name}\n{table.columns}")
        for row in table.rows:
            print(*(f"{x:.3f}" if isinstance(x, float) else x for x in row))
    if arguments.record:
        record(arguments.record, tables, [f"{arguments.trials} samples of each kind where coverage is not exact"])


def share_tables() -> dict[str, Table]:
    """Coverage by sample size and share: Wilson's, averaged over nearby shares and at the share itself, and the bootstrap's.

    A percentile bootstrap of k successes has the quantiles of a binomial distribution, with infinitely many resamples.
    """

    def wilson(n: int) -> Floats:
        return np.stack(score_interval(np.arange(n + 1) / n, np.full(n + 1, Z**2 / n)))

    def bootstrap(n: int) -> Floats:
        return np.stack([binom.ppf(q, n, np.arange(n + 1) / n) / n for q in (0.025, 0.975)])

    def covered(kept: Floats, n: int, at: Floats) -> Floats:
        chances = binom.pmf(np.arange(n + 1), n, at[:, None])
        return (chances * ((kept[0] <= at[:, None]) & (at[:, None] <= kept[1]))).sum(1)

    averaged, exact, old = [], [], []
    for n in (*SIZES, ALL_PROMPTS):
        ours, theirs = wilson(n), bootstrap(n)
        near = [covered(ours, n, np.linspace(p - NEARBY, min(p + NEARBY, 0.999), 21)).mean() for p in SHARES]
        worst = covered(ours, n, np.linspace(0.5, 0.99, 491 if n < ALL_PROMPTS else 50)).min()
        averaged.append([n, *map(float, near)])
        exact.append([n, *covered(ours, n, np.array(SHARES)).tolist(), float(worst)])
        old.append([n, *covered(theirs, n, np.array(SHARES)).tolist()])
    columns = ["n", *(f"{p:.2f}".removeprefix("0") for p in SHARES)]
    return {
        "shares": Table(columns, averaged),
        "shares-pointwise": Table([*columns, "worst from .50 to .99"], exact),
        "shares-bootstrap": Table(columns, old),
    }


def populations() -> tuple[Populations, Populations]:
    """Values of single prompts; and, for random circuits, values of single circuits (each a mean over 100 prompts)."""
    model = arithscope.load("tiny-llama")
    ctx = Context(model, Settings(), Results(), Silent())
    ctx.results.add(means(ctx))
    ctx.results.add(accuracy(ctx))
    s, random, full = model.sizes, np.random.default_rng(1), dict[int, NDArray[np.bool_]]()
    values, draws = Populations(), Populations()

    def scores(
        prompts: Prompts, heads: NDArray[np.bool_], neurons: dict[int, NDArray[np.bool_]], at: int | None
    ) -> Floats:
        stored, parts = ctx.results[MeanActivations], range(0, len(prompts), BATCH)
        some = (prompts[i : i + BATCH] for i in parts)
        one = [circuit_scores(model, stored, heads, neurons, at, p, advance=lambda n: None) for p in some]
        return np.concatenate(one, axis=1)

    def random_heads(kept: int, circuits: int) -> NDArray[np.bool_]:
        orders = np.stack([random.permutation(s.layers * s.heads) for _ in range(circuits)])
        return nested_sets(orders, [kept]).numpy().reshape(circuits, s.layers, s.heads)

    def random_neurons(kept: int, circuits: int) -> dict[int, NDArray[np.bool_]]:
        layers = range(FIRST_LAYER, s.layers)
        return {
            i: nested_sets(np.stack([random.permutation(s.neurons) for _ in range(circuits)]), [kept]).numpy()
            for i in layers
        }

    for operator in OPERATORS:
        sign, rows = SIGNS[operator], ctx.results[Accuracy].prompts
        rows = rows[rows.operator == operator]
        values[f"P(answer), {sign}"] = rows.p_answer.to_numpy(np.float64)
        correct = ctx.results[Accuracy].correct(operator)
        prompts = sample(correct, PROMPTS, random_source(0, "intervals", operator))
        ends = np.array([[False], [True]])
        every = np.repeat(np.repeat(ends[:, :, None], s.layers, 1), s.heads, 2)
        neurons = dict.fromkeys(range(s.layers), np.repeat(ends, s.neurons, 1))
        empty, whole = scores(prompts, every, neurons, None)[..., 0]
        for kept in HEADS:
            [found] = scores(prompts, random_heads(kept, 1), full, None)
            [faithful] = faithfulness_by_prompt(found[None, :, 0], empty, whole)
            values[f"faithfulness, {kept} heads, {sign}"] = faithful
            values[f"P(answer), {kept} heads, {sign}"] = found[:, 2]
        everything = np.ones((3, s.layers, s.heads), dtype=np.bool_)
        for kept in NEURONS:
            found = scores(prompts, everything, random_neurons(kept, 3), model.positions.final)
            first, second, _ = faithfulness_by_prompt(found[..., 0], empty, whole)
            values[f"faithfulness, {kept} neurons, {sign}"] = first
            values[f"faithfulness, {kept} other neurons, {sign}"] = second
            values[f"correct with {kept} neurons, {sign}"] = found[0, :, 1]
            values[f"correct with {kept} neurons, 3 draws, {sign}"] = found[:, :, 1].mean(0)
        few = slice(0, 100)
        by_heads = scores(prompts[few], random_heads(16, 200), full, None)
        by_neurons = scores(
            prompts[few],
            np.ones((200, s.layers, s.heads), dtype=np.bool_),
            random_neurons(200, 200),
            model.positions.final,
        )
        for kind, found in (("16 heads", by_heads), ("200 neurons", by_neurons)):
            faithful = faithfulness_by_prompt(found[..., 0], empty[few], whole[few])
            draws[f"faithfulness, random {kind}, {sign}"] = faithful.mean(1)
            draws[f"accuracy, random {kind}, {sign}"] = found[..., 1].mean(1)
        print(f"{sign}: {len(values)} populations", flush=True)
    return values, draws


def share_covered(low: Floats, high: Floats, truth: float) -> float:
    return float(((low <= truth + 1e-12) & (truth - 1e-12 <= high)).mean())


def coverage(intervals: Callable[[Floats], Sequence[Mean]], population: Floats, samples: Floats) -> float:
    low, high = np.array([[m.low, m.high] for m in intervals(samples)]).T
    return share_covered(low, high, float(population.mean()))


def percentile_bootstrap(samples: Floats, population: Floats, random: np.random.Generator) -> float:
    n = samples.shape[1]
    counts = random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = np.quantile(counts @ samples.T / n, [0.025, 0.975], axis=0)
    return share_covered(low, high, float(population.mean()))


def mean_table(values: Populations, trials: int, random: np.random.Generator) -> Table:
    rows = []
    for name, x in values.items():
        if " other " in name or (np.isin(x, (0, 1)).all()):
            continue
        samples = {n: random.choice(x, (trials, n)) for n in SIZES[:-1]}
        found = [coverage(unit_means, x, some) for some in samples.values()]
        old = [percentile_bootstrap(samples[32], x, random), coverage(t_means, x, samples[32])]
        rows.append([name, float(x.mean()), float(x.std()), *found, *old])
    columns = ["values", "mean", "standard deviation", *(f"n = {n}" for n in SIZES[:-1])]
    return Table([*columns, "bootstrap, n = 32", "Student's t, n = 32"], rows)


def paired_table(values: Populations, trials: int, random: np.random.Generator) -> Table:
    pairs = []
    for sign in (SIGNS[o] for o in OPERATORS):
        pairs += [(f"faithfulness, {k} neurons, {sign}", f"faithfulness, {k} other neurons, {sign}") for k in NEURONS]
        pairs.append((f"faithfulness, {HEADS[2]} heads, {sign}", f"faithfulness, {HEADS[1]} heads, {sign}"))
        pairs += [
            (f"correct with {k} neurons, 3 draws, {sign}", f"correct with {k} neurons, {sign}") for k in NEURONS[1:]
        ]
        pairs.append((f"correct with 400 neurons, {sign}", f"correct with 200 neurons, {sign}"))
    rows: list[list[Any]] = []
    for first, second in pairs:
        x, y = values[first], values[second]
        truth = float(x.mean() - y.mean())
        found: list[float] = []
        students: list[float] = []
        for n in (25, 50, 100):
            chosen = random.integers(0, len(x), (trials // 2, n))
            ours = [paired_difference(x[i], y[i]) for i in chosen]
            for means_of_samples, shares in ((ours, found), (t_means(x[chosen] - y[chosen]), students)):
                low, high = np.array([[m.low, m.high] for m in means_of_samples]).T
                shares.append(share_covered(low, high, truth))
        rows.append([f"{first} minus {second}", truth, *found, students[1]])
    return Table(["difference", "mean", "n = 25", "n = 50", "n = 100", "Student's t, n = 50"], rows)


def difference_table() -> Table:
    rows = []
    for n, (p, q) in product((25, 50, 100), ((0.5, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 0.97), (0.99, 0.99))):
        k = np.arange(n + 1)
        found = [share(i, n) for i in range(n + 1)]
        chances = binom.pmf(k, n, p)[:, None] * binom.pmf(k, n, q)
        likely = np.argwhere(chances > 1e-9)
        gaps = [(chances[i, j], difference(found[i], found[j])) for i, j in likely]
        rows.append([n, p, q, float(sum(c for c, m in gaps if m.low <= p - q + 1e-12 and p - q - 1e-12 <= m.high))])
    return Table(["n of each", "first share", "second share", "coverage"], rows)


def draw_table(draws: Populations, trials: int, random: np.random.Generator) -> Table:
    """Means over few draws, beside other intervals; and ratios, as of checkpoints, of paired values with ratio .8."""
    rows: list[list[Any]] = []
    for name, x in draws.items():
        samples = {n: random.choice(x, (trials, n)) for n in DRAWS}
        found = [coverage(way, x, some) for way in (unit_means, t_means) for some in samples.values()]
        rows.append([name, *found, *(percentile_bootstrap(some, x, random) for some in samples.values())])
    found = []
    for n in DRAWS:
        y = random.uniform(0.5, 1.0, (trials, n))
        x = 0.8 * y + random.normal(0, 0.1, (trials, n))
        low, high = np.array([[m.low, m.high] for m in (ratio(a, b) for a, b in zip(x, y, strict=True))]).T
        found.append(share_covered(low, high, 0.8))
    rows.append(["ratio of means, made-up values", *found, None, None, None, None])
    ways = ("", "Student's t, ", "bootstrap, ")
    return Table(["values", *(f"{way}{n} draws" for way in ways for n in DRAWS)], rows)


if __name__ == "__main__":
    main()
