"""The context in which `verify` recomputes a stage: a sample of its pieces, by full passes, compared on the way; and checks
registered for a result class:

    @check(Commutes)
    def in_range(ctx: VerifyContext, stored: Commutes) -> None:
        ctx.tally.same("shares outside [0, 1]", int(((stored.table.value < 0) | (stored.table.value > 1)).sum()), 0)

A recomputed number may differ from the stored one by the float noise of the model's dtype; `TABLES` lists tables that may
differ in other ways, given the `hints` that a stage passes to `ctx.confirmed`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from arithscope.experiments.common.ranking import RECALLED, percent_of
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.schema import Table
from arithscope.experiments.common.stage import Context
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.probe import EPOCHS
from arithscope.heuristics.calibration import N_CLASSES
from arithscope.models.engine.full_pass import FullPass
from arithscope.pipeline.registry import stage_of
from arithscope.prompts import random_source
from arithscope.stats.intervals import score_interval, t_quantile
from arithscope.verify.compare import Noise, Tally, counted

V = TypeVar("V")
F = TypeVar("F", bound=Callable[["VerifyContext", Any], None])
FLOAT16 = 2.0**-10  # relative precision of stored activations
STANDARD_ERRORS = 5.0  # by which a sample may be off: the mean of a layer's components, or p counted among some neurons


@dataclass(frozen=True, kw_only=True)
class VerifyContext(Context):
    """A stage's context under verification.

    Attributes:
        stored: The stored result.
        tally: Where comparisons are counted.
        engine: The engine that the model uses, of full passes.
        sample_seed: Seed of the sample that is recomputed.
    """

    stored: Result
    tally: Tally
    engine: FullPass
    sample_seed: int = 0

    @property
    def complete(self) -> bool:
        return False

    def sample(self, n: int, size: int, *names: str | int) -> NDArray[np.int64]:
        return np.sort(random_source(self.sample_seed, "verify", *names).permutation(n)[:size])

    def confirmed(self, name: str, measured: V, rows: Any = ..., **hints: Any) -> V:
        stored, tally = getattr(self.stored, name), self.tally
        if isinstance(measured, pd.DataFrame):
            declared = self.stored.schema()[name]
            assert isinstance(declared, Table)
            if len(measured):
                tolerance = TABLES.get(f"{stage_of(type(self.stored)).name}.{name}")
                parts = tolerance(measured, self, hints) if tolerance else [(measured, tally.noise)]
                for part, noise in parts:
                    tally.rows(name, stored, part, declared.keys, noise)
                tally.recomputed.append(f"{len(measured):,} of {counted(len(stored), 'row')} of {name}")
        else:
            now, whole = np.asarray(measured), np.asarray(stored)
            tally.close(name, whole[rows], now, replace(tally.noise, extra=self._array_extra(name, now)))
            tally.recomputed.append(f"{now.size:,} of {counted(whole.size, 'number')} of {name}")
        return stored

    def _array_extra(self, name: str, now: NDArray[Any]) -> ArrayLike:
        """By how much more than the usual noise the entries of a recomputed array may differ."""
        relative = self.tally.noise.relative
        if isinstance(self.stored, ActivationMaps):
            scale = np.abs(now.astype(np.float64)).max(axis=-1, keepdims=True)
            return scale * (relative + (FLOAT16 if name == "activations" else 0.0))
        return float(np.abs(now).mean()) * relative if now.size else 0.0


Parts = Iterator[tuple[pd.DataFrame, Noise]]  # of a table: rows, and by how much they may differ
Tolerance = Callable[[pd.DataFrame, VerifyContext, Mapping[str, Any]], Parts]


def _effects(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Some logits are nearly 0, and effects relative to them are noisier. An interval's ends have the noise of the standard
    error, times as many of them as it reaches."""
    noise = ctx.tally.noise
    for (measure, n), part in rows.groupby(["measure", "n"], sort=False):
        allowed = noise.times(10) if measure == "logit" else noise
        of_deviation = allowed.absolute + allowed.relative * part["std"].to_numpy()
        size = int(str(n))
        yield part, replace(allowed, extra=(noise.prompt + t_quantile(size) * of_deviation) / np.sqrt(size))


