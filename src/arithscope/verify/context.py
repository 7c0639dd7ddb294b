"""The context in which `verify` runs a stage again: a sample of its pieces, with full passes, compared on the way.

A recomputed number may differ from the stored one by the float noise of the model's type; `TABLES` lists tables that may differ
in other ways. `hints` are what a stage passes to `ctx.confirmed`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from arithscope.experiments.common.result import Result
from arithscope.experiments.common.schema import Table
from arithscope.experiments.common.stage import Context
from arithscope.experiments.neurons import RECALLED, share_of
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.probe import EPOCHS
from arithscope.heuristics.calibration import N_CLASSES
from arithscope.models.engine.full_pass import FullPass
from arithscope.pipeline.registry import stage_of
from arithscope.prompts import random_source
from arithscope.verify.compare import Noise, Tally

V = TypeVar("V")
STANDARD_ERRORS = 5.0  # by which a p counted among some neurons' permutations may be off
FLOAT16 = 2.0**-10  # relative precision of stored activations


@dataclass(frozen=True, kw_only=True)
class VerifyContext(Context):
    """A stage's context under verification.

    Attributes:
        stored: The stored result.
        tally: Where comparisons are counted.
        engine: The engine of full passes that the model uses.
        sample_seed: Seed that chooses what is recomputed.
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
                tolerance = TABLES.get(f"{stage_of(type(self.stored)).name}.{name}", _float_noise)
                for part, noise, extra in tolerance(measured, self, hints):
                    tally.rows(name, stored, part, declared.keys, noise, extra)
                tally.recomputed.append(f"{len(measured):,} of {len(stored):,} rows of {name}")
        else:
            now, whole = np.asarray(measured), np.asarray(stored)
            tally.close(name, whole[rows], now, tally.noise, extra=self._array_extra(name, now))
            tally.recomputed.append(f"{now.size:,} of {whole.size:,} numbers of {name}")
        return stored

    def _array_extra(self, name: str, now: NDArray[Any]) -> ArrayLike:
        """How much further apart the entries of a recomputed array may be."""
        relative = self.tally.noise.relative
        if isinstance(self.stored, ActivationMaps):
            scale = np.abs(now.astype(np.float64)).max(axis=-1, keepdims=True)
            return scale * (relative + (FLOAT16 if name == "activations" else 0.0))
        return float(np.abs(now).mean()) * relative if now.size else 0.0


Parts = Iterator[
    tuple[pd.DataFrame, Noise, ArrayLike]
]  # of a table: how far they may be apart, and how much further each row
Tolerance = Callable[[pd.DataFrame, VerifyContext, Mapping[str, Any]], Parts]


def _float_noise(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    yield rows, ctx.tally.noise, 0.0


def _effects(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Some logits are nearly 0, and effects relative to them are noisier."""
    noise = ctx.tally.noise
    for measure, part in rows.groupby("measure", sort=False):
        yield part, noise.times(10) if measure == "logit" else noise, noise.prompt / np.sqrt(part.n.to_numpy())


def _circuits(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """A close call may count as correct or not; what is divided by a small span is as much noisier."""
    noise = ctx.tally.noise
    for measure, part in rows.groupby("measure", sort=False):
        extra: ArrayLike = 0.0
        if measure == "accuracy":
            extra = 4 * ctx.engine.close_calls
        elif measure == "faithfulness":
            spans = part.operator.map(hints["smallest_span"]).to_numpy()
            extra = noise.absolute / spans / np.maximum(part.n.to_numpy(), 1)
        yield part, noise, extra


def _probes(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Training amplifies the last digits, so a few test prompts near a decision boundary may change sides."""
    share = 0.01 if ctx.tally.noise.relative <= 1e-3 else 0.05
    noise = Noise(f"a few test prompts after {EPOCHS} epochs of training", 0.0, 0.0)
    yield rows, noise, np.maximum(2 / rows.n.to_numpy(), share)


def _ranks(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Neurons with almost no effect change places, and one per layer may cross a border."""
    noise = Noise("a neuron at a border in each layer", 0.0, max(10 * ctx.tally.noise.absolute, 1e-3))
    recalls = [f"recall_{percent}" for percent in RECALLED]
    yield rows.drop(columns=recalls), noise, 0.0
    yield rows[["operator", "method", "measure", *recalls]], noise, 1.0 / share_of(hints["ranks"], RECALLED[0])


def _shares_correct(factor: float) -> Tolerance:
    """Shares of prompts that stay correct, of groups smaller than the whole by up to `factor`."""
    return lambda rows, ctx, hints: iter([(rows, ctx.tally.noise, 4 * factor * ctx.engine.close_calls)])


def _statistics(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    yield rows, Noise("of sums over prompts", 1e-6, 1e-9), 0.0


def _matches(rows: pd.DataFrame, ctx: VerifyContext, hints: Mapping[str, Any]) -> Parts:
    """Overlaps are counts; p of direct heuristics was counted among the permutations of all neurons, now of a sample."""
    if "p" not in rows:
        yield rows, Noise("of sums over prompts", 1e-4, 1e-5), 0.0
        return
    counted, sampled = Noise("of logarithms", 1e-5, 1e-6), hints["sampled_null"]
    yield rows.drop(columns="p"), counted, 0.0
    neurons, draws = (rows.operator.map({o: x[i] for o, x in sampled.items()}).to_numpy(float) for i in (0, 1))
    share = np.clip(rows.p.to_numpy() / N_CLASSES, 1 / (1 + neurons * draws), 1.0)
    error = STANDARD_ERRORS * N_CLASSES * np.sqrt(share / neurons)
    extra = np.where(rows.direct & rows.operator.isin(list(sampled)), error, 0.0)
    yield rows[["operator", "layer", "neuron", "heuristic", "p"]], counted, extra


TABLES: dict[str, Tolerance] = {  # by stage and table
    **dict.fromkeys(("localize.effects", "mlp0.effects", "neurons.effects"), _effects),
    "neurons.agreement": _ranks,
    **dict.fromkeys(("circuit.curve", "topk.curve", "mlp0.curve", "bag.curve", "heads.isolation"), _circuits),
    "probe.table": _probes,
    "knockout.accuracy": _shares_correct(2),
    "knockout.differences": _shares_correct(4),
    "prompt_knockout.curve": _shares_correct(1),
    "prompt_knockout.differences": _shares_correct(2),
    "patterns.neurons": _statistics,
    **dict.fromkeys(("classify.matches", "classify.best"), _matches),
}
