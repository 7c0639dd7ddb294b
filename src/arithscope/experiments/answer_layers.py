"""Answer layers by cause: which MLPs does the answer need at the last position?

A probe finds the layer after which the answer can be read. That layer depends on how much the probe was trained, and the answer
may have been computed below it. This experiment asks the model itself:

1. Keep all heads, and mean-ablate the MLPs of the last n layers at the last position, for n = 0, 1, … all layers.
2. The *answer layers* are the fewest last layers without whose MLPs at most a tenth of the accuracy above the operator's
   baseline is left. The baseline is the accuracy of always giving the most frequent answer; half of all quotients are 0.
3. They are chosen on the selection prompts; the accuracy without them is reported on the evaluation prompts.
4. Where more is left even without any MLP at the last position, the answer needs none of them: it comes from earlier positions.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.result import Result, mean_entry
from arithscope.experiments.common.samples import splits
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.means import MeanActivations
from arithscope.prompts import Ints, Prompts
from arithscope.stats.intervals import unit_means

TENTH = 0.1  # of the accuracy above the baseline: what may be left without the answer layers
SELECTION, EVALUATION = "selection", "evaluation"
VERIFIED_LAYERS = 3  # numbers of layers, of each operator and sample, that `verify` ablates again


@dataclass(frozen=True, repr=False)
class AnswerLayers(Result):
    """Accuracy without the last MLPs, and the layers that the answer needs."""

    curve: pd.DataFrame = schema.table(
        "Accuracy with all heads kept and the MLPs from a layer on mean-ablated at the last position.",
        schema.OPERATOR,
        schema.text("sample", "prompts: `selection`, on which the layers are chosen, or `evaluation`", key=True),
        schema.integer("layer", "first layer whose MLP is ablated; the number of layers if none is", key=True),
        *schema.MEAN_COLUMNS,
    )
    first_layer: dict[str, int] = schema.value("first answer layer by cause, by operator; 0 if the answer needs no MLP")
    baseline: dict[str, float] = schema.value("accuracy of always giving the most frequent answer, by operator")

    def left(self, operator: str, layer: int) -> dict[str, Any]:
        """Accuracy on the evaluation prompts without the MLPs from a layer on, as {value, low, high, n}."""
        rows = self.curve[(self.curve.operator == operator) & (self.curve["sample"] == EVALUATION)]
        return mean_entry(rows[rows.layer == layer].iloc[0])

    def needed(self, operator: str) -> bool:
        """Whether the answer needs MLPs at the last position: without the answer layers, hardly any accuracy is left."""
        rows = self.curve[(self.curve.operator == operator) & (self.curve["sample"] == SELECTION)]
        left = rows[rows.layer == self.first_layer[operator]].value.iloc[0]
        return bool(left <= _most_left(self.baseline[operator]))

    def summary(self) -> dict[str, Any]:
        return {
            operator: {
                "first_answer_layer": layer,
                "accuracy_without": self.left(operator, layer),
                "baseline": self.baseline[operator],
                "needed": self.needed(operator),
            }
            for operator, layer in self.first_layer.items()
        }


@stage(needs=(Accuracy, MeanActivations), reads=("sizes", "seed"), memory=replay_memory)
def answer_layers(ctx: Context) -> AnswerLayers:
    """Fewest last layers whose MLPs the answer needs at the last position, by operator."""
    layers = ctx.model.sizes.layers
    samples = {
        (operator, name): getattr(split, name)
        for operator, split in splits(ctx).items()
        for name in (SELECTION, EVALUATION)
    }
    starts = {key: ctx.sample(layers + 1, VERIFIED_LAYERS, "answer_layers", *key) for key in samples}
    tasks = [(_without_mlps(ctx, starts[key]), prompts) for key, prompts in samples.items()]
    total = sum(len(starts[key]) * len(prompts) for key, prompts in samples.items())
    with ctx.progress.task("answer_layers", total) as advance:
        scores = ablation.scores_of_tasks(ctx, ablation.circuit_scores, tasks, advance)
    rows = [
        {"operator": operator, "sample": name, "layer": int(start), **asdict(mean)}
        for (operator, name), each in zip(samples, scores, strict=True)
        for start, mean in zip(starts[operator, name], unit_means(each[..., 1]), strict=True)
    ]
    curve = ctx.confirmed("curve", pd.DataFrame(rows))
    chosen = curve[curve["sample"] == SELECTION]
    baseline = {o: _baseline(ctx.results[Accuracy].correct(o)) for o in chosen.operator.unique()}
    accuracies = {
        o: dict(zip(rows.layer, rows.value, strict=True)) for o, rows in chosen.groupby("operator", sort=False)
    }
    first = {str(o): first_answer_layer(by_layer, baseline[str(o)]) for o, by_layer in accuracies.items()}
    return AnswerLayers(curve, first, baseline)


def _without_mlps(ctx: Context, starts: Ints) -> tuple[Any, ...]:
    """Arguments of `circuit_scores` for circuits without the MLPs from each of these layers on."""
    s = ctx.model.sizes
    heads = np.ones((len(starts), s.layers, s.heads), dtype=np.bool_)
    kept = {layer: np.repeat((layer < starts)[:, None], s.neurons, axis=1) for layer in range(s.layers)}
    return ctx.results[MeanActivations], heads, kept, ctx.model.positions.final


def _baseline(correct: Prompts) -> float:
    """Share of the most frequent answer among an operator's correct prompts, from which samples are drawn."""
    return float(np.unique(correct.result, return_counts=True)[1].max() / len(correct))


def _most_left(baseline: float) -> float:
    """The largest accuracy without layers that the answer needs."""
    return baseline + TENTH * (1 - baseline)


def first_answer_layer(accuracy: Mapping[int, float], baseline: float) -> int:
    """The last layer from which on MLPs must be ablated to leave at most a tenth of the accuracy; 0 if there is none.

    Args:
        accuracy: Accuracy without the MLPs from each layer on; the largest key is the number of layers, without any ablation.
        baseline: Accuracy that remains without any computation.
    """
    largest, unablated = _most_left(baseline), max(accuracy)
    return max((layer for layer, value in accuracy.items() if value <= largest and layer < unablated), default=0)
