"""Which neurons matter at the last position: each one, from the first answer layer on, patched on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.attribution import ATTRIBUTION_METHODS, BEST, attributed_effects
from arithscope.experiments.common.result import Result, strongest
from arithscope.experiments.common.samples import SampleSizes, batches, splits
from arithscope.experiments.localize import effect_reducer, effect_statistics
from arithscope.experiments.probe import Probe
from arithscope.models.engine.replay import record, replay_neurons
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Prompts, random_source
from arithscope.stats.measures import EFFECTS
from arithscope.utils.executor import LOCAL, Executor, Function, split_evenly
from arithscope.utils.progress import Advance, Progress

EXACT, SCREEN = "exact", "screen"
METHODS = (EXACT, *ATTRIBUTION_METHODS, SCREEN)
RANKS = ("mean", "mean+std")
PICKED = 10  # per cent of each layer's neurons: those that `screen` measures exactly
RECALLED = (1, 2, 5, 10, 20)  # per cent of each layer's neurons: how many of the exact best a screen finds
PROMPTS_IN_UNIT = 64  # recording them costs as much as a few hundred neurons, so better all of them
SPLITS = 4  # ways of halving the prompts at random; what is shared is averaged over them
_RANKS = ("rank_correlation", *(f"recall_{percent}" for percent in RECALLED))
AGREEMENT = ("operator", "screen", "measure", *_RANKS)
HALVES = ("operator", "measure", *_RANKS)


@dataclass(frozen=True, repr=False)
class NeuronEffects(Result):
    """effects: of each neuron from `first_layer` on, patched at the last position with the counterfactual's activation:
    the mean over prompts with interval, the median and the standard deviation. `method` says where the numbers are from:
    `exact`, or the screen that estimated them.
    agreement: of each screen with the exact effects of all neurons. rank_correlation is Spearman's, of mean effects; recall_k
    is the share of the exact best k % of each layer that is among the screen's best k %. Empty unless all effects are
    exact: on the neurons alone that a screen itself picked, a comparison says nothing of what it missed.
    halves: the same agreement, but of the mean effects on one half of the prompts with those on the other, over all neurons
    and however the effects of each were found; mean over a few ways of halving. NaN with fewer than two prompts."""

    effects: pd.DataFrame  # operator, layer, neuron, measure, method, value, low, high, n, median, std
    agreement: pd.DataFrame  # operator, screen, measure, rank_correlation, recall_1, recall_2, …
    halves: pd.DataFrame  # operator, measure, rank_correlation, recall_1, recall_2, …
    first_layer: int

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.effects.operator.unique()]

    def ranking(self, operator: str, measure: str, rank: str = "mean") -> pd.DataFrame:
        """Layer by layer, neurons of largest effect first (those measured exactly before those estimated): by the mean, or by
        mean + std, with which a neuron that matters much on few prompts overtakes one that matters a little on all."""
        rows = self._rows(operator, measure)
        by = rows.value if rank == "mean" else rows.value + rows["std"]
        sorted_rows = rows.assign(by=by, estimated=rows.method != EXACT).sort_values(
            ["layer", "estimated", "by", "neuron"], ascending=[True, True, False, True]
        )
        return sorted_rows.drop(columns=["by", "estimated"]).reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator in self.operators:
            rows = self._rows(operator, "probability")
            exact = rows[rows.method == EXACT]
            out[operator] = {
                "strongest_neuron": strongest(
                    rows if exact.empty else exact, lambda row: neuron_name(row.layer, row.neuron)
                ),
                "neurons": len(rows),
                "measured_exactly": len(exact),
            }
        for row in self.agreement[self.agreement.measure == "probability"].itertuples():
            out[str(row.operator)] |= {
                f"{row.screen}_rank_correlation": row.rank_correlation,
                f"{row.screen}_recall_of_best_5_percent": row.recall_5,
            }
        for row in self.halves[self.halves.measure == "probability"].itertuples():
            out[str(row.operator)] |= {
                "split_half": row.rank_correlation,
                "split_half_recall_of_best_5_percent": row.recall_5,
            }
        return out

    def _rows(self, operator: str, measure: str) -> pd.DataFrame:
        return self.effects[(self.effects.operator == operator) & (self.effects.measure == measure)]


def neuron_name(layer: int, neuron: int) -> str:
    return f"L{layer}N{neuron}"


def neurons(
    model: Model,
    accuracy: Accuracy,
    probe: Probe,
    sizes: SampleSizes,
    seed: int,
    method: str,
    picked_by: str | None,
    progress: Progress,
    executor: Executor = LOCAL,
) -> NeuronEffects:
    """Measure every neuron exactly, and see how well the screens would have done (`exact`); or estimate all of them by one
    screen; or (`screen`) measure those exactly that the best screen ranks highest, by the effect `picked_by`."""
    samples = splits(accuracy, sizes, seed)
    layers, size = range(probe.first_answer_layer, model.sizes.layers), model.sizes.neurons
    everything = np.tile(np.arange(size), (len(layers), 1))
    picked = share_of(size, PICKED)
    tables, agreement, halves = [], [], []
    passes = {EXACT: size * len(layers) + len(ATTRIBUTION_METHODS), SCREEN: picked * len(layers) + 1}.get(method, 1)
    some = slice(0, sizes.neurons)
    pairs = {operator: (split.discovery[some], split.counterfactuals[some]) for operator, split in samples.items()}
    sources = {operator: random_source(seed, "neurons", operator) for operator in samples}
    with progress.task("neurons", passes * sum(len(prompts) for prompts, _ in pairs.values())) as advance:
        given = executor, model, pairs, layers, advance
        if method == EXACT:
            exact = _measured(*given, dict.fromkeys(pairs, everything))
            estimated = {screen: _estimated_means(*given, screen) for screen in ATTRIBUTION_METHODS}
            for operator, random in sources.items():
                tables.append(_effect_table(operator, layers, EXACT, everything, exact[operator], random))
                means = _means(exact[operator])
                agreement += [
                    row for s in ATTRIBUTION_METHODS for row in _agreement(operator, s, means, estimated[s][operator])
                ]
                halves += _halves(operator, [exact[operator]], seed)
        elif picked_by is not None:
            estimates = _estimated(*given, BEST)
            by = EFFECTS.index(picked_by)
            order = {operator: best_first(_means(found)[..., by]) for operator, found in estimates.items()}
            exact = _measured(*given, {operator: ranked[:, :picked] for operator, ranked in order.items()})
            for operator, random in sources.items():
                strong, rest = order[operator][:, :picked], order[operator][:, picked:]
                left = np.take_along_axis(estimates[operator], rest[..., None, None], axis=1)
                tables.append(_effect_table(operator, layers, EXACT, strong, exact[operator], random))
                tables.append(_effect_table(operator, layers, BEST, rest, left, random))
                halves += _halves(operator, [exact[operator], left], seed)
        else:
            for operator, found in _estimated(*given, method).items():
                tables.append(_effect_table(operator, layers, method, everything, found, sources[operator]))
                halves += _halves(operator, [found], seed)
    effects, agreed = pd.concat(tables, ignore_index=True), pd.DataFrame(agreement, columns=list(AGREEMENT))
    return NeuronEffects(effects, agreed, pd.DataFrame(halves, columns=list(HALVES)), layers.start)


Pairs = Mapping[str, tuple[Prompts, Prompts]]  # by operator, prompts and their counterfactuals


def _measured(
    executor: Executor,
    model: Model,
    pairs: Pairs,
    layers: Sequence[int],
    advance: Advance,
    chosen: Mapping[str, NDArray[np.int64]],
) -> dict[str, NDArray[np.float32]]:
    """By operator the effects of the chosen neurons [layers, neurons]; a unit has one layer and a few of the prompts."""
    units = [
        (prompts[b], others[b], [layer], chosen[operator][i : i + 1], model.positions.last)
        for operator, (prompts, others) in pairs.items()
        for i, layer in enumerate(layers)
        for b in split_evenly(len(prompts), PROMPTS_IN_UNIT)
    ]
    parts = iter(executor.map(neuron_effects, model, units, advance))
    found = {}
    for operator, (prompts, _) in pairs.items():
        some = split_evenly(len(prompts), PROMPTS_IN_UNIT)
        found[operator] = np.concatenate([np.concatenate([next(parts) for _ in some], axis=2) for _ in layers])
    return found


def _estimated(
    executor: Executor, model: Model, pairs: Pairs, layers: Sequence[int], advance: Advance, screen: str
) -> dict[str, NDArray[np.float32]]:
    """By operator a screen's estimates for all neurons."""
    parts = _by_prompts(attributed_effects, executor, model, pairs, layers, advance, screen)
    return {operator: np.concatenate(mine, axis=2) for operator, mine in parts.items()}


