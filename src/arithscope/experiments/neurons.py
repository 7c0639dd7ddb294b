"""Effect of every single neuron at the last position, from the first answer layer on (Section 3.1).

1. Run the counterfactuals (corrupted run) and keep the activations of the neurons at the last position.
2. Exact patching: rerun the clean prompt once per neuron, with that neuron set to its counterfactual activation.
   Attribution methods estimate the same effects from gradients. `atp+exact` uses exact patching for the neurons that
   attribution patching ranks highest, and its estimates for the others.
3. Average over the discovery prompts. Also report how well attribution methods agree with exact patching, and how well the
   rankings on two halves of the prompts agree (split-half).
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
from arithscope.experiments.common.result import Result, of_operator, strongest
from arithscope.experiments.common.samples import batches, splits
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import effect_reducer, effect_tables
from arithscope.experiments.probe import Probe
from arithscope.heuristics.kinds import Ints
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Prompts, random_source
from arithscope.settings import ATTRIBUTION_THEN_EXACT, EXACT, Settings
from arithscope.stats.effects import EFFECTS
from arithscope.stats.intervals import Floats
from arithscope.utils.executor import Unit, split_evenly
from arithscope.utils.progress import Advance

Effects = NDArray[np.float32]  # layers, neurons, prompts, measures
Layers = Sequence[int]

PRESELECTED = 10  # percent of each layer's neurons for which `atp+exact` uses exact patching
RECALLED = (1, 2, 5, 10, 20)  # percent of each layer's neurons, for the recall of the exact top neurons
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
        """Neurons of each layer by descending effect; exactly patched ones before estimated ones.

        `rank` is `mean` or `mean+std`. The latter favours neurons that matter much on few prompts over neurons that matter a
        little on all.
        """
        rows = of_operator(self.effects, operator, measure)
        by = rows.value if rank == "mean" else rows.value + rows["std"]
        rows = rows.assign(by=by, estimated=rows.method != EXACT)
        ranked = rows.sort_values(["layer", "estimated", "by", "neuron"], ascending=[True, True, False, True])
        return ranked.drop(columns=["by", "estimated"]).reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator in self.operators:
            rows = of_operator(self.effects, operator, "probability")
            exact = rows[rows.method == EXACT]
            best = strongest(rows if exact.empty else exact, lambda row: neuron_name(row.layer, row.neuron))
            out[operator] = {"strongest_neuron": best, "neurons": len(rows), "measured_exactly": len(exact)}
        for row in self.agreement[self.agreement.measure == "probability"].itertuples():
            out[str(row.operator)][f"{row.method}_rank_correlation"] = row.rank_correlation
            out[str(row.operator)][f"{row.method}_recall_of_best_5_percent"] = row.recall_5
        for row in self.split_half[self.split_half.measure == "probability"].itertuples():
            out[str(row.operator)]["split_half"] = row.rank_correlation
            out[str(row.operator)]["split_half_recall_of_best_5_percent"] = row.recall_5
        return out


def neuron_name(layer: int, neuron: int) -> str:
    """`L4N17`."""
    return f"L{layer}N{neuron}"


def _memory(model: Model, settings: Settings) -> int:
    """A replay, and the effects of every neuron on every prompt, exact and estimated."""
    s = model.sizes
    return replay_memory(model, settings) + 8 * len(EFFECTS) * s.layers * s.neurons * settings.sizes.discovery


@dataclass(frozen=True)
class _Task:
    """Neurons of one operator to measure, some of each layer, and the prompts to measure them on."""

    operator: str
    prompts: Prompts
    counterfactuals: Prompts
    layers: Layers
    neurons: Ints  # layers, neurons

    def units(self, *arguments: Any) -> list[Unit]:
        """Units of work: a chunk of the prompts and their counterfactuals, then these arguments."""
        chunks = split_evenly(len(self.prompts), PROMPTS_IN_UNIT)
        return [(self.prompts[c], self.counterfactuals[c], *arguments) for c in chunks]


@stage(needs=(Accuracy, Probe), reads=("sizes", "seed", "neurons", "preselected_by"), memory=_memory, paper="3.1")
def neurons(ctx: Context) -> NeuronEffects:
    """Effect of every neuron of the later MLPs at the last position, by exact patching or attribution."""
    s, method, first = ctx.model.sizes, ctx.settings.neurons, ctx.results[Probe].first_answer_layer
    some = slice(0, ctx.settings.sizes.neurons)
    tasks = []
    for operator, split in splits(ctx).items():
        layers = [first + int(i) for i in ctx.sample(s.layers - first, VERIFIED_LAYERS, "neurons", operator)]
        every = np.tile(np.arange(s.neurons), (len(layers), 1))
        tasks.append(_Task(operator, split.discovery[some], split.counterfactuals[some], layers, every))
    attribution = BEST_METHOD if method == ATTRIBUTION_THEN_EXACT else method
    n_exact = {EXACT: s.neurons, ATTRIBUTION_THEN_EXACT: share_of(s.neurons, PRESELECTED)}.get(method, 0)
    attributions = len(ATTRIBUTION_METHODS) if method == EXACT else 1
    total = sum(len(task.prompts) * (n_exact * len(task.layers) + attributions) for task in tasks)
    tables: list[pd.DataFrame] = []
    split_half, agreement = [], []
    with ctx.progress.task("neurons", total) as advance:
        groups = [task.units(task.layers, attribution) for task in tasks if method != EXACT]
        estimates = [np.concatenate(x, axis=2) for x in ctx.map_groups(attributed_effects, groups, advance)]
        if (by := ctx.settings.preselected_by) is not None:
            means = [x[..., EFFECTS.index(by)].mean(2, dtype=np.float64) for x in estimates]
            tasks = [replace(task, neurons=best_first(x)) for task, x in zip(tasks, means, strict=True)]
        patched = [_some_neurons(ctx, task, slice(0, n_exact)) for task in tasks if n_exact]
        exact = _exact_effects(ctx, patched, advance)
        for i, task in enumerate(tasks):
            parts = [(EXACT, patched[i], exact[i])] if n_exact else []
            if n_exact < s.neurons:
                rest = _some_neurons(ctx, task, slice(n_exact, s.neurons))
                estimated = estimates[i][np.arange(len(rest.layers))[:, None], rest.neurons]
                parts.append((attribution, rest, estimated))
            for used, own, effects in parts:
                layer = np.repeat(np.asarray(own.layers, dtype=np.int32), own.neurons.shape[1])
                columns = {"operator": own.operator, "layer": layer, "neuron": own.neurons.ravel().astype(np.int32)}
                tables += effect_tables({**columns, "method": used}, effects)
            split_half += _split_half(ctx, task.operator, [effects for _, _, effects in parts])
        table = pd.concat(tables, ignore_index=True)[NeuronEffects.columns("effects")]
        whole = ctx.confirmed("effects", table)
        if method == EXACT:
            agreement = _agreement_rows(ctx, tasks, whole, range(first, s.layers), advance)
    agreements = ctx.confirmed("agreement", NeuronEffects.frame("agreement", agreement), ranks=s.neurons)
    halves = ctx.confirmed("split_half", NeuronEffects.frame("split_half", split_half))
    return NeuronEffects(whole, agreements, halves, first)


def _some_neurons(ctx: Context, task: _Task, which: slice) -> _Task:
    """A task with a slice of its neurons: in a study all of the slice, under `verify` a few of each layer."""
    neurons = task.neurons[:, which]
    chosen = ctx.sample(neurons.shape[1], VERIFIED_NEURONS, "neurons", task.operator, "of each layer")
    return replace(task, neurons=neurons[:, chosen])


def _exact_effects(ctx: Context, tasks: Sequence[_Task], advance: Advance) -> list[Effects]:
    """Effects [layers, neurons, prompts, measures] of each task; a unit of work has one layer and some of the prompts."""
    at = ctx.model.positions.last
    groups = [task.units([layer], task.neurons[[i]], at) for task in tasks for i, layer in enumerate(task.layers)]
    by_layer = (np.concatenate(parts, axis=2) for parts in ctx.map_groups(neuron_effects, groups, advance))
    return [np.concatenate([next(by_layer) for _ in task.layers]) for task in tasks]


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


def attributed_sums(
    model: Model, prompts: Prompts, counterfactuals: Prompts, layers: Layers, method: str, *, advance: Advance
) -> Floats:
    """Unit of work: `attributed_effects` summed over prompts, [layers, neurons, measures]."""
    return attributed_effects(model, prompts, counterfactuals, layers, method, advance=advance).sum(2, dtype=np.float64)


def _agreement_rows(
    ctx: Context, tasks: Sequence[_Task], effects: pd.DataFrame, layers: Layers, advance: Advance
) -> list[dict[str, Any]]:
    """Agreement of each attribution method's mean effects with the exact ones, over all neurons."""
    pairs = [(method, i) for method in ATTRIBUTION_METHODS for i in range(len(tasks))]
    chosen = sorted((pairs[i] for i in ctx.sample(len(pairs), 1, "neurons", "agreement")), key=lambda pair: pair[1])
    groups = [tasks[i].units(layers, method) for method, i in chosen]
    rows = []
    for (method, i), parts in zip(chosen, ctx.map_groups(attributed_sums, groups, advance), strict=True):
        operator, estimates = tasks[i].operator, np.sum(parts, axis=0) / len(tasks[i].prompts)
        for j, measure in enumerate(EFFECTS):
            ordered = of_operator(effects, operator, measure).sort_values(["layer", "neuron"])
            agreement = rank_agreement(ordered.value.to_numpy().reshape(len(layers), -1), estimates[..., j])
            named = {"operator": operator, "method": method, "measure": measure}
            rows.append({**named, **dict(zip(_AGREEMENT, agreement, strict=True))})
    return rows


