"""Where the answer can be read off: a linear classifier from residual stream to answer, at each layer and position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.linear_probes import Examples, initial, steps, train
from arithscope.experiments.common.result import Result, mean_entry
from arithscope.experiments.common.samples import SampleSizes, batches, probe_split
from arithscope.models.engine.sweep import sweep
from arithscope.models.hooks import capturing
from arithscope.models.memory import storage
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, random_source
from arithscope.stats.measures import bootstrap_mean
from arithscope.utils.executor import LOCAL, Executor, split_evenly
from arithscope.utils.out_of_memory import rows_within
from arithscope.utils.progress import Advance, Progress

ALL = "all"  # test prompts of all operators together, as in the paper
LAYERS_IN_UNIT = 16  # fewer would be read, and trained, less quickly


@dataclass(frozen=True, repr=False)
class Probe(Result):
    """table: accuracy on test prompts by layer (the residual stream behind it) and position, on all test prompts and by
    operator. chance: accuracy, on the same, of always giving the training prompts' most frequent answer."""

    table: pd.DataFrame  # operator, position, layer, value, low, high, n
    chance: dict[str, float]
    best_layer: int  # at the last position
    first_answer_layer: int  # the first one whose accuracy at the last position reaches half of the best layer's
    training_prompts: int

    def summary(self) -> dict[str, Any]:
        rows = self.table[(self.table.position == "last") & (self.table.layer == self.best_layer)]
        out: dict[str, Any] = {}
        for row in rows.to_dict("records"):
            out[str(row["operator"])] = {"best_accuracy": mean_entry(row), "chance": self.chance[str(row["operator"])]}
        out[ALL] |= {"best_layer": self.best_layer, "first_answer_layer": self.first_answer_layer}
        return out


def probe(
    model: Model, accuracy: Accuracy, sizes: SampleSizes, seed: int, progress: Progress, executor: Executor = LOCAL
) -> Probe:
    """Train and test probes at every layer and named position, many layers of a position together."""
    prompts, training = probe_split(accuracy, sizes, seed)
    positions, layers = list(model.positions.named()), model.sizes.layers
    some = [range(layers)[b] for b in split_evenly(layers, LAYERS_IN_UNIT)]
    units = [(prompts, training, position, group, seed) for position in positions for group in some]
    with progress.task("probe", len(positions) * layers * steps(training)) as advance:
        parts = iter(executor.map(tested_probes, model, units, advance))
    right = np.stack([np.concatenate([next(parts) for _ in some]) for _ in positions])
    table = accuracy_table(prompts[training:], positions, right, seed)
    last = table[(table.operator == ALL) & (table.position == "last")].value.to_numpy()
    return Probe(
        table=table,
        chance=chances(prompts[:training], prompts[training:]),
        best_layer=int(last.argmax()),
        first_answer_layer=int(np.argmax(last >= last.max() / 2)),
        training_prompts=training,
    )


def tested_probes(
    model: Model,
    prompts: Prompts,
    training: int,
    position: str,
    layers: Sequence[int],
    seed: int,
    *,
    advance: Advance,
) -> NDArray[np.bool_]:
    """A unit: train probes on the first prompts, at a position behind some layers; which of the others are right, [layers,
    prompts]."""
    right = []
    for group in _layers_together(model, len(prompts), layers):
        examples = read_states(model, prompts, position, group)
        start = initial(group, model.sizes.width, model.limit, seed, position)
        probes = train(start, examples, training, seed, position, advance)
        right.append(probes.right(examples, torch.arange(training, len(prompts))).cpu().numpy())
    return np.concatenate(right)


def read_states(model: Model, prompts: Prompts, position: str, layers: Sequence[int]) -> Examples:
    """Run the prompts and keep the residual stream at a named position behind each of these layers."""
    at, tail = model.positions.named()[position], model.positions.op2
    # What decides the state at a position is what has been read up to there.
    read = {"op1": [prompts.op1], "operator": [prompts.op1, prompts.operator]}
    key = np.stack(read.get(position, [np.arange(len(prompts))]))
    _, examples, of_prompt = np.unique(key, axis=1, return_index=True, return_inverse=True)
    distinct = prompts[examples]
    states = torch.empty(len(layers), len(distinct), model.sizes.width, dtype=model.hf_model.dtype, device=model.device)

    def store(seen: dict[int, Tensor], rows: NDArray[np.int64]) -> None:
        for i, layer in enumerate(layers):
            states[i, torch.from_numpy(rows).to(states.device)] = seen[layer].to(states.device)

    if at >= tail:
        for block in sweep(model, distinct, residual=layers, keep=lambda x: x[:, at - tail].clone()):
            store(block.seen.residual, block.rows)
    else:
        for rows, batch in batches(model, distinct, 0):
            with torch.no_grad(), capturing(model, residual=layers, keep=lambda x: x[:, at].clone()) as seen:
                model.logits(model.encode(batch))
            store(seen.residual, rows)
    owner, answer = (torch.from_numpy(x.reshape(-1)).to(states.device) for x in (of_prompt, prompts.answer))
    return Examples(states, owner, answer)


def _layers_together(model: Model, prompts: int, layers: Sequence[int]) -> list[Sequence[int]]:
    """All of the layers, or else as many at a time as there is room for."""
    s = model.sizes
    states = prompts * s.width * model.hf_model.dtype.itemsize
    probe = s.width * model.limit * 4 * 4  # weights, their gradient, and Adam's two moments
    size = rows_within(min(storage(model), len(layers) * (states + probe)), states + probe)
    return [layers[start : start + size] for start in range(0, len(layers), size)]


def accuracy_table(tested: Prompts, positions: Sequence[str], right: NDArray[np.bool_], seed: int) -> pd.DataFrame:
    rows = []
    for operator, chosen in _by_operator(tested).items():
        for p, position in enumerate(positions):
            for layer in range(right.shape[1]):
                random = random_source(seed, "probe", operator, position, layer)
                mean = bootstrap_mean(right[p, layer, chosen], random=random)
                rows.append({"operator": operator, "position": position, "layer": layer, **asdict(mean)})
    return pd.DataFrame(rows)


def chances(trained: Prompts, tested: Prompts) -> dict[str, float]:
    answer = np.bincount(trained.answer).argmax()
    return {o: float((tested.answer[chosen] == answer).mean()) for o, chosen in _by_operator(tested).items()}


def _by_operator(prompts: Prompts) -> dict[str, NDArray[np.bool_]]:
    everything = {ALL: np.ones(len(prompts), dtype=np.bool_)}
    return everything | {OPERATORS[i]: prompts.operator == i for i in np.unique(prompts.operator)}
