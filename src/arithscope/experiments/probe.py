"""Linear probes: at which layer and position can the answer be read off the residual stream? (Section 2.2, Appendix H)

A linear classifier from the residual stream to the answer is trained for every layer and position. The *first answer layer* is
the first layer whose accuracy at the last position reaches half of the best layer's.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import schema
from arithscope.experiments.common.linear_probes import Examples, initial_probes, train, training_steps
from arithscope.experiments.common.result import Result, mean_entry
from arithscope.experiments.common.samples import batches, places_of_units, probe_split
from arithscope.experiments.common.stage import Context, stage, sweep_memory
from arithscope.models.hooks import capturing
from arithscope.models.memory import storage
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, legal_prompts, random_source
from arithscope.settings import Settings
from arithscope.stats.intervals import bootstrap_mean
from arithscope.utils.out_of_memory import rows_within
from arithscope.utils.progress import Advance

ALL = "all"  # test prompts of all operators together, as in the paper
LAYERS_IN_UNIT = 16  # smaller units would be slower to read and to train
VERIFIED_PROBES = 2  # probes that `verify` trains again


@dataclass(frozen=True, repr=False)
class Probe(Result):
    """Accuracy of linear probes, and the layers at which the answer appears."""

    table: pd.DataFrame = schema.table(
        "Accuracy on test prompts, of the probe after each layer at each position.",
        schema.text("operator", "operator of the test prompts, or `all`", key=True),
        schema.POSITION,
        schema.LAYER,
        *schema.MEAN_COLUMNS,
    )
    chance: dict[str, float] = schema.value("accuracy of always giving the training prompts' most frequent answer")
    best_layer: int = schema.value("layer with the highest accuracy at the last position")
    first_answer_layer: int = schema.value("first layer that reaches half of the best accuracy at the last position")
    training_prompts: int = schema.value("number of training prompts")

    def summary(self) -> dict[str, Any]:
        rows = self.table[(self.table.position == "last") & (self.table.layer == self.best_layer)]
        out: dict[str, Any] = {}
        for row in rows.to_dict("records"):
            out[str(row["operator"])] = {"best_accuracy": mean_entry(row), "chance": self.chance[str(row["operator"])]}
        out[ALL] |= {"best_layer": self.best_layer, "first_answer_layer": self.first_answer_layer}
        return out


def _memory(model: Model, settings: Settings) -> int:
    """A sweep, and the residual stream of all prompts with the probes' weights, gradients and moments."""
    s = model.sizes
    prompts = min(len(legal_prompts(settings.operators, settings.max_operand, model.limit)), settings.sizes.probe)
    states = s.layers * s.width * (prompts * model.hf_model.dtype.itemsize + 16 * model.limit)
    return sweep_memory(model, settings) + min(states, storage(model))


@stage(needs=(Accuracy,), reads=("sizes", "seed"), memory=_memory, paper="2.2, App. H")
def probe(ctx: Context) -> Probe:
    """Accuracy of linear probes from the residual stream to the answer, by layer and position."""
    seed, (prompts, training) = ctx.settings.seed, probe_split(ctx)
    places = places_of_units(ctx, LAYERS_IN_UNIT, VERIFIED_PROBES, "probe")
    units = [(prompts, training, position, list(layers), seed) for position, layers in places]
    probes = [(position, layer) for position, layers in places for layer in layers]
    with ctx.progress.task("probe", len(probes) * training_steps(training)) as advance:
        correct = np.concatenate(ctx.map(tested_probes, units, advance))
    tested, rows = prompts[training:], []
    by_operator = {ALL: np.ones(len(tested), dtype=np.bool_)}
    by_operator |= {OPERATORS[i]: tested.operator == i for i in np.unique(tested.operator)}
    for operator, own in by_operator.items():
        for (position, layer), of_probe in zip(probes, correct, strict=True):
            mean = bootstrap_mean(of_probe[own], random_source(seed, "probe", operator, position, layer))
            rows.append({"operator": operator, "position": position, "layer": layer, **asdict(mean)})
    table = ctx.confirmed("table", pd.DataFrame(rows), trained=True)
    last = table[(table.operator == ALL) & (table.position == "last")].sort_values("layer").value.to_numpy()
    most_frequent = np.bincount(prompts[:training].answer).argmax()
    chance = {o: float((tested.answer[own] == most_frequent).mean()) for o, own in by_operator.items()}
    return Probe(table, chance, int(last.argmax()), int(np.argmax(last >= last.max() / 2)), training)


def tested_probes(
    model: Model, prompts: Prompts, training: int, position: str, layers: Sequence[int], seed: int, *, advance: Advance
) -> NDArray[np.bool_]:
    """Unit of work: train probes on the first prompts and test them on the rest: correctness [layers, test prompts]."""
    correct = []
    for group in _layers_together(model, len(prompts), layers):
        examples = read_states(model, prompts, position, group)
        start = initial_probes(group, model.sizes.width, model.limit, seed, position)
        probes = train(start, examples, training, seed, position, advance)
        correct.append(probes.correct(examples, torch.arange(training, len(prompts))).cpu().numpy())
    return np.concatenate(correct)


def read_states(model: Model, prompts: Prompts, position: str, layers: Sequence[int]) -> Examples:
    """Residual stream at a named position after each of these layers. Prompts that agree up to the position share it."""
    at, tail = model.positions.named()[position], model.positions.op2
    prefix = {"op1": [prompts.op1], "operator": [prompts.op1, prompts.operator]}
    key = np.stack(prefix.get(position, [np.arange(len(prompts))]))
    _, examples, of_prompt = np.unique(key, axis=1, return_index=True, return_inverse=True)
    distinct = prompts[examples]
    states = torch.empty(len(layers), len(distinct), model.sizes.width, dtype=model.hf_model.dtype, device=model.device)

    def store(activations: dict[int, Tensor], rows: NDArray[np.int64]) -> None:
        for i, layer in enumerate(layers):
            states[i, torch.from_numpy(rows).to(states.device)] = activations[layer].to(states.device)

    if at >= tail:
        for block in model.engine.sweep(model, distinct, residual=layers, keep=lambda x: x[:, at - tail].clone()):
            store(block.activations.residual, block.rows)
    else:
        for rows, batch in batches(model, distinct, 0):
            with torch.no_grad(), capturing(model, residual=layers, keep=lambda x: x[:, at].clone()) as activations:
                model.logits(model.encode(batch))
            store(activations.residual, rows)
    owner, answer = (torch.from_numpy(x.reshape(-1)).to(states.device) for x in (of_prompt, prompts.answer))
    return Examples(states, owner, answer)


def _layers_together(model: Model, prompts: int, layers: Sequence[int]) -> list[Sequence[int]]:
    """Split layers into groups whose states and probes fit in memory."""
    s = model.sizes
    states = prompts * s.width * model.hf_model.dtype.itemsize
    probe = s.width * model.limit * 4 * 4  # weights, gradient, and Adam's two moments
    size = rows_within(min(storage(model), len(layers) * (states + probe)), states + probe)
    return [layers[start : start + size] for start in range(0, len(layers), size)]
