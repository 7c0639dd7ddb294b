"""Linear probes: at which layer and position can the answer be read off the residual stream? (Section 2.2, Appendix G)

A linear classifier from the residual stream to the answer is trained for every layer and position. The *first answer layer* is
the first layer whose accuracy at the last position reaches half of the best layer's.

The probes of several layers are trained together in one batched optimisation. Adam updates every weight independently and no
weight belongs to two probes, so each probe ends up as if trained alone. On a GPU a training step is captured as a CUDA graph,
because launching its kernels one by one takes longer than running them. It multiplies in TF32, whose rounding is far below the
noise of a batch of 32; bfloat16 states are exact in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result, mean_entry
from arithscope.experiments.common.samples import Places, batches, places_of_units, probe_split
from arithscope.experiments.common.stage import Context, stage, sweep_memory
from arithscope.models.hooks import capturing
from arithscope.models.memory import storage
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, random_source
from arithscope.settings import Settings, stratum_of
from arithscope.stats.intervals import share_of
from arithscope.utils.out_of_memory import rows_within
from arithscope.utils.progress import Advance
from arithscope.utils.threads import thread_pool

ALL = "all"  # test prompts of all operators together, as in the paper
LAYERS_IN_UNIT = 16  # smaller units would be slower to read and to train
VERIFIED_PROBES = 2  # probes that `verify` trains again
LEARNING_RATE, BATCH, EPOCHS = 3e-4, 32, 20
STEPS_PER_REPORT = 64

States = Float[Tensor, "layers rows width"]
Rows = Int[Tensor, " rows"]


@dataclass(frozen=True, repr=False)
class Probe(Result):
    """Accuracy of linear probes, and the layers at which the answer appears."""

    table: pd.DataFrame = schema.table(
        "Test accuracy of the probe after each layer at each position.",
        schema.text("operator", "operator of the test prompts, or `all`", key=True),
        schema.POSITION,
        schema.LAYER,
        *schema.MEAN_COLUMNS,
    )
    chance: dict[str, float] = schema.value("accuracy of always giving the training prompts' most frequent answer")
    best_layer: int = schema.value("layer with the highest accuracy at the last position")
    first_answer_layer: int = schema.value("first layer that reaches half of the best accuracy at the last position")
    training_prompts: int = schema.value("number of training prompts")
    final: str = schema.value(
        "last position, at which the model answers: `last`, or `answer.1` in the second answer step"
    )

    def at_final(self) -> pd.DataFrame:
        """The rows of `table` at the last position."""
        return self.table[self.table.position == self.final]

    def summary(self) -> dict[str, Any]:
        rows = self.at_final()
        rows = rows[rows.layer == self.best_layer]
        out: dict[str, Any] = {}
        for row in rows.to_dict("records"):
            out[str(row["operator"])] = {"best_accuracy": mean_entry(row), "chance": self.chance[str(row["operator"])]}
        out[ALL] |= {"best_layer": self.best_layer, "first_answer_layer": self.first_answer_layer}
        return out


def _memory(model: Model, settings: Settings) -> int:
    """A sweep, the residual stream of all prompts, and the probes' weights, gradients and moments."""
    s = model.sizes
    prompts = min(len(stratum_of(model, settings).prompts(settings.operators)), settings.sizes.probe)
    states = s.layers * s.width * (prompts * model.hf_model.dtype.itemsize + 16 * model.limit)
    return sweep_memory(model, settings) + min(states, storage(model))


@stage(needs=(Accuracy,), reads=("sizes", "seed"), memory=_memory, paper="2.2, App. G")
def probe(ctx: Context) -> Probe:
    """Accuracy of linear probes from the residual stream to the answer, by layer and position."""
    seed, (prompts, training) = ctx.settings.seed, probe_split(ctx)
    places = places_of_units(ctx, LAYERS_IN_UNIT, VERIFIED_PROBES, "probe")
    probes = [(position, layer) for position, layers in places for layer in layers]
    together = _read_together(ctx.model, places)
    units = [(prompts, training, positions, layers, seed) for positions, layers in together]
    with ctx.progress.task("probe", len(probes) * training_steps(training)) as advance:
        parts = ctx.map(tested_probes, units, advance)
    found = {
        (position, layer): part[i, j]
        for (positions, layers), part in zip(together, parts, strict=True)
        for i, position in enumerate(positions)
        for j, layer in enumerate(layers)
    }
    correct = [found[probe] for probe in probes]
    tested, rows = prompts[training:], []
    by_operator = {ALL: np.ones(len(tested), dtype=np.bool_)}
    by_operator |= {OPERATORS[i]: tested.operator == i for i in np.unique(tested.operator)}
    for operator, own in by_operator.items():
        for (position, layer), of_probe in zip(probes, correct, strict=True):
            mean = share_of(of_probe[own])
            rows.append({"operator": operator, "position": position, "layer": layer, **asdict(mean)})
    table = ctx.confirmed("table", pd.DataFrame(rows), trained=True)
    final = ctx.model.positions.final_name
    last = table[(table.operator == ALL) & (table.position == final)].sort_values("layer").value.to_numpy()
    most_frequent = np.bincount(prompts[:training].result).argmax()
    chance = {o: float((tested.result[own] == most_frequent).mean()) for o, own in by_operator.items()}
    return Probe(table, chance, int(last.argmax()), int(np.argmax(last >= last.max() / 2)), training, final)


