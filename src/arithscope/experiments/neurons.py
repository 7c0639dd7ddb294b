"""Effect of every single neuron at the last position, from the first answer layer on (Section 3.1).

1. Run the counterfactuals (corrupted run) and keep the activations of the neurons at the last position.
2. Exact patching: rerun the clean prompt once per neuron, with that neuron set to its counterfactual activation.
   Attribution methods estimate the same effects from gradients; `atp+exact` patches exactly those neurons that attribution
   patching ranks highest.
3. Average over the discovery prompts. Agreement of the attribution methods with exact patching, and of the ranking with itself
   on two halves of the prompts (split-half), are reported beside the effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import schema
from arithscope.experiments.common.attribution import ATTRIBUTION_METHODS, BEST_METHOD, attributed_effects
from arithscope.experiments.common.memory import replay_memory
from arithscope.experiments.common.result import Result, strongest
from arithscope.experiments.common.samples import batches, splits
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.localize import effect_reducer, effect_tables
from arithscope.experiments.probe import Probe
from arithscope.heuristics.kinds import Ints
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Prompts, random_source
from arithscope.settings import ATTRIBUTION_THEN_EXACT, EXACT, Settings
from arithscope.stats.effects import EFFECTS
from arithscope.stats.intervals import Floats
from arithscope.stats.rankings import best_first, rank_agreement, share_of
from arithscope.utils.executor import Function, split_evenly
from arithscope.utils.progress import Advance

Effects = NDArray[np.float32]  # layers, neurons, prompts, measures
Layers = Sequence[int]

PRESELECTED = 10  # per cent of each layer's neurons that `atp+exact` patches exactly
RECALLED = (1, 2, 5, 10, 20)  # per cent of each layer's neurons, for the recall of the exact top neurons
PROMPTS_IN_UNIT = 64  # recording prompts costs as much as patching a few hundred neurons
SPLITS = 4  # random halvings that the split-half agreement is averaged over
VERIFIED_LAYERS, VERIFIED_NEURONS = 3, 16  # layers of each operator, and neurons of each, that `verify` patches again
_AGREEMENT = ("rank_correlation", *(f"recall_{percent}" for percent in RECALLED))
_AGREEMENT_COLUMNS = (
    schema.number("rank_correlation", "Spearman's rank correlation of mean effects over all neurons"),
    *(schema.number(f"recall_{p}", f"share of each layer's top {p} % in the other's top {p} %") for p in RECALLED),
)


@dataclass(frozen=True, repr=False)
class NeuronEffects(Result):
    """Effects of single neurons, and how reliable their ranking is."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each neuron at the last position with its counterfactual activation.",
        *schema.NEURON_KEY,
        schema.EFFECT_MEASURE,
        schema.text("method", "`exact` patching, or the attribution method that estimated the effect"),
        *schema.EFFECT_COLUMNS,
        schema.number("std", "standard deviation over prompts"),
    )
    agreement: pd.DataFrame = schema.table(
        "Agreement of attribution methods with exact patching; empty unless all effects are exact.",
        schema.OPERATOR,
        schema.text("method", "attribution method: `atp`, `ig` or `relp`", key=True),
        schema.EFFECT_MEASURE,
        *_AGREEMENT_COLUMNS,
    )
    split_half: pd.DataFrame = schema.table(
        "Agreement of the effects on two halves of the prompts, averaged over random halvings; NaN with fewer than 2 prompts.",
        schema.OPERATOR,
        schema.EFFECT_MEASURE,
        *_AGREEMENT_COLUMNS,
    )
    first_layer: int = schema.value("first layer whose neurons were measured: the first answer layer")

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.effects.operator.unique()]

    def ranking(self, operator: str, measure: str, rank: str = "mean") -> pd.DataFrame:
        """Neurons of each layer in order of falling effect; exactly patched ones before estimated ones.

        `rank` is `mean`, or `mean+std`, by which a neuron that matters much on few prompts overtakes one that matters a
        little on all.
        """
        rows = self._rows(operator, measure)
        by = rows.value if rank == "mean" else rows.value + rows["std"]
        order = ["layer", "estimated", "by", "neuron"]
        rows = rows.assign(by=by, estimated=rows.method != EXACT)
        ranked = rows.sort_values(order, ascending=[True, True, False, True])
        return ranked.drop(columns=["by", "estimated"]).reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator in self.operators:
            rows = self._rows(operator, "probability")
            exact = rows[rows.method == EXACT]
            best = strongest(rows if exact.empty else exact, lambda row: neuron_name(row.layer, row.neuron))
            out[operator] = {"strongest_neuron": best, "neurons": len(rows), "measured_exactly": len(exact)}
        for row in self.agreement[self.agreement.measure == "probability"].itertuples():
            out[str(row.operator)][f"{row.method}_rank_correlation"] = row.rank_correlation
            out[str(row.operator)][f"{row.method}_recall_of_best_5_percent"] = row.recall_5
        for row in self.split_half[self.split_half.measure == "probability"].itertuples():
            recall = {"split_half_recall_of_best_5_percent": row.recall_5}
            out[str(row.operator)] |= {"split_half": row.rank_correlation, **recall}
        return out

    def _rows(self, operator: str, measure: str) -> pd.DataFrame:
        return self.effects[(self.effects.operator == operator) & (self.effects.measure == measure)]