def _estimated_means(
    executor: Executor, model: Model, pairs: Pairs, layers: Sequence[int], advance: Advance, screen: str
) -> dict[str, NDArray[np.float64]]:
    """By operator the means of such estimates over prompts: all that a comparison needs, and far less to send."""
    parts = _by_prompts(_estimated_sums, executor, model, pairs, layers, advance, screen)
    return {operator: np.sum(mine, axis=0) / len(pairs[operator][0]) for operator, mine in parts.items()}


def _by_prompts(
    function: Function,
    executor: Executor,
    model: Model,
    pairs: Pairs,
    layers: Sequence[int],
    advance: Advance,
    screen: str,
) -> dict[str, list[NDArray[Any]]]:
    """By operator what a function of a screen gives; a unit has a few of the prompts."""
    some = {operator: split_evenly(len(prompts), PROMPTS_IN_UNIT) for operator, (prompts, _) in pairs.items()}
    units = [(*(x[b] for x in pairs[operator]), layers, screen) for operator, mine in some.items() for b in mine]
    parts = iter(executor.map(function, model, units, advance))
    return {operator: [next(parts) for _ in mine] for operator, mine in some.items()}


def _estimated_sums(
    model: Model, prompts: Prompts, others: Prompts, layers: Sequence[int], screen: str, *, advance: Advance
) -> NDArray[np.float64]:
    """A unit: [layers, neurons, measures]."""
    return attributed_effects(model, prompts, others, layers, screen, advance).sum(2, dtype=np.float64)


