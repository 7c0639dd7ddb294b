"""Effect of every single neuron of the answer layers at the last position (Section 3.1).

1. Run the counterfactuals (corrupted run) and keep the activations of the neurons at the last position.
2. Exact patching: rerun the clean prompt once per neuron, with that neuron set to its counterfactual activation.
   Attribution methods estimate the same effects from gradients. `atp+exact` uses exact patching for the neurons that
   attribution patching ranks highest, and its estimates for the others.
3. Average over the discovery prompts. Also report how well attribution methods agree with exact patching, how well the
   rankings on two halves of the prompts agree (split-half), and how well rankings by different effect measures do.

The paper ranks neurons by the mean of their effects. A neuron that raises some answers and lowers others has a mean near zero,
so that ranking is mostly noise; the mean of absolute effects is not (docs/statistics.md compares them).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.answer_layers import AnswerLayers
from arithscope.experiments.common import schema
from arithscope.experiments.common.attribution import ATTRIBUTION_METHODS, BEST_METHOD, attributed_effects
from arithscope.experiments.common.ranking import (
    AGREEMENT,
    RECALLED,
    best_first,
    percent_of,
    rank_agreement,
    rank_statistic,
    rounded,
)
from arithscope.experiments.common.result import Result, of_operator, strongest
from arithscope.experiments.common.samples import batches, splits
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import effect_reducer, effect_tables
from arithscope.experiments.probe import Probe
from arithscope.heuristics.kinds import Ints
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Prompts, random_source
from arithscope.settings import (
    ATTRIBUTION_THEN_EXACT,
    CAUSE,
    EXACT,
    MEAN,
    MEAN_ABS,
    MEAN_STD,
    RANKINGS,
    Settings,
)
from arithscope.stats.effects import EFFECTS
from arithscope.stats.intervals import Floats
from arithscope.utils.executor import Unit, split_evenly
from arithscope.utils.progress import Advance

Effects = NDArray[np.float32]  # layers, neurons, prompts, measures
Layers = Sequence[int]

COMPARED = {
    MEAN: "value",
    MEAN_ABS: "mean_abs",
}  # rankings by which methods and measures are compared, with their columns
PRESELECTED = 10  # percent of each layer's neurons for which `atp+exact` uses exact patching
PROMPTS_IN_UNIT = 64  # recording prompts costs as much as patching a few hundred neurons
SPLITS = 4  # random halvings that the split-half agreement is averaged over
VERIFIED_LAYERS, VERIFIED_NEURONS = 3, 16  # layers of each operator, and neurons of each, that `verify` patches again
_RANKING = schema.text(
    "ranking", "statistic of the effects that ranks neurons: `mean`, `mean_abs` or `mean+std`", key=True
)
_AGREEMENT_COLUMNS = (
    schema.number("rank_correlation", "Spearman's rank correlation over all neurons"),
    *(schema.number(f"recall_{p}", f"share of each layer's top {p} % in the other's top {p} %") for p in RECALLED),
)


@dataclass(frozen=True, repr=False)
class NeuronEffects(Result):
    """Effects of single neurons, and how reliable their ranking is."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each neuron at the last position with its counterfactual activation.",
        *schema.NEURON_KEY,
        schema.EFFECT_MEASURE,
        schema.METHOD,
        *schema.EFFECT_COLUMNS,
    )
    agreement: pd.DataFrame = schema.table(
        "Agreement of attribution methods with exact patching; empty unless all effects are exact.",
        schema.OPERATOR,
        schema.text("method", "attribution method: `atp`, `ig` or `relp`", key=True),
        schema.EFFECT_MEASURE,
        _RANKING,
        *_AGREEMENT_COLUMNS,
    )
    split_half: pd.DataFrame = schema.table(
        "Agreement of the effects on two halves of the prompts, averaged over random halvings; NaN with fewer than 2 prompts.",
        schema.OPERATOR,
        schema.EFFECT_MEASURE,
        _RANKING,
        *_AGREEMENT_COLUMNS,
    )
    measures: pd.DataFrame = schema.table(
        "Agreement of the ranking by an effect measure with the ranking by `probability`, the paper's measure.",
        schema.OPERATOR,
        schema.EFFECT_MEASURE,
        _RANKING,
        *_AGREEMENT_COLUMNS,
    )
    first_layer: dict[str, int] = schema.value("first layer whose neurons were measured, by operator")
    layers_by: str = schema.value("how these layers were found: by `cause` or by `probe`")

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.effects.operator.unique()]

    def ranking(self, operator: str, measure: str, rank: str = MEAN_ABS) -> pd.DataFrame:
        """Neurons of each layer by a descending statistic of their effects; exactly patched ones before estimated ones.

        `rank` is `mean` (the paper's), `mean_abs` or `mean+std`. Among neurons whose statistics differ by no more than rounding
        does, the one with the smaller number comes first.
        """
        rows = of_operator(self.effects, operator, measure)
        rows = rows.assign(by=rounded(self.statistic(rows, rank)), estimated=rows.method != EXACT)
        ranked = rows.sort_values(["layer", "estimated", "by", "neuron"], ascending=[True, True, False, True])
        return ranked.drop(columns=["by", "estimated"]).reset_index(drop=True)

    @staticmethod
    def statistic(rows: pd.DataFrame, rank: str) -> "pd.Series[float]":
        """The statistic that ranks neurons, for rows of `effects`."""
        return {MEAN: rows.value, MEAN_ABS: rows.mean_abs, MEAN_STD: rows.value + rows["std"]}[rank]

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator in self.operators:
            rows = of_operator(self.effects, operator, "probability")
            exact = rows[rows.method == EXACT]
            best = strongest(rows if exact.empty else exact, lambda row: neuron_name(row.layer, row.neuron))
            out[operator] = {"first_layer": self.first_layer[operator], "strongest_neuron": best, "neurons": len(rows)}
            out[operator]["measured_exactly"] = len(exact)
        for row in self.split_half[self.split_half.measure == "probability"].itertuples():
            out[str(row.operator)][f"split_half_by_{row.ranking}"] = row.rank_correlation
            out[str(row.operator)][f"split_half_recall_of_best_5_percent_by_{row.ranking}"] = row.recall_5
        for row in self.agreement[self.agreement.measure == "probability"].itertuples():
            out[str(row.operator)][f"{row.method}_rank_correlation_by_{row.ranking}"] = row.rank_correlation
            out[str(row.operator)][f"{row.method}_recall_of_best_5_percent_by_{row.ranking}"] = row.recall_5
        for row in self.measures.itertuples():
            out[str(row.operator)][f"{row.measure}_against_probability_by_{row.ranking}"] = row.rank_correlation
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