def neuron_name(layer: int, neuron: int) -> str:
    """`L4N17`."""
    return f"L{layer}N{neuron}"


def _neurons_memory(model: Model, settings: Settings) -> int:
    """A replay, and the effects of every neuron on every prompt, exact and estimated."""
    s = model.sizes
    return replay_memory(model, settings) + 8 * len(EFFECTS) * s.layers * s.neurons * settings.sizes.discovery


@dataclass(frozen=True)
class _Task:
    """Some neurons of some layers of one operator, and the prompts they are measured on."""

    operator: str
    prompts: Prompts
    counterfactuals: Prompts
    layers: Sequence[int]
    neurons: Ints  # layers, neurons


@stage(
    needs=(Accuracy, Probe), reads=("sizes", "seed", "neurons", "preselected_by"), memory=_neurons_memory, paper="3.1"
)
def neurons(ctx: Context) -> NeuronEffects:
    """Effect of every neuron of the later MLPs at the last position, by exact patching or attribution."""
    method, first, size = ctx.settings.neurons, ctx.results[Probe].first_answer_layer, ctx.model.sizes.neurons
    tasks, some, later = [], slice(0, ctx.settings.sizes.neurons), ctx.model.sizes.layers - first
    sources = {}
    for operator, split in splits(ctx).items():
        sources[operator] = random_source(ctx.settings.seed, "neurons", operator)
        layers = [first + int(i) for i in ctx.sample(later, VERIFIED_LAYERS, "neurons", operator)]
        every = np.tile(np.arange(size), (len(layers), 1))
        tasks.append(_Task(operator, split.discovery[some], split.counterfactuals[some], layers, every))
    selected = share_of(size, PRESELECTED)
    exactly = {EXACT: size, ATTRIBUTION_THEN_EXACT: selected}.get(method, 0)
    attributions = len(ATTRIBUTION_METHODS) if method == EXACT else 1
    total = sum(len(task.prompts) * (exactly * len(task.layers) + attributions) for task in tasks)
    tables, split_half = [], []
    with ctx.progress.task("neurons", total) as advance:
        if method == EXACT:
            tasks = [_sampled(ctx, task) for task in tasks]
            for task, effects in zip(tasks, _exact_effects(ctx, tasks, advance), strict=True):
                tables.append(_effect_table(ctx, task, EXACT, effects, sources[task.operator]))
                split_half += _split_half(ctx, task.operator, [effects])
        else:
            attribution = BEST_METHOD if method == ATTRIBUTION_THEN_EXACT else method
            parts = _by_prompts(ctx, attributed_effects, tasks, attribution, advance)
            estimates, by = [np.concatenate(part, axis=2) for part in parts], ctx.settings.preselected_by
            groups = [_preselected(task, x, by, selected) for task, x in zip(tasks, estimates, strict=True)]
            exact = _exact_effects(ctx, [_sampled(ctx, top) for top, _ in groups if top is not None], advance)
            for i, (top, rest) in enumerate(groups):
                if top is not None:
                    tables.append(_effect_table(ctx, _sampled(ctx, top), EXACT, exact[i], sources[top.operator]))
                rest = _sampled(ctx, rest)
                estimated = estimates[i][np.arange(len(rest.layers))[:, None], rest.neurons]
                tables.append(_effect_table(ctx, rest, attribution, estimated, sources[rest.operator]))
                split_half += _split_half(ctx, rest.operator, [*exact[i : i + 1], estimated])
        whole = ctx.confirmed("effects", pd.concat(tables, ignore_index=True))
        agreement = _agreement_table(ctx, tasks, whole, first, advance) if method == EXACT else []
    agreements = pd.DataFrame(agreement, columns=["operator", "method", "measure", *_AGREEMENT])
    halves = pd.DataFrame(split_half, columns=["operator", "measure", *_AGREEMENT])
    confirmed = ctx.confirmed("agreement", agreements, ranks=size), ctx.confirmed("split_half", halves)
    return NeuronEffects(whole, *confirmed, first)


