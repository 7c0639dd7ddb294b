"""The bag of heuristics alone: each operator's circuit with its MLPs reduced to neurons that match a heuristic (Section 5).

1. In the answer layers, keep only heuristic neurons at the last position and mean-ablate the others.
2. Compare with all top neurons, with as many random top neurons of each layer, and with none at all: the floor, which other
   positions, earlier layers and the circuit's heads reach without any neuron.
3. Above the floor: the share of what all top neurons add to it that the kept ones add.
4. At an earlier checkpoint, also: the share of the final model's (neuron, heuristic) pairs that are already matched, and the
   circuit that keeps only the neurons of such pairs (mutual neurons).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import CALIBRATED, CRITERIA, Classification
from arithscope.experiments.common import schema
from arithscope.experiments.common.ablation import baselines, circuit_scores, scores_of_tasks
from arithscope.experiments.common.association import association, matched_random_neurons
from arithscope.experiments.common.result import Result, by_operator, mean_rows, with_average
from arithscope.experiments.common.samples import evaluation_prompts
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.means import MeanActivations
from arithscope.heuristics.kinds import Bools
from arithscope.prompts import random_source
from arithscope.stats.faithfulness import faithfulness_by_prompt
from arithscope.stats.intervals import Mean, ratio, share_of, t_mean

TOP, RANDOM, NONE, MUTUAL = "top", "random", "none", "mutual"
_KEPT = (
    "neurons kept: all `top` neurons; those with a match (`raw`) or a calibrated match (`calibrated`); per layer, as many "
    "`random` top neurons as calibrated ones; `none`; at a checkpoint, those of final pairs (`raw_mutual`, `calibrated_mutual`)"
)
CURVE = (
    schema.OPERATOR,
    schema.text("neurons", _KEPT, key=True),
    schema.number("kept", "number of neurons kept in all layers"),
    *schema.MEASURED,
)
SHARES = (schema.OPERATOR, schema.text("neurons", "neurons kept, as in `curve`", key=True), *schema.MEAN_COLUMNS)
ABOVE_FLOOR = "_above_floor"  # ends the names of measures
PRESENT = (schema.OPERATOR, schema.CRITERION, *schema.MEAN_COLUMNS)


@dataclass(frozen=True, repr=False)
class Bag(Result):
    """Circuits reduced to heuristic neurons."""

    curve: pd.DataFrame = schema.table("Measures of each reduced circuit.", *CURVE)
    above_floor: pd.DataFrame = schema.table(
        "Faithfulness above that with no neuron, relative to all top neurons: (F − F_none) ÷ (F_top − F_none). NaN where all "
        "top neurons do not clearly add to the floor.",
        *SHARES,
    )
    present: pd.DataFrame = schema.table(
        "At a checkpoint, share of the final model's (neuron, heuristic) pairs that are already matched.", *PRESENT
    )

    def summary(self) -> dict[str, Any]:
        rows = self.curve[self.curve.measure != "p_answer"]
        named = rows.assign(measure=rows.neurons + "_" + rows.measure)
        above = self.above_floor.assign(measure=self.above_floor.neurons + ABOVE_FLOOR)
        present = self.present.assign(measure=self.present.criterion + "_present")
        return by_operator(with_average(pd.concat([named, above, present])))


@dataclass(frozen=True)
class FinalClassification:
    """The final model's classification, given to an earlier checkpoint of its training."""

    classification: Classification


