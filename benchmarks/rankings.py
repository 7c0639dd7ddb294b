"""Which statistic of a neuron's effects ranks neurons best?

    reliability   Spearman's correlation of the statistic between two disjoint samples of n prompts, over the neurons of an
                  operator's answer layers
    topk          all heads kept, and only the top k neurons of each answer layer at the last position: the smallest k whose
                  faithfulness is within 0.02 of the plateau, and the accuracy at several k, on prompts that played no part in
                  the ranking

Statistics: the mean of exact effects (the paper's), the mean of their absolute values, mean + standard deviation, on 50
prompts; and the first two of effects estimated by attribution patching on 1,000 prompts.

    python -m benchmarks.rankings [MODEL …] [--record NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy, accuracy
from arithscope.experiments.answer_layers import AnswerLayers, answer_layers
from arithscope.experiments.common.ablation import TOLERANCE, baselines, nested_circuit_scores, scores_of_tasks
from arithscope.experiments.common.attribution import attributed_effects
from arithscope.experiments.common.ranking import best_first, rank_agreement, rank_statistic
from arithscope.experiments.common.stage import Context, Results
from arithscope.experiments.means import MeanActivations, means
from arithscope.experiments.neurons import neuron_effects
from arithscope.experiments.topk import neuron_counts
from arithscope.figures.style import SIGNS
from arithscope.models.load import load
from arithscope.models.model import Model
from arithscope.prompts import Prompts, counterfactuals, disjoint_samples, random_source
from arithscope.settings import MEAN, MEAN_ABS, RANKINGS, Settings
from benchmarks.record import Table, record, record_option

SUBJECTS = ("tiny-llama", "tiny-pythia", "tiny-gptj")
SIZES = (16, 50, 100)  # prompts of the exact effects
RANKED = 50  # prompts of the exact effects whose rankings are compared by top-k circuits
ATTRIBUTED = 1000  # prompts of the estimated effects
EVALUATED = 300
SHARES = (0.05, 0.1, 0.2, 0.4)  # of a layer's neurons to keep
ATP = "atp "  # before the name of a statistic of estimated effects

Effects = NDArray[np.float32]  # layers, neurons, prompts


def silent(n: int) -> None:
    """Progress is not shown."""


def measure(model: Model) -> Iterator[tuple[str, list[list[Any]], list[list[Any]]]]:
    """By operator: rows of both tables."""
    ctx = Context(model, Settings(), Results())
    for stage in (means, accuracy, answer_layers):
        ctx.results.add(stage(ctx))
    for operator, first in ctx.results[AnswerLayers].first_layer.items():
        layers = range(first, model.sizes.layers)
        random = random_source(0, "rankings", operator)
        sizes = [max(SIZES)] * 2 + [ATTRIBUTED] * 2 + [EVALUATED]
        *samples, evaluated = disjoint_samples(ctx.results[Accuracy].correct(operator), sizes, random)
        pool = ctx.results[Accuracy].correct()
        every = np.tile(np.arange(model.sizes.neurons), (len(layers), 1))
        exact_effects = partial(neuron_effects, layers=layers, chosen=every, at=model.positions.final, advance=silent)
        atp_effects = partial(attributed_effects, layers=layers, method="atp", advance=silent)
        exact, atp = (
            [effects(model, s, counterfactuals(s, pool, random))[..., 0] for s in some]
            for effects, some in ((exact_effects, samples[:2]), (atp_effects, samples[2:]))
        )
        reliability = [
            [SIGNS[operator], ranking, *(_reliability([x[..., :n] for x in exact], ranking) for n in SIZES)]
            for ranking in RANKINGS
        ]
        reliability += [
            [SIGNS[operator], ATP + ranking, *(_reliability([x[..., :n] for x in atp], ranking) for n in SIZES)]
            for ranking in (MEAN, MEAN_ABS)
        ]
        for row, x, ranking in zip(reliability, [exact] * 3 + [atp] * 2, (*RANKINGS, MEAN, MEAN_ABS), strict=True):
            row.append(_reliability(x, ranking) if x is atp else None)
        statistics = {ranking: rank_statistic(exact[0][..., :RANKED], ranking) for ranking in RANKINGS}
        statistics |= {ATP + ranking: rank_statistic(atp[0], ranking) for ranking in (MEAN, MEAN_ABS)}
        yield operator, reliability, list(_topk(ctx, operator, layers, statistics, evaluated))


def _reliability(samples: list[Effects], ranking: str) -> float:
    a, b = (rank_statistic(sample, ranking) for sample in samples)
    return round(rank_agreement(a, b)[0], 3)


def _topk(
    ctx: Context, operator: str, layers: range, statistics: dict[str, NDArray[np.float64]], prompts: Prompts
) -> Iterator[list[Any]]:
    s = ctx.model.sizes
    counts = neuron_counts(s.neurons, [round(share * s.neurons) for share in SHARES])
    orders = [best_first(statistic).astype(np.int32) for statistic in statistics.values()]
    by_layer = {layer: np.stack([order[i] for order in orders]) for i, layer in enumerate(layers)}
    heads = np.ones((1, s.layers, s.heads), dtype=np.bool_)
    arguments = ctx.results[MeanActivations], heads, by_layer, counts, ctx.model.positions.final
    [scores] = scores_of_tasks(ctx, nested_circuit_scores, [(arguments, prompts)])
    ends = baselines(ctx, {operator: prompts})[operator]
    for name, own in zip(statistics, scores.reshape(len(statistics), len(counts), *scores.shape[1:]), strict=True):
        measured = ends.measure(own)
        faithful = np.array([each["faithfulness"].value for each in measured])
        smallest = counts[int(np.argmax(faithful >= faithful.max() - TOLERANCE))]
        correct = [measured[counts.index(round(share * s.neurons))]["accuracy"].value for share in SHARES]
        yield [SIGNS[operator], name, len(layers), smallest, *(round(x, 3) for x in correct)]


def averaged(rows: list[list[Any]], first: int) -> list[list[Any]]:
    """Rows with the same subject and statistic, averaged over operators from the column `first` on."""
    groups: dict[tuple[str, str], list[list[Any]]] = {}
    for row in rows:
        groups.setdefault((row[0], row[2]), []).append(row[first:])
    return [
        [*key, *(None if None in column else round(mean(column), 3) for column in zip(*own, strict=True))]
        for key, own in groups.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=SUBJECTS, metavar="MODEL")
    record_option(parser)
    arguments = parser.parse_args()
    reliability: list[list[Any]] = []
    topk: list[list[Any]] = []
    for name in arguments.models:
        for _, stable, sparse in measure(load(name)):
            reliability += [[name, *row] for row in stable]
            topk += [[name, *row] for row in sparse]
            print(pd.DataFrame(stable).to_string(header=False, index=False), flush=True)
            print(pd.DataFrame(sparse).to_string(header=False, index=False), flush=True)
    of_samples = [*(f"n = {n}" for n in SIZES), f"n = {ATTRIBUTED:,}"]
    of_circuits = ["k", *(f"{share:.0%} kept" for share in SHARES)]
    tables = {
        "reliability": Table(["model", "operator", "ranked by", *of_samples], reliability),
        "topk": Table(["model", "operator", "ranked by", "layers", *of_circuits], topk),
        "reliability-mean": Table(["model", "ranked by", *of_samples], averaged(reliability, 3)),
        "topk-mean": Table(["model", "ranked by", *of_circuits], averaged(topk, 4)),
    }
    for key in ("reliability-mean", "topk-mean"):
        print(pd.DataFrame(tables[key].rows, columns=tables[key].columns).to_string(index=False))
    if arguments.record:
        notes = [
            f"rankings of top-k circuits: exact effects on {RANKED} prompts, estimated ones on {ATTRIBUTED:,}",
            f"accuracy and k on {EVALUATED} other prompts, all heads kept; answer layers by cause",
        ]
        record(arguments.record, tables, notes)


if __name__ == "__main__":
    main()