def _sampled(ctx: Context, task: _Task) -> _Task:
    """The neurons of a task that are computed: all of them, but under `verify` a few of each layer."""
    chosen = ctx.sample(task.neurons.shape[1], VERIFIED_NEURONS, "neurons", task.operator, "of each layer")
    return replace(task, neurons=task.neurons[:, chosen])


def _preselected(task: _Task, estimates: Effects, by: str | None, selected: int) -> tuple[_Task | None, _Task]:
    """Split a task into the neurons to patch exactly and the rest; None if all are only estimated."""
    if by is None:
        return None, task
    order = best_first(estimates[..., EFFECTS.index(by)].mean(2, dtype=np.float64))
    return replace(task, neurons=order[:, :selected]), replace(task, neurons=order[:, selected:])


def _exact_effects(ctx: Context, tasks: Sequence[_Task], advance: Advance) -> list[Effects]:
    """Effects [layers, neurons, prompts, measures] of each task; a unit of work has one layer and some of the prompts."""
    chunks = [split_evenly(len(task.prompts), PROMPTS_IN_UNIT) for task in tasks]
    units = [
        (task.prompts[c], task.counterfactuals[c], [layer], task.neurons[i : i + 1], ctx.model.positions.last)
        for task, own in zip(tasks, chunks, strict=True)
        for i, layer in enumerate(task.layers)
        for c in own
    ]
    parts = iter(ctx.map(neuron_effects, units, advance))
    return [
        np.concatenate([np.concatenate([next(parts) for _ in own], axis=2) for _ in task.layers])
        for task, own in zip(tasks, chunks, strict=True)
    ]


def neuron_effects(
    model: Model, prompts: Prompts, counterfactuals: Prompts, layers: Layers, chosen: Ints, at: int, *, advance: Advance
) -> Effects:
    """Unit of work: effects of patching some neurons of each layer, one at a time: [layers, neurons, prompts, measures]."""
    found = np.empty((*chosen.shape, len(prompts), len(EFFECTS)), np.float32)
    for rows, batch in batches(model, prompts, 0):
        corrupted = counterfactuals[rows]
        with torch.no_grad(), capturing(model, neurons=layers, keep=lambda x: x[:, at].clone()) as seen:
            model.logits(model.encode(corrupted))
        reduce = effect_reducer(model, batch, corrupted, advance)
        tape = model.engine.record(model, model.encode(batch), at, neurons=layers)
        for i, layer in enumerate(layers):
            which = torch.from_numpy(chosen[i])
            values = seen.neurons[layer][:, which.to(seen.neurons[layer].device)].T
            found[i][:, rows] = model.engine.replay_neurons(tape, layer, which, values, reduce, at).cpu().numpy()
    return found