def _read_together(model: Model, places: Places) -> list[tuple[list[str], list[int]]]:
    """Positions and layers of each unit of work. Positions from op2 on are read in one sweep, so they are in one unit."""
    units: list[tuple[list[str], list[int]]] = []
    named, late = model.positions.named(), dict[tuple[int, ...], list[str]]()
    for position, layers in places:
        if named[position] < model.positions.op2 or tuple(layers) not in late:
            units.append(([position], list(layers)))
            if named[position] >= model.positions.op2:
                late[tuple(layers)] = units[-1][0]
        else:
            late[tuple(layers)].append(position)
    return units


def tested_probes(
    model: Model,
    prompts: Prompts,
    training: int,
    positions: Sequence[str],
    layers: Sequence[int],
    seed: int,
    *,
    advance: Advance,
) -> NDArray[np.bool_]:
    """Unit of work: train probes on the first prompts and test them on the rest: correctness [positions, layers, test prompts].
    Several positions must all be from op2 on."""
    correct = []
    for group in _layers_together(model, len(positions) * len(prompts), layers):
        at_positions = []
        for position, examples in zip(positions, read_states(model, prompts, positions, group), strict=True):
            start = initial_probes(group, model.sizes.width, model.limit, seed, position)
            probes = train(start, examples, training, seed, position, advance)
            at_positions.append(probes.correct(examples, torch.arange(training, len(prompts))).cpu().numpy())
        correct.append(np.stack(at_positions))
    return np.concatenate(correct, axis=1)


@dataclass(frozen=True)
class Examples:
    """Residual stream at one position after some layers, and the answers to predict.

    Prompts that agree up to the position share their state (at op1 only the first operand has been read), so states are kept
    once and `of_prompt` maps prompts to them.
    """

    states: Float[Tensor, "layers distinct width"]
    of_prompt: Int[Tensor, " prompts"]
    answer: Int[Tensor, " prompts"]

    def __getitem__(self, rows: Rows) -> tuple[States, Rows]:
        return self.states[:, self.of_prompt[rows]].float(), self.answer[rows]


@dataclass(frozen=True)
class LinearProbes:
    matrix: Float[Tensor, "layers width answers"]
    bias: Float[Tensor, "layers 1 answers"]

    def logits(self, states: States) -> Float[Tensor, "layers rows answers"]:
        return torch.baddbmm(self.bias, states, self.matrix)

    def correct(self, examples: Examples, rows: Rows) -> Bool[Tensor, "layers rows"]:
        """Whether each probe classifies each of these examples correctly."""
        parts = []
        for chunk in rows.to(examples.answer.device).split(4096):
            states, answer = examples[chunk]
            parts.append(self.logits(states).argmax(-1) == answer)
        return torch.cat(parts, dim=1)


def read_states(model: Model, prompts: Prompts, positions: Sequence[str], layers: Sequence[int]) -> list[Examples]:
    """Residual stream after each of these layers at a named position, or in one sweep at several from op2 on."""
    at, tail = [model.positions.named()[name] for name in positions], model.positions.op2
    prefix = {"op1": [prompts.op1], "operator": [prompts.op1, prompts.operator]}
    key = np.stack(prefix.get(positions[0].partition(".")[0], [np.arange(len(prompts))]))
    _, first, of_prompt = np.unique(key, axis=1, return_index=True, return_inverse=True)
    distinct = prompts[first]
    shape = len(at), len(layers), len(distinct), model.sizes.width
    states = torch.empty(shape, dtype=model.hf_model.dtype, device=model.device)

    def store(activations: dict[int, Tensor], rows: NDArray[np.int64]) -> None:
        chosen = torch.from_numpy(rows).to(states.device)
        for i, layer in enumerate(layers):
            states[:, i, chosen] = activations[layer].transpose(0, 1).to(states.device)

    if min(at) >= tail:
        behind = [x - tail for x in at]
        for block in model.engine.sweep(model, distinct, residual=layers, keep=lambda x: x[:, behind]):
            store(block.activations.residual, block.rows)
    else:
        for rows, batch in batches(model, distinct, 0):
            with torch.no_grad(), capturing(model, residual=layers, keep=lambda x: x[:, at]) as activations:
                model.logits(model.encode(batch))
            store(activations.residual, rows)
    indices = [torch.from_numpy(x.reshape(-1)).to(states.device) for x in (of_prompt, prompts.result)]
    return [Examples(own, *indices) for own in states]


