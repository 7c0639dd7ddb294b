"""What the bag of heuristics can do alone: each operator's circuit, its MLPs reduced to neurons that match a heuristic.

At an earlier checkpoint of training also: how much of the final bag is there already, and what that part can do alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.ablation import MEASURES, Judging, ablated_scores, mean_ablation, yardstick
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.association import Association, as_many, association
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import CALIBRATED, CRITERIA, Classify
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.result import MEAN, Result, by_operator, with_average
from arithscope.experiments.samples import SampleSizes, splits
from arithscope.heuristics.kinds import Bools
from arithscope.measures import bootstrap_mean
from arithscope.progress import Progress
from arithscope.prompts import random_source
from arithscope.subject.subject import Subject

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
    subject: Subject,
    accuracy: Accuracy,
    means: MeanActivations,
    circuit: Circuit,
    classify: Classify,
    final: Classify | None,
    sizes: SampleSizes,
    seed: int,
    judging: Judging,
    progress: Progress,
) -> Bag:
    """Judge each operator's reduced circuits on its evaluation prompts; `final` is the last checkpoint's classification."""
    s, mean_values = subject.sizes, means.on(subject.device)
    curves, present = [], []
    samples = {o: split.evaluation for o, split in splits(accuracy, sizes, seed).items() if o in classify.operators}
    with progress.task("bag", len(samples)) as advance:
        for operator, prompts in samples.items():
            random = random_source(seed, "bag", operator)
            of = association(classify, operator, CALIBRATED)
            kept = kept_neurons(of, classify, final, random)
            masks = of.masks(np.stack(list(kept.values())), s.neurons)
            heads = circuit.keeps(operator, s.layers, s.heads)
            edits = mean_ablation(subject, mean_values, heads, masks, neurons_from=subject.positions.last)
            scores = ablated_scores(subject, prompts, edits, judging)
            measured = yardstick(subject, mean_values, prompts, judging).measure(scores, random)
            curves += [
                {"operator": operator, "neurons": name, "kept": int(some.sum()), "measure": m, **asdict(means_of[m])}
                for (name, some), means_of in zip(kept.items(), measured, strict=True)
                for m in MEASURES
            ]
            if final is not None:
                present += [{"operator": operator, **row} for row in _present(classify, final, operator, random)]
            advance(1)
    return Bag(
        pd.DataFrame(curves, columns=["operator", "neurons", "kept", "measure", *MEAN]),
        pd.DataFrame(present, columns=["operator", "criterion", *MEAN]),
    )


def kept_neurons(
    of: Association, classify: Classify, final: Classify | None, random: np.random.Generator
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


def pairs(classify: Classify, operator: str, criterion: str) -> set[tuple[int, int, str]]:
    """Every match of an operator: layer, neuron, heuristic."""
    matches = classify.matched(operator, criterion)
    return set(zip(*(matches[name].tolist() for name in PAIR), strict=True))


def _present(classify: Classify, final: Classify, operator: str, random: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for criterion in CRITERIA:
        here = pairs(classify, operator, criterion)
        already = [pair in here for pair in sorted(pairs(final, operator, criterion))]
        rows.append({"criterion": criterion, **asdict(bootstrap_mean(already, random))})
    return rows