def _by_prompts(ctx: Context, function: Function, tasks: list[_Task], method: str, advance: Advance) -> list[list[Any]]:
    """By task, what an attribution method gives for some of its prompts at a time."""
    chunks = [split_evenly(len(task.prompts), PROMPTS_IN_UNIT) for task in tasks]
    units = [
        (task.prompts[c], task.counterfactuals[c], task.layers, method)
        for task, own in zip(tasks, chunks, strict=True)
        for c in own
    ]
    parts = iter(ctx.map(function, units, advance))
    return [[next(parts) for _ in own] for own in chunks]


def attributed_sums(
    model: Model, prompts: Prompts, counterfactuals: Prompts, layers: Sequence[int], method: str, *, advance: Advance
) -> Floats:
    """Unit of work: `attributed_effects` summed over prompts, [layers, neurons, measures]."""
    return attributed_effects(model, prompts, counterfactuals, layers, method, advance).sum(2, dtype=np.float64)


def _effect_table(
    ctx: Context, task: _Task, method: str, effects: Effects, random: np.random.Generator
) -> pd.DataFrame:
    """Statistics of effects [layers, neurons, prompts, measures]."""
    columns = {
        "operator": task.operator,
        "layer": np.repeat(np.asarray(task.layers, dtype=np.int32), task.neurons.shape[1]),
        "neuron": task.neurons.ravel().astype(np.int32),
    }
    table = pd.concat(effect_tables(columns, effects, random, ctx.model.device, std=True))
    table.insert(list(table).index("value"), "method", method)
    return table


def _agreement_table(
    ctx: Context, tasks: Sequence[_Task], effects: pd.DataFrame, first: int, advance: Advance
) -> list[dict[str, Any]]:
    """Agreement of each attribution method's mean effects with the exact ones, over all neurons."""
    layers = range(first, ctx.model.sizes.layers)
    pairs = [(method, task) for method in ATTRIBUTION_METHODS for task in tasks]
    chosen = [pairs[i] for i in ctx.sample(len(pairs), 1, "neurons", "agreement")]
    rows = []
    for method in ATTRIBUTION_METHODS:
        own = [replace(task, layers=layers) for m, task in chosen if m == method]
        for task, parts in zip(own, _by_prompts(ctx, attributed_sums, own, method, advance), strict=True):
            estimates = np.sum(parts, axis=0) / len(task.prompts)
            for i, measure in enumerate(EFFECTS):
                mine = effects[(effects.operator == task.operator) & (effects.measure == measure)]
                exact = mine.sort_values(["layer", "neuron"]).value.to_numpy().reshape(len(layers), -1)
                named = {"operator": task.operator, "method": method, "measure": measure}
                rows.append({**named, **_agreement(exact, estimates[..., i])})
    order = {task.operator: i for i, task in enumerate(tasks)}
    return sorted(rows, key=lambda row: order[row["operator"]])


def _split_half(ctx: Context, operator: str, effects: Sequence[Effects]) -> list[dict[str, Any]]:
    """Agreement of mean effects on two halves of the prompts, from arrays that together hold all neurons of each layer.

    Under `verify`, which has a sample of the neurons only, there is nothing to compare.
    """
    n, random = effects[0].shape[2], random_source(ctx.settings.seed, "split half", operator)
    if not ctx.complete:
        return []
    if n < 2:
        return [{"operator": operator, "measure": measure} for measure in EFFECTS]
    agreement: list[list[list[float]]] = [[] for _ in EFFECTS]
    for _ in range(SPLITS):
        order = random.permutation(n)
        a, b = (
            np.concatenate([part[:, :, rows].mean(2, dtype=np.float64) for part in effects], axis=1)
            for rows in (order[: n // 2], order[n // 2 :])
        )
        for i, by_measure in enumerate(agreement):
            by_measure.append(list(_agreement(a[..., i], b[..., i]).values()))
    means = [dict(zip(_AGREEMENT, np.mean(values, axis=0).tolist(), strict=True)) for values in agreement]
    return [{"operator": operator, "measure": m, **mean} for m, mean in zip(EFFECTS, means, strict=True)]


def _agreement(a: Floats, b: Floats) -> dict[str, float]:
    correlation, recalls = rank_agreement(a, b, RECALLED)
    return dict(zip(_AGREEMENT, (correlation, *recalls), strict=True))