def _layers_together(model: Model, prompts: int, layers: Sequence[int]) -> list[Sequence[int]]:
    """Split layers into groups whose states and probes fit in memory."""
    s = model.sizes
    states = prompts * s.width * model.hf_model.dtype.itemsize
    probe = s.width * model.limit * 4 * 4  # weights, gradient, and Adam's two moments
    size = rows_within(min(storage(model), len(layers) * (states + probe)), states + probe)
    return [layers[start : start + size] for start in range(0, len(layers), size)]


def initial_probes(layers: Sequence[int], width: int, answers: int, seed: int, name: str) -> LinearProbes:
    """Initial weights as in PyTorch's linear layer, uniform in ± 1/√width. Each layer has its own random source."""
    bound = width**-0.5

    def one_layer(layer: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        source = random_source(seed, "probe start", name, layer)
        return source.uniform(-bound, bound, (width, answers)), source.uniform(-bound, bound, (1, answers))

    with thread_pool() as pool:
        parts = zip(*pool.map(one_layer, layers), strict=True)
        return LinearProbes(*(torch.from_numpy(np.stack(x).astype(np.float32)) for x in parts))


def training_steps(examples: int) -> int:
    return EPOCHS * -(-examples // BATCH)


def train(
    start: LinearProbes, examples: Examples, training: int, seed: int, name: str, advance: Advance
) -> LinearProbes:
    """Fit all probes to the first `training` examples with Adam. All layers see the examples in the same order."""
    device = examples.states.device
    probes = LinearProbes(start.matrix.to(device, copy=True), start.bias.to(device, copy=True))
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.Adam((probes.matrix, probes.bias), LEARNING_RATE, fused=True, capturable=on_gpu)
    orders = _orders(training, seed, name).to(device)
    steps_done = torch.zeros(1, dtype=torch.long, device=device)
    rows = torch.arange(BATCH, device=device)

    def step() -> None:
        order = orders.index_select(0, steps_done)[0]
        states, answer = examples[order.clamp(min=0)]
        # The gradient of the mean cross-entropy in closed form: probabilities, minus 1 at the answer.
        gradient = probes.logits(states).softmax(-1)
        gradient[:, rows, answer] -= 1
        gradient *= ((order >= 0) / (order >= 0).sum())[:, None]
        probes.matrix.grad, probes.bias.grad = states.mT @ gradient, gradient.sum(1, keepdim=True)
        optimizer.step()
        steps_done.add_(1)

    def reset() -> None:
        """Undo all steps taken so far."""
        probes.matrix.copy_(start.matrix)
        probes.bias.copy_(start.bias)
        for x in [steps_done, *(x for state in optimizer.state.values() for x in state.values())]:
            x.zero_()

    take_step = _recorded(step, reset, device) if on_gpu else step
    for i in range(len(orders)):
        take_step()
        if (i + 1) % STEPS_PER_REPORT == 0 or i + 1 == len(orders):
            if on_gpu:
                torch.cuda.synchronize(device)  # report steps that are done, not only launched
            advance((i % STEPS_PER_REPORT + 1) * len(probes.matrix))
    return probes


def _recorded(step: Callable[[], None], reset: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step captured as a CUDA graph, in TF32."""
    graph, precision = torch.cuda.CUDAGraph(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        step()  # allocates what cannot be allocated while a graph is recorded
        reset()
        with torch.cuda.device(device):  # a graph belongs to the current device, by default the first
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                step()
    finally:
        torch.set_float32_matmul_precision(precision)
    return graph.replay


def _orders(training: int, seed: int, name: str) -> Int[Tensor, "steps rows"]:
    """Examples of each step of all epochs; the last step of an epoch is padded with −1."""
    orders = np.full((EPOCHS, -(-training // BATCH) * BATCH), -1)
    for epoch in range(EPOCHS):
        orders[epoch, :training] = random_source(seed, "probe order", name, epoch).permutation(training)
    return torch.from_numpy(orders.reshape(-1, BATCH))
