"""One neuron, as a person sees it in a terminal: effect and rank, pattern, tokens, heuristics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.table import Table

from arithscope.errors import UserError
from arithscope.experiments.classify import Classify
from arithscope.experiments.neurons import Neurons, neuron_name
from arithscope.experiments.patterns import Patterns
from arithscope.experiments.result import of_neuron
from arithscope.experiments.topk import TopK
from arithscope.report.terminal import bare_table
from arithscope.store import RunFolder

SHADES = " ·:-=+*#%@"
WIDTH, HEIGHT = 50, 25  # characters of a pattern; a character is about twice as high as wide
MOST_HEURISTICS = 15


def neuron_report(path: Path, layer: int, neuron: int, operator: str) -> Iterator[str | Table]:
    """What a run says of a neuron, in the order in which it is printed."""
    run = RunFolder(path)
    effects = run.read("neurons", Neurons)
    rows = _effects(effects, layer, neuron, operator)
    yield f"{neuron_name(layer, neuron)} of {run.manifest['subject']['name']}, operator {operator}"
    for row in rows.to_dict("records"):
        ranked = effects.ranking(operator, str(row["measure"]), "mean")
        here = ranked[ranked.layer == layer]
        rank = int(np.flatnonzero(here.neuron == neuron)[0]) + 1
        yield (
            f"effect by {str(row['measure']).replace('_', ' ')}: {row['value']:.4g} [{row['low']:.4g}, "
            f"{row['high']:.4g}], median {row['median']:.4g}, rank {rank} of {len(here)} in its layer ({row['n']} "
            f"prompts, {row['method']})"
        )
    top = run.read("topk", TopK)
    if (layer, neuron) not in top.chosen(operator):
        yield f"It is not among the top {top.k[operator]} neurons of its layer, so its pattern was not looked at."
        return
    patterns = run.read("patterns", Patterns)
    yield from _pattern(patterns, patterns.place(operator, layer, neuron))
    yield from _heuristics(run.read("classify", Classify), operator, layer, neuron)


def _effects(effects: Neurons, layer: int, neuron: int, operator: str) -> pd.DataFrame:
    table = effects.effects
    if operator not in set(table.operator):
        known = " ".join(map(str, table.operator.unique()))
        raise UserError(f"The run has no neurons for the operator {operator!r}; choose from {known}.")
    rows = of_neuron(table, operator, layer, neuron)
    if rows.empty:
        layers, neurons = table.layer, table.neuron
        raise UserError(
            f"The run has no neuron {neuron_name(layer, neuron)}; it has layers {layers.min()} to {layers.max()}, "
            f"with neurons 0 to {neurons.max()} each."
        )
    return rows


def _pattern(patterns: Patterns, at: int) -> Iterator[str]:
    row = patterns.neurons.iloc[at]
    field = np.asarray(patterns.activations[at], dtype=np.float32)
    yield f"activation from {field.min():.3g} (blank) to {field.max():.3g} ({SHADES[-1]}), op1 downwards, op2 to the right:"
    yield from shaded(field)
    yield (
        f"variance told by op1 {row.op1:.0%}, by op2 {row.op2:.0%}, by the result {row.result:.0%}; correlation with "
        f"its value vector's logit of the answer {row.alignment:.2f}: {'direct' if row.direct else 'indirect'}"
    )
    yield f"numbers it promotes most: {' '.join(map(str, row.tokens))}"


def shaded(field: NDArray[np.float32]) -> list[str]:
    """A pattern in characters, averaged down to the size of a screen; at most 2 % of it is cut off at either end."""
    height, width = (min(n, most) for n, most in zip(field.shape, (HEIGHT, WIDTH), strict=True))
    small = np.stack([part.mean(0) for part in np.array_split(field, height)])
    small = np.stack([part.mean(1) for part in np.array_split(small, width, axis=1)], axis=1)
    low, high = np.quantile(small, [0.02, 0.98])
    shade = ((small - low) / max(high - low, 1e-30) * len(SHADES)).clip(0, len(SHADES) - 1).astype(int)
    return ["  |" + "".join(SHADES[i] for i in line) + "|" for line in shade]


def _heuristics(classify: Classify, operator: str, layer: int, neuron: int) -> Iterator[str | Table]:
    own = of_neuron(classify.neurons, operator, layer, neuron).iloc[0]
    found = classify.of_neuron(operator, layer, neuron)
    calibrated = int(found.calibrated.sum())
    yield (
        f"{len(found)} heuristics match, {calibrated} of them after calibration; together they explain "
        f"{own.coverage_raw:.0%} ({own.coverage_calibrated:.0%}) of the pattern's variance"
    )
    if found.empty:
        found = of_neuron(classify.best, operator, layer, neuron)
        found = found.sort_values("beyond", ascending=False, kind="stable")
        yield "the best of each kind, none of them a match:"
    table = bare_table()
    for name in _COLUMNS.values():
        table.add_column(name, no_wrap=name == "heuristic")
    for row in found.head(MOST_HEURISTICS).to_dict("records"):
        table.add_row(*map(_shown, (row[c] for c in _COLUMNS)))
    yield table
    if len(found) > MOST_HEURISTICS:
        yield f"and {len(found) - MOST_HEURISTICS} more"


_COLUMNS = {
    "heuristic": "heuristic",
    "sign": "sign",
    "size": "prompts",
    "score": "score",
    "chance": "chance",
    "corrected": "corrected",
    "expected": "expected",
    "evidence": "−log₁₀ tail",
    "fdr": "FDR",
    "calibrated": "calibrated",
}


def _shown(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 10 else f"{value:.2g}" if 0 < value < 0.01 else f"{value:.2f}"
    return f"{value:+d}" if value in (1, -1) else str(value)