@stage(
    needs=(Accuracy, Probe, AnswerLayers),
    reads=("sizes", "seed", "neurons", "preselected_by", "layers_by"),
    memory=_memory,
    paper="3.1",
)
def neurons(ctx: Context) -> NeuronEffects:
    """Effect of every neuron of the answer layers at the last position, by exact patching or attribution."""
    s, method, samples = ctx.model.sizes, ctx.settings.neurons, splits(ctx)
    by_probe, by_cause = ctx.results[Probe].first_answer_layer, ctx.results[AnswerLayers]
    first = dict.fromkeys(samples, by_probe)
    if ctx.settings.layers_by == CAUSE:
        # Where the answer needs no MLP at the last position, the probe's layers are those where at least it can be read.
        first |= {o: by_cause.first_layer[o] for o in samples if by_cause.needed(o)}
    some = slice(0, ctx.settings.sizes.neurons)
    tasks = []
    for operator, split in samples.items():
        n_layers = s.layers - first[operator]
        layers = [first[operator] + int(i) for i in ctx.sample(n_layers, VERIFIED_LAYERS, "neurons", operator)]
        every = np.tile(np.arange(s.neurons), (len(layers), 1))
        tasks.append(_Task(operator, split.discovery[some], split.counterfactuals[some], layers, every))
    attribution, n_exact = method_of(ctx), number_exact(ctx)
    attributions = len(ATTRIBUTION_METHODS) if method == EXACT else 1
    total = sum(len(task.prompts) * (n_exact * len(task.layers) + attributions) for task in tasks)
    tables: list[pd.DataFrame] = []
    split_half, agreement = [], []
    with ctx.progress.task("neurons", total) as advance:
        at = ctx.model.positions.final
        groups = [task.units(task.layers, attribution, at) for task in tasks if method != EXACT]
        estimates = [np.concatenate(x, axis=2) for x in ctx.map_groups(attributed_effects, groups, advance)]
        if (by := ctx.settings.preselected_by) is not None:
            statistics = [rank_statistic(x[..., EFFECTS.index(by[0])], by[1]) for x in estimates]
            tasks = [replace(task, neurons=best_first(x)) for task, x in zip(tasks, statistics, strict=True)]
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
            complete = [replace(task, layers=range(first[task.operator], s.layers)) for task in tasks]
            agreement = _agreement_rows(ctx, complete, whole, advance)
    agreements = ctx.confirmed("agreement", NeuronEffects.frame("agreement", agreement), ranks=s.neurons)
    halves = ctx.confirmed("split_half", NeuronEffects.frame("split_half", split_half))
    measures = NeuronEffects.frame("measures", (row for operator in first for row in _measure_rows(whole, operator)))
    return NeuronEffects(whole, agreements, halves, measures, first, ctx.settings.layers_by)