@stage(
    needs=(Accuracy, MeanActivations, Circuit, Classification),
    given=(FinalClassification,),
    reads=("sizes", "seed"),
    memory=replay_memory,
    paper="5",
)
def bag(ctx: Context) -> Bag:
    """Faithfulness of each operator's circuit when its later MLPs keep heuristic neurons only."""
    s, classification, given = ctx.model.sizes, ctx.results[Classification], ctx.results.get(FinalClassification)
    final = None if given is None else given.classification
    samples = {o: prompts for o, prompts in evaluation_prompts(ctx).items() if o in classification.operators}
    sources = {operator: random_source(ctx.settings.seed, "bag", operator) for operator in samples}
    kept = {o: kept_neurons(classification, final, o, sources[o]) for o in samples}
    tasks = []
    for operator, prompts in samples.items():
        masks = association(classification, operator, CALIBRATED).masks(np.stack([*kept[operator].values()]), s.neurons)
        neurons = {layer: mask.numpy() for layer, mask in masks.items()}
        heads = ctx.results[Circuit].keeps(operator, s.layers, s.heads)
        tasks.append(((ctx.results[MeanActivations], heads, neurons, ctx.model.positions.final), prompts))
    with ctx.progress.task("bag", sum(len(samples[o]) * len(kept[o]) for o in samples)) as advance:
        scores = scores_of_tasks(ctx, circuit_scores, tasks, advance)
        ends = baselines(ctx, samples)
    curve: list[dict[str, Any]] = []
    above, present, gains = [], [], dict[str, float]()
    for operator, values in zip(samples, scores, strict=True):
        end = ends[operator]
        measured = end.measure(values)
        for (name, chosen), means in zip(kept[operator].items(), measured, strict=True):
            curve += mean_rows(means, operator=operator, neurons=name, kept=int(chosen.sum()))
        by_prompt = faithfulness_by_prompt(values[..., 0], end.empty, end.whole_model)
        faithful = dict(zip(kept[operator], by_prompt, strict=True))
        gains[operator] = float((faithful[TOP] - faithful[NONE]).mean())
        for name in (n for n in faithful if n not in (TOP, NONE)):
            share = share_above_floor(faithful[name], faithful[NONE], faithful[TOP])
            above.append({"operator": operator, "neurons": name, **asdict(share)})
        if final is not None:
            for criterion in CRITERIA:
                here, there = (matched_pairs(c, operator, criterion) for c in (classification, final))
                share = share_of([pair in here for pair in there])
                present.append({"operator": operator, "criterion": criterion, **asdict(share)})
    spans = {operator: baseline.smallest_span for operator, baseline in ends.items()}
    whole = ctx.confirmed("curve", Bag.frame("curve", curve), smallest_span=spans)
    shares = ctx.confirmed("above_floor", Bag.frame("above_floor", above), smallest_span=spans, gain=gains)
    return Bag(whole, shares, Bag.frame("present", present))


def kept_neurons(
    classification: Classification, final: Classification | None, operator: str, random: np.random.Generator
) -> dict[str, Bools]:
    """Which of an operator's top neurons each reduced circuit keeps."""
    bags = {criterion: association(classification, operator, criterion) for criterion in CRITERIA}
    top = bags[CALIBRATED]
    every = np.ones(len(top), dtype=np.bool_)
    kept = {TOP: every, **{criterion: bag.classified for criterion, bag in bags.items()}}
    kept[RANDOM] = matched_random_neurons(top, kept[CALIBRATED], every, random)
    kept[NONE] = ~every
    if final is not None:
        neurons = list(zip(top.layers.tolist(), top.neurons.tolist(), strict=True))
        for criterion in CRITERIA:
            here, there = (matched_pairs(c, operator, criterion) for c in (classification, final))
            mutual = {(layer, neuron) for layer, neuron, _ in here & there}
            kept[f"{criterion}_{MUTUAL}"] = np.array([neuron in mutual for neuron in neurons], dtype=np.bool_)
    return kept


def share_above_floor(kept: ArrayLike, floor: ArrayLike, top: ArrayLike) -> Mean:
    """Share of what all top neurons add to the floor that the kept ones add, from the faithfulness of each prompt.

    The ratio of the two means over prompts, with Fieller's interval: faithfulness with few neurons is high on the prompts
    where the floor is, so the three must be taken prompt by prompt. NaN where all top neurons do not clearly add anything.
    """
    added, most = (np.subtract(faithful, floor) for faithful in (kept, top))
    return ratio(added, most) if t_mean(most).low > 0 else Mean(np.nan, np.nan, np.nan, len(most))


def matched_pairs(classification: Classification, operator: str, criterion: str) -> set[tuple[int, int, str]]:
    """Every match of an operator as (layer, neuron, heuristic)."""
    matches = classification.matched(operator, criterion)
    return set(zip(*(matches[name].tolist() for name in ("layer", "neuron", "heuristic")), strict=True))