def neuron_effects(
    model: Model,
    prompts: Prompts,
    others: Prompts,
    layers: Sequence[int],
    chosen: NDArray[np.int64],
    position: int,
    *,
    advance: Advance,
) -> NDArray[np.float32]:
    """A unit: [layers, neurons, prompts, measures] of the chosen neurons [layers, neurons], each patched on its own at a
    position."""
    found = np.empty((*chosen.shape, len(prompts), len(EFFECTS)), np.float32)
    for rows, batch in batches(model, prompts, 0):
        with torch.no_grad(), capturing(model, neurons=layers, keep=lambda x: x[:, position].clone()) as seen:
            model.logits(model.encode(others[rows]))
        reduce = effect_reducer(model, batch, others[rows], advance)
        tape = record(model, model.encode(batch), position, neurons=layers)
        for i, layer in enumerate(layers):
            which = torch.from_numpy(chosen[i])
            values = seen.neurons[layer][:, which.to(seen.neurons[layer].device)].T
            found[i][:, rows] = replay_neurons(tape, layer, which, values, reduce, position).cpu().numpy()
    return found


def share_of(size: int, percent: float) -> int:
    """So many per cent of an MLP's neurons, but at least one."""
    return max(1, round(size * percent / 100))


def best_first(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each layer of [layers, neurons], neurons by falling value; of equal ones the first comes first."""
    return np.argsort(-values, axis=1, kind="stable")


def _means(effects: NDArray[np.float32]) -> NDArray[np.float64]:
    return effects.mean(2, dtype=np.float64)


def _effect_table(
    operator: str,
    layers: Sequence[int],
    method: str,
    chosen: NDArray[np.int64],
    effects: NDArray[np.float32],
    random: np.random.Generator,
) -> pd.DataFrame:
    """From [layers, neurons, prompts, measures] of the chosen neurons [layers, neurons]."""
    tables = []
    for i, measure in enumerate(EFFECTS):
        values = effects[..., i].reshape(-1, effects.shape[2])
        named = {
            "operator": operator,
            "layer": np.repeat(np.asarray(layers, dtype=np.int32), chosen.shape[1]),
            "neuron": chosen.ravel().astype(np.int32),
            "measure": measure,
            "method": method,
        }
        tables.append(
            pd.DataFrame({**named, **effect_statistics(values, random), "std": values.std(1, dtype=np.float64)})
        )
    return pd.concat(tables)


def _agreement(
    operator: str, screen: str, exact: NDArray[np.float64], estimates: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """By each measure, over all neurons, how well mean estimates [layers, neurons, measures] agree with exact means."""
    return [
        {"operator": operator, "screen": screen, "measure": measure, **_ranks(exact[..., i], estimates[..., i])}
        for i, measure in enumerate(EFFECTS)
    ]


def _halves(operator: str, effects: Sequence[NDArray[np.float32]], seed: int) -> list[dict[str, Any]]:
    """By each measure, how well mean effects on one half of the prompts agree with those on the other; from arrays [layers,
    neurons, prompts, measures] that hold the neurons of a layer between them."""
    n, random = effects[0].shape[2], random_source(seed, "split half", operator)
    if n < 2:
        return [{"operator": operator, "measure": measure} for measure in EFFECTS]
    found: list[list[list[float]]] = [[] for _ in EFFECTS]
    for _ in range(SPLITS):
        order = random.permutation(n)
        a, b = (
            np.concatenate([_means(part[:, :, rows]) for part in effects], axis=1)
            for rows in (order[: n // 2], order[n // 2 :])
        )
        for i, ranks in enumerate(found):
            ranks.append(list(_ranks(a[..., i], b[..., i]).values()))
    return [
        {"operator": operator, "measure": measure, **dict(zip(_RANKS, np.mean(ranks, axis=0).tolist(), strict=True))}
        for measure, ranks in zip(EFFECTS, found, strict=True)
    ]


def _ranks(a: NDArray[np.float64], b: NDArray[np.float64]) -> dict[str, float]:
    correlation, recalls = agreement_of_ranks(a, b, RECALLED)
    return dict(zip(_RANKS, (correlation, *recalls), strict=True))


def agreement_of_ranks(
    a: NDArray[np.float64], b: NDArray[np.float64], percents: Sequence[float]
) -> tuple[float, list[float]]:
    """Spearman's rank correlation over all neurons of [layers, neurons], and the share of each layer's best so many per cent
    by one that are also among the best by the other."""
    ranks = [pd.Series(x.ravel()).rank() for x in (a, b)]
    places = [best_first(x).argsort(1) for x in (a, b)]  # of each neuron in its layer
    sizes = [share_of(a.shape[1], percent) for percent in percents]
    shared = [float(((places[0] < k) & (places[1] < k)).sum(1).mean() / k) for k in sizes]
    return float(ranks[0].corr(ranks[1])), shared