def method_of(ctx: Context) -> str:
    """The method that measures or estimates effects of neurons that are not preselected for exact patching."""
    method = ctx.settings.neurons
    return BEST_METHOD if method == ATTRIBUTION_THEN_EXACT else method


def number_exact(ctx: Context) -> int:
    """How many neurons of an MLP are patched exactly; the others' effects are estimated."""
    neurons = ctx.model.sizes.neurons
    exact = {EXACT: neurons, ATTRIBUTION_THEN_EXACT: percent_of(neurons, PRESELECTED)}
    return exact.get(ctx.settings.neurons, 0)


def _some_neurons(ctx: Context, task: _Task, which: slice) -> _Task:
    """A task with a slice of its neurons: in a study all of the slice, under `verify` a few of each layer."""
    neurons = task.neurons[:, which]
    chosen = ctx.sample(neurons.shape[1], VERIFIED_NEURONS, "neurons", task.operator, "of each layer")
    return replace(task, neurons=neurons[:, chosen])


def _exact_effects(ctx: Context, tasks: Sequence[_Task], advance: Advance) -> list[Effects]:
    """Effects [layers, neurons, prompts, measures] of each task; a unit of work has one layer and some of the prompts."""
    at = ctx.model.positions.final
    groups = [task.units([layer], task.neurons[[i]], at) for task in tasks for i, layer in enumerate(task.layers)]
    by_layer = (np.concatenate(parts, axis=2) for parts in ctx.map_groups(neuron_effects, groups, advance))
    return [np.concatenate([next(by_layer) for _ in task.layers]) for task in tasks]


def neuron_effects(
    model: Model,
    prompts: Prompts,
    counterfactuals: Prompts,
    layers: Layers,
    chosen: Ints,
    at: int,
    reads: int = 1,
    step: int | None = None,
    *,
    advance: Advance,
) -> Effects:
    """Unit of work: effects of patching some neurons of each layer, one at a time: [layers, neurons, prompts, measures].

    `reads` and `step` are those of `component_effects`; with them, there is an axis of steps before the measures.
    """
    model = model if step is None else model.every_step()[step - 1]
    found = np.empty((*chosen.shape, len(prompts), *([] if step is None else [reads]), len(EFFECTS)), np.float32)
    for rows, batch in batches(model, prompts, 0):
        corrupted = counterfactuals[rows]
        with torch.no_grad(), capturing(model, neurons=layers, keep=lambda x: x[:, at].clone()) as seen:
            model.logits(model.encode(corrupted))
        reduce = effect_reducer(model, batch, corrupted, advance, reads)
        tape = model.engine.record(model, model.encode(batch), at, neurons=layers, last=reads)
        for i, layer in enumerate(layers):
            which = torch.from_numpy(chosen[i])
            values = seen.neurons[layer][:, which.to(seen.neurons[layer].device)].T
            effects = model.engine.replay_neurons(tape, layer, which, values, reduce, at).cpu().numpy()
            found[i][:, rows] = effects.reshape(found[i][:, rows].shape)
    return found


