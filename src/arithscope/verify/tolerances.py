"""How far a recomputed field may be from the stored one, beyond the float noise of the model's type.

A field that is not listed here may differ by that noise. `hints` are what a stage passes to `ctx.confirmed`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from arithscope.experiments.neurons import RECALLED
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.probe import EPOCHS
from arithscope.heuristics.calibration import N_CLASSES
from arithscope.pipeline.registry import stage_of
from arithscope.stats.rankings import share_of
from arithscope.verify.compare import Noise

STANDARD_ERRORS = 5.0  # by which a p counted among some neurons' permutations may be off
FLOAT16 = 2.0**-10  # relative precision of stored activations


@dataclass(frozen=True)
class Part:
    """Some rows and columns of a recomputed table, and how far they may be from the stored ones."""

    rows: pd.DataFrame
    noise: Noise
    extra: ArrayLike = 0.0


@dataclass(frozen=True)
class Situation:
    """What a tolerance depends on: the float noise, the share of close calls in the full passes, and the stage's hints."""

    noise: Noise
    close_calls: float
    hints: Mapping[str, Any]


Tolerance = Callable[[pd.DataFrame, Situation], Iterator[Part]]


def _effects(rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
    """Some logits are nearly 0, and effects relative to them are noisier."""
    for measure, part in rows.groupby("measure", sort=False):
        noise = given.noise.times(10) if measure == "logit" else given.noise
        yield Part(part, noise, given.noise.prompt / np.sqrt(part.n.to_numpy()))


def _circuits(rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
    """A close call may count as correct or not; what is divided by a small span is as much noisier."""
    spans = given.hints["smallest_span"]
    for measure, part in rows.groupby("measure", sort=False):
        extra: ArrayLike = 0.0
        if measure == "accuracy":
            extra = 4 * given.close_calls
        elif measure == "faithfulness":
            extra = given.noise.absolute / part.operator.map(spans).to_numpy() / np.maximum(part.n.to_numpy(), 1)
        yield Part(part, given.noise, extra)


def _probes(rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
    """Training amplifies the last digits, so a few test prompts near a decision boundary may change sides."""
    share = 0.01 if given.noise.relative <= 1e-3 else 0.05
    noise = Noise(f"a few test prompts after {EPOCHS} epochs of training", 0.0, 0.0)
    yield Part(rows, noise, np.maximum(2 / rows.n.to_numpy(), share))


def _ranks(rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
    """Neurons with almost no effect change places, and one per layer may cross a border."""
    noise = Noise("a neuron at a border in each layer", 0.0, max(10 * given.noise.absolute, 1e-3))
    recalls = [f"recall_{percent}" for percent in RECALLED]
    yield Part(rows.drop(columns=recalls), noise)
    keys = ["operator", "method", "measure"]
    yield Part(rows[[*keys, *recalls]], noise, 1.0 / share_of(given.hints["ranks"], RECALLED[0]))


def _shares_correct(factor: float) -> Tolerance:
    """Shares of prompts that stay correct, of groups smaller than the whole by up to `factor`."""

    def tolerance(rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
        yield Part(rows, given.noise, 4 * factor * given.close_calls)

    return tolerance


def _statistics(rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
    yield Part(rows, Noise("of sums over prompts", 1e-6, 1e-9))


def _matches(rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
    """Overlaps are counts; p of direct heuristics was counted among the permutations of all neurons, now of a sample."""
    if "p" not in rows:
        yield Part(rows, Noise("of sums over prompts", 1e-4, 1e-5))
        return
    counted, sampled = Noise("of logarithms", 1e-5, 1e-6), given.hints["sampled_null"]
    yield Part(rows.drop(columns="p"), counted)
    neurons, draws = (rows.operator.map({o: x[i] for o, x in sampled.items()}).to_numpy(float) for i in (0, 1))
    share = np.clip(rows.p.to_numpy() / N_CLASSES, 1 / (1 + neurons * draws), 1.0)
    error = STANDARD_ERRORS * N_CLASSES * np.sqrt(share / neurons)
    extra = np.where(rows.direct & rows.operator.isin(list(sampled)), error, 0.0)
    yield Part(rows[["operator", "layer", "neuron", "heuristic", "p"]], counted, extra)


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
    "classify.matches": _matches,
    "classify.best": _matches,
}


def array_extra(kind: type, name: str, now: np.ndarray[Any, Any], noise: Noise) -> ArrayLike:
    """How much further apart the entries of a recomputed array may be."""
    if kind is ActivationMaps:
        scale = np.abs(now.astype(np.float64)).max(axis=-1, keepdims=True)
        return scale * (noise.relative + (FLOAT16 if name == "activations" else 0.0))
    return float(np.abs(now).mean()) * noise.relative if now.size else 0.0


def parts_of(kind: type, name: str, rows: pd.DataFrame, given: Situation) -> Iterator[Part]:
    """The parts in which a recomputed table is compared."""
    if (tolerance := TABLES.get(f"{stage_of(kind).name}.{name}")) is not None:
        yield from tolerance(rows, given)
    else:
        yield Part(rows, given.noise)
