"""What the bag of heuristics can do alone: each operator's circuit, its MLPs reduced to neurons that match a heuristic.

At an earlier checkpoint of training also: how much of the final bag is there already, and what that part can do alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import CALIBRATED, CRITERIA, Classification
from arithscope.experiments.common.ablation import MEASURES, Asked, Judging, baselines, circuit_scores, scores_by_prompts
from arithscope.experiments.common.association import Association, as_many, association
from arithscope.experiments.common.result import MEAN, Result, by_operator, with_average
from arithscope.experiments.common.samples import SampleSizes, splits
from arithscope.experiments.means import MeanActivations
from arithscope.heuristics.kinds import Bools
from arithscope.models.model import Model
from arithscope.prompts import random_source
from arithscope.stats.measures import bootstrap_mean
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Progress

TOP, RANDOM, MUTUAL = "top", "random", "mutual"
PAIR = ["layer", "neuron", "heuristic"]


@dataclass(frozen=True, repr=False)
class Bag(Result):
    """curve: faithfulness, accuracy and mean probability of the answer when each MLP from the first answer layer on keeps only
    some of its neurons at the last position: all top neurons (`top`); those with a match (`raw`) or a calibrated one
    (`calibrated`); of each layer as many top neurons as the latter, drawn at random (`random`); and, at a checkpoint, those
    that share a match with the final one (`raw_mutual`, `calibrated_mutual`). kept: how many neurons that is, in all layers
    together. present: the share of the final checkpoint's pairs of neuron and heuristic that are matches here too."""

    curve: pd.DataFrame  # operator, neurons, kept, measure, value, low, high, n
    present: pd.DataFrame  # operator, criterion, value, low, high, n

    def summary(self) -> dict[str, Any]:
        rows = self.curve[self.curve.measure != "p_answer"]
        named = rows.assign(measure=rows.neurons + "_" + rows.measure)
        there = self.present.assign(measure=self.present.criterion + "_present")
        return by_operator(with_average(pd.concat([named, there])))


def bag(
    model: Model,
    accuracy: Accuracy,
    means: MeanActivations,
    circuit: Circuit,
    classify: Classification,
    final: Classification | None,
    sizes: SampleSizes,
    seed: int,
    judging: Judging,
    progress: Progress,
    executor: Executor = LOCAL,
) -> Bag:
    """Judge each operator's reduced circuits on its evaluation prompts; `final` is the last checkpoint's classification."""
    s, last = model.sizes, model.positions.last
    samples = {o: split.evaluation for o, split in splits(accuracy, sizes, seed).items() if o in classify.operators}
    sources = {operator: random_source(seed, "bag", operator) for operator in samples}
    kept: dict[str, dict[str, Bools]] = {}
    asked: list[Asked] = []
    for operator, prompts in samples.items():
        of = association(classify, operator, CALIBRATED)
        kept[operator] = kept_neurons(of, classify, final, sources[operator])
        masks = of.masks(np.stack(list(kept[operator].values())), s.neurons)
        heads = circuit.keeps(operator, s.layers, s.heads).numpy()
        asked.append(((means, heads, {layer: m.numpy() for layer, m in masks.items()}, last, judging), prompts))
    curves, present = [], []
    with progress.task("bag", sum(len(samples[o]) * len(kept[o]) for o in samples)) as advance:
        scores = scores_by_prompts(executor, circuit_scores, model, asked, advance)
        scales = baselines(executor, model, means, list(samples.values()), judging)
    for operator, scored, scale in zip(samples, scores, scales, strict=True):
        measured = scale.measure(scored, sources[operator])
        curves += [
            {"operator": operator, "neurons": name, "kept": int(some.sum()), "measure": m, **asdict(means_of[m])}
            for (name, some), means_of in zip(kept[operator].items(), measured, strict=True)
            for m in MEASURES
        ]
        if final is not None:
            present += [
                {"operator": operator, **row} for row in present_rows(classify, final, operator, sources[operator])
            ]
    return Bag(
        pd.DataFrame(curves, columns=["operator", "neurons", "kept", "measure", *MEAN]),
        pd.DataFrame(present, columns=["operator", "criterion", *MEAN]),
    )


def kept_neurons(
    of: Association, classify: Classification, final: Classification | None, random: np.random.Generator
) -> dict[str, Bools]:
    """Which of an operator's top neurons each circuit keeps."""
    every = np.ones(len(of), dtype=np.bool_)
    kept = {TOP: every, **{c: association(classify, of.operator, c).classified for c in CRITERIA}}
    kept[RANDOM] = as_many(of, kept[CALIBRATED], every, random)
    if final is not None:
        for criterion in CRITERIA:
            here, there = (pairs(c, of.operator, criterion) for c in (classify, final))
            mutual = {(layer, neuron) for layer, neuron, _ in here & there}
            named = zip(of.layers.tolist(), of.neurons.tolist(), strict=True)
            kept[f"{criterion}_{MUTUAL}"] = np.array([neuron in mutual for neuron in named], dtype=np.bool_)
    return kept


def pairs(classify: Classification, operator: str, criterion: str) -> set[tuple[int, int, str]]:
    """Every match of an operator: layer, neuron, heuristic."""
    matches = classify.matched(operator, criterion)
    return set(zip(*(matches[name].tolist() for name in PAIR), strict=True))


def present_rows(
    classify: Classification, final: Classification, operator: str, random: np.random.Generator
) -> list[dict[str, Any]]:
    rows = []
    for criterion in CRITERIA:
        here = pairs(classify, operator, criterion)
        already = [pair in here for pair in sorted(pairs(final, operator, criterion))]
        rows.append({"criterion": criterion, **asdict(bootstrap_mean(already, random))})
    return rows
