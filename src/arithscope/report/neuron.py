"""One neuron, as a person sees it in a terminal: effect and rank, pattern, tokens, heuristics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from arithscope.report.terminal import bare_table
from arithscope.results.neuron import ActivationMap, Neuron
from arithscope.results.run import Run

SHADES = " ·:-=+*#%@"
WIDTH, HEIGHT = 50, 25  # characters of a pattern; a character is about twice as high as wide
MOST_HEURISTICS = 15


def neuron_report(run: Run, layer: int, neuron: int, operator: str) -> Iterator[str | Table]:
    """What a run says of a neuron, in the order in which it is printed."""
    found = run.neuron(layer, neuron, operator)
    yield f"{found.name} of {run.name}, operator {operator}"
    for row in found.effects.to_dict("records"):
        yield (
            f"effect by {str(row['measure']).replace('_', ' ')}: {row['value']:.4g} [{row['low']:.4g}, {row['high']:.4g}], "
            f"median {row['median']:.4g}, rank {row['rank']} of {row['of']} in its layer ({row['n']} prompts, {row['method']})"
        )
    if "patterns" not in run.stages:
        yield "The run has no stage patterns, so it was not looked at what makes it fire."
        return
    if found.pattern is None:
        yield f"It is not among the top {run.topk.k[operator]} neurons of its layer, so its pattern was not looked at."
        return
    yield from _pattern(found.pattern)
    yield from _heuristics(found)


def _pattern(p: ActivationMap) -> Iterator[str]:
    a = p.activations
    yield f"activation from {a.min():.3g} (blank) to {a.max():.3g} ({SHADES[-1]}), op1 downwards, op2 to the right:"
    yield from shaded(a)
    yield (
        f"variance told by op1 {p.op1:.0%}, by op2 {p.op2:.0%}, by the result {p.result:.0%}; correlation with its value "
        f"vector's logit of the answer {p.alignment:.2f}: {'direct' if p.direct else 'indirect'}"
    )
    yield f"numbers it promotes most: {' '.join(map(str, p.tokens))}"


def shaded(field: NDArray[np.float32]) -> list[str]:
    """A pattern in characters, averaged down to the size of a screen; at most 2 % of it is cut off at either end."""
    height, width = (min(n, most) for n, most in zip(field.shape, (HEIGHT, WIDTH), strict=True))
    small = np.stack([part.mean(0) for part in np.array_split(field, height)])
    small = np.stack([part.mean(1) for part in np.array_split(small, width, axis=1)], axis=1)
    low, high = np.quantile(small, [0.02, 0.98])
    shade = ((small - low) / max(high - low, 1e-30) * len(SHADES)).clip(0, len(SHADES) - 1).astype(int)
    return ["  |" + "".join(SHADES[i] for i in line) + "|" for line in shade]


def _heuristics(neuron: Neuron) -> Iterator[str | Table]:
    found, covered = neuron.heuristics, neuron.coverage
    if not covered:
        yield "The run has no stage classify, so it was not matched with heuristics."
        return
    calibrated = int(found.calibrated.sum())
    yield (
        f"{len(found)} heuristics match, {calibrated} of them after calibration; together they explain {covered['raw']:.0%} "
        f"({covered['calibrated']:.0%}) of the pattern's variance"
    )
    if found.empty:
        found = neuron.best
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
    "neg_log10_p_hypergeom": "−log₁₀ tail",
    "fdr": "FDR",
    "calibrated": "calibrated",
}


def _shown(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 10 else f"{value:.2g}" if 0 < value < 0.01 else f"{value:.2f}"
    return f"{value:+d}" if value in (1, -1) else str(value)