def _circuits(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """A close call may count as correct or not, and faithfulness is the noisier the smaller the span it is divided by."""
    noise = ctx.tally.noise
    for measure, part in rows.groupby("measure", sort=False):
        extra: ArrayLike = 0.0
        if measure == "accuracy":
            extra = 4 * ctx.engine.close_calls
        elif measure == "faithfulness":
            spans = part.operator.map(hints["smallest_span"]).to_numpy()
            extra = noise.absolute / spans / np.maximum(part.n.to_numpy(), 1)
        yield part, replace(noise, extra=extra)


def _above_floor(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Differences of faithfulness are the noisier the smaller the one they are divided by."""
    noise = ctx.tally.noise
    spans, gains = (rows.operator.map(hints[name]).to_numpy() for name in ("smallest_span", "gain"))
    of_each = noise.relative + noise.absolute * (1 + 1 / spans / np.maximum(rows.n.to_numpy(), 1))
    yield rows, replace(noise, extra=2 * of_each / np.maximum(gains, noise.absolute))


def _few_test_prompts(why: str) -> Tolerance:
    """Shares of test prompts that a probe classifies rightly: rounding may move a few across the border of two values."""

    def parts(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
        share = 0.01 if ctx.tally.noise.relative <= 1e-3 else 0.05
        yield rows, Noise(f"a few test prompts {why}", 0.0, 0.0, extra=np.maximum(2 / rows.n.to_numpy(), share))

    return parts


def _ranks(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Neurons with almost no effect change places, and one per layer may enter or leave the top ones."""
    noise = Noise("a neuron at the border of each layer's top ones", 0.0, max(10 * ctx.tally.noise.absolute, 1e-3))
    recalls = [f"recall_{percent}" for percent in RECALLED]
    yield rows.drop(columns=recalls), noise
    at_border = replace(noise, extra=1.0 / percent_of(hints["ranks"], RECALLED[0]))
    yield rows[["operator", "method", "measure", "ranking", *recalls]], at_border


def _shares_correct(factor: float) -> Tolerance:
    """Shares of prompts that stay correct, in groups smaller than the sample by up to `factor`."""
    return lambda rows, ctx, hints: iter([(rows, replace(ctx.tally.noise, extra=4 * factor * ctx.engine.close_calls))])


def _shares_of_sample(factor: float) -> Tolerance:
    """The same where each share says of how many of the sampled prompts it is; `factor` shares are combined."""

    def parts(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
        smaller_by = rows.operator.map(hints["sampled"]).to_numpy() / np.maximum(rows.n.to_numpy(), 1)
        yield rows, replace(ctx.tally.noise, extra=4 * factor * ctx.engine.close_calls * smaller_by)

    return parts


def share_error(share: NDArray[np.float64], n: ArrayLike) -> NDArray[np.float64]:
    """How far the share in a population may be from that in a sample of n: up to the farther end of the Wilson interval of
    STANDARD_ERRORS. Unlike √(share (1 − share) / n), it is not 0 where nothing was found in the sample."""
    low, high = score_interval(share, STANDARD_ERRORS**2 / np.asarray(n, dtype=np.float64))
    return np.maximum(high - share, share - low)


def _matches(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Overlaps are counts; p of direct heuristics was counted among the permutations of all neurons, now of a sample."""
    if "p" not in rows:
        yield rows, Noise("rounding of sums over prompts", 1e-4, 1e-5)
        return
    rounding, sampled = Noise("rounding of logarithms", 1e-5, 1e-6), hints["sampled_null"]
    yield rows.drop(columns="p"), rounding
    neurons = rows.operator.map(sampled).to_numpy(float)
    error = N_CLASSES * share_error(rows.p.to_numpy() / N_CLASSES, neurons)
    extra = np.where(rows.direct & rows.operator.isin(list(sampled)), error, 0.0)
    p_noise = replace(rounding, name="the permutations of a sample of neurons", extra=extra)
    keys = ("operator", "layer", "neuron", "heuristic", "sign", "direct", "threshold")
    yield rows[[*(key for key in keys if key in rows), "p"]], p_noise


def _contributions(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Contributions to one logit are as noisy as the largest of them."""
    noise = ctx.tally.noise
    yield rows, replace(noise, extra=noise.relative * float(rows.contribution.abs().max()))


def _answers(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """The answer to a prompt may change if another token is almost as probable."""
    noise = ctx.tally.noise
    sure = rows.probability - hints["second"] > 2 * (noise.relative * rows.probability + noise.absolute)
    yield rows.drop(columns="predicted"), noise
    yield rows.loc[sure, ["ablated", "predicted"]], noise


_EFFECT_TABLES = (
    *(f"{name}.effects" for name in ("localize", "localize_steps", "mlp0", "mlp0_steps", "neurons")),
    "carries.components",
)
TABLES: dict[str, Tolerance] = {  # by stage and table
    **dict.fromkeys(_EFFECT_TABLES, _effects),
    "carries.exchange": _shares_correct(2),
    "neurons.agreement": _ranks,
    **dict.fromkeys(("circuit.curve", "topk.curve", "mlp0.curve", "bag.curve", "heads.isolation"), _circuits),
    "bag.above_floor": _above_floor,
    "probe.table": _few_test_prompts(f"after {EPOCHS} epochs of training"),  # which amplifies rounding
    "digit_probes.table": _few_test_prompts("near the border of two values"),
    "knockout.accuracy": _shares_correct(2),
    "knockout.differences": _shares_correct(4),
    "prompt_knockout.curve": _shares_of_sample(1),
    "prompt_knockout.differences": _shares_of_sample(2),
    **dict.fromkeys(("example.parts", "example.heuristics", "example.neurons"), _contributions),
    "example.answers": _answers,
    "patterns.neurons": lambda rows, ctx, hints: iter([(rows, Noise("rounding of sums over prompts", 1e-6, 1e-9))]),
    **dict.fromkeys(("classify.matches", "classify.best", "classify.strongest"), _matches),
}


CHECKS: dict[type[Result], tuple[Callable[[VerifyContext, Any], None], bool]] = {}  # with `recompute`


def check(kind: type[Result], recompute: bool = True) -> Callable[[F], F]:
    """Register a check of a result class, which compares with the methods of `ctx.tally`.

    Args:
        kind: The result class.
        recompute: Whether the stage is also recomputed on a sample.
    """

    def register(function: F) -> F:
        CHECKS[kind] = function, recompute
        return function

    return register