def _split_half(ctx: Context, operator: str, effects: Sequence[Effects]) -> list[dict[Any, Any]]:
    """Agreement of mean effects on two halves of the prompts, from arrays that together hold all neurons of each layer.

    Under `verify`, which has a sample of the neurons only, there is nothing to compare.
    """
    n, random = effects[0].shape[2], random_source(ctx.settings.seed, "split half", operator)

    def halved() -> list[list[float]]:
        """Agreement by each measure, on a random halving."""
        order = random.permutation(n)
        a, b = (
            np.concatenate([part[:, :, rows].mean(2, dtype=np.float64) for part in effects], axis=1)
            for rows in (order[: n // 2], order[n // 2 :])
        )
        return [rank_agreement(a[..., i], b[..., i]) for i in range(len(EFFECTS))]

    if not ctx.complete:
        return []
    if n < 2:
        return [{"operator": operator, "measure": measure} for measure in EFFECTS]
    means = pd.DataFrame(np.mean([halved() for _ in range(SPLITS)], axis=0), columns=list(_AGREEMENT))
    return means.assign(operator=operator, measure=EFFECTS).to_dict("records")


def rank_agreement(a: Floats, b: Floats, percents: Sequence[float] = RECALLED) -> list[float]:
    """Agreement of two rankings, given by values [layers, neurons]: Spearman's rank correlation, then the recalls.

    The recall at a percentage is the share of each layer's top neurons by `a` that are also among its top neurons by `b`.
    """
    ranks = [pd.Series(x.ravel()).rank() for x in (a, b)]
    places = [best_first(x).argsort(1) for x in (a, b)]  # rank of each neuron in its layer
    sizes = [share_of(a.shape[1], percent) for percent in percents]
    shared = [float(((places[0] < k) & (places[1] < k)).sum(1).mean() / k) for k in sizes]
    return [float(ranks[0].corr(ranks[1])), *shared]


def share_of(size: int, percent: float) -> int:
    """Number of neurons in `percent` of a layer, at least one."""
    return max(1, round(size * percent / 100))


def best_first(values: Floats) -> NDArray[np.int64]:
    """Neurons of each layer by descending value [layers, neurons]; ties in the order of neurons."""
    return np.argsort(-values, axis=1, kind="stable")