def attributed_sums(
    model: Model, prompts: Prompts, counterfactuals: Prompts, layers: Layers, method: str, at: int, *, advance: Advance
) -> Floats:
    """Unit of work: `attributed_effects` and their absolute values summed over prompts, [2, layers, neurons, measures]."""
    effects = attributed_effects(model, prompts, counterfactuals, layers, method, at, advance=advance)
    return np.stack([effects.sum(2, dtype=np.float64), np.abs(effects).sum(2, dtype=np.float64)])


def _agreement_rows(
    ctx: Context, tasks: Sequence[_Task], effects: pd.DataFrame, advance: Advance
) -> list[dict[str, Any]]:
    """Agreement of rankings by each attribution method's effects with those by exact ones, over all neurons."""
    pairs = [(method, i) for method in ATTRIBUTION_METHODS for i in range(len(tasks))]
    chosen = sorted((pairs[i] for i in ctx.sample(len(pairs), 1, "neurons", "agreement")), key=lambda pair: pair[1])
    at = ctx.model.positions.final
    groups = [tasks[i].units(tasks[i].layers, method, at) for method, i in chosen]
    rows = []
    for (method, i), parts in zip(chosen, ctx.map_groups(attributed_sums, groups, advance), strict=True):
        operator, estimates = tasks[i].operator, np.sum(parts, axis=0) / len(tasks[i].prompts)
        for measure, (ranking, column) in product(EFFECTS, enumerate(COMPARED.values())):
            exact = _by_layer(effects, operator, measure, column)
            agreement = rank_agreement(exact, estimates[ranking, ..., EFFECTS.index(measure)])
            named = {"operator": operator, "method": method, "measure": measure, "ranking": list(COMPARED)[ranking]}
            rows.append({**named, **dict(zip(AGREEMENT, agreement, strict=True))})
    return rows


def _measure_rows(effects: pd.DataFrame, operator: str) -> Iterator[dict[str, Any]]:
    """Agreement of rankings by the other effect measures with those by `probability`."""
    for measure, (ranking, column) in product(EFFECTS[1:], COMPARED.items()):
        by_probability, by_measure = (_by_layer(effects, operator, m, column) for m in (EFFECTS[0], measure))
        agreement = rank_agreement(by_probability, by_measure)
        named = {"operator": operator, "measure": measure, "ranking": ranking}
        yield {**named, **dict(zip(AGREEMENT, agreement, strict=True))}


def _by_layer(effects: pd.DataFrame, operator: str, measure: str, column: str) -> Floats:
    """A column of the effects of an operator's neurons: [layers, neurons]."""
    ordered = of_operator(effects, operator, measure).sort_values(["layer", "neuron"])
    return ordered[column].to_numpy(np.float64).reshape(ordered.layer.nunique(), -1)


def _split_half(ctx: Context, operator: str, effects: Sequence[Effects]) -> list[dict[Any, Any]]:
    """Agreement of rankings on two halves of the prompts, from arrays that together hold all neurons of each layer.

    Under `verify`, which has a sample of the neurons only, there is nothing to compare.
    """
    n, random = effects[0].shape[2], random_source(ctx.settings.seed, "split half", operator)

    def halved() -> list[list[float]]:
        """Agreement by each measure and ranking, on a random halving."""
        order = random.permutation(n)
        halves = order[: n // 2], order[n // 2 :]

        def statistic(rows: NDArray[np.int64], i: int, ranking: str) -> Floats:
            return np.concatenate([rank_statistic(part[:, :, rows, i], ranking) for part in effects], axis=1)

        keys = [(EFFECTS.index(measure), ranking) for measure, ranking in ranked]
        pairs = ([statistic(rows, *key) for rows in halves] for key in keys)
        return [rank_agreement(one, other) for one, other in pairs]

    ranked = list(product(EFFECTS, RANKINGS))
    if not ctx.complete:
        return []
    named = pd.DataFrame(ranked, columns=["measure", "ranking"]).assign(operator=operator)
    if n < 2:
        return named.to_dict("records")
    means = pd.DataFrame(np.mean([halved() for _ in range(SPLITS)], axis=0), columns=list(AGREEMENT))
    return named.join(means).to_dict("records")
