"""One neuron in the terminal: effect and rank, activation map, tokens, heuristics."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from arithscope.report.terminal import bare_table
from arithscope.results.neuron import ActivationMap, Neuron
from arithscope.results.run import Run

SHADES = " ·:-=+*#%@"
WIDTH, HEIGHT = 50, 25  # characters of a map; a character is about twice as high as wide
MOST_HEURISTICS = 15
COLUMNS = (
    *("heuristic", "sign", "size", "score", "chance", "corrected", "expected"),
    *("neg_log10_p_hypergeom", "fdr", "calibrated"),
)
HEADERS = {"size": "prompts", "neg_log10_p_hypergeom": "−log₁₀ tail", "fdr": "FDR"}  # of columns named differently


def neuron_report(run: Run, layer: int, neuron: int, operator: str) -> Iterator[str | Table]:
    """Lines and tables to print on a neuron of a run."""
    info = run.neuron(layer, neuron, operator)
    yield f"{info.name} of {run.name}, operator {operator}"
    for row in info.effects.to_dict("records"):
        yield (
            f"effect by {str(row['measure']).replace('_', ' ')}: {row['value']:.4g} [{row['low']:.4g}, {row['high']:.4g}], "
            f"median {row['median']:.4g}, rank {row['rank']} of {row['of']} in its layer ({row['n']} prompts, {row['method']})"
        )
    if "patterns" not in run.stages:
        yield "The run has no stage patterns, so there is no activation map."
        return
    if info.activation_map is None:
        yield f"It is not among the top {run.topk.k[operator]} neurons of its layer, so there is no activation map."
        return
    yield from _activation_map(info.activation_map)
    yield from _heuristics(info)


def _activation_map(p: ActivationMap) -> Iterator[str]:
    a, share = p.activations, p.variance_explained
    yield f"activation from {a.min():.3g} (blank) to {a.max():.3g} ({SHADES[-1]}), op1 downwards, op2 to the right:"
    yield from shaded(a)
    yield (
        f"variance explained by op1 {share['op1']:.0%}, by op2 {share['op2']:.0%}, by the result {share['result']:.0%}; "
        f"correlation with its value vector's logit of the answer {p.alignment:.2f}: {'direct' if p.direct else 'indirect'}"
    )
    yield f"numbers it promotes most: {' '.join(map(str, p.tokens))}"


def shaded(values: NDArray[np.float32]) -> list[str]:
    """A map in characters, averaged down to a screen's size; shades run from the 2nd to the 98th percentile."""
    height, width = (min(n, most) for n, most in zip(values.shape, (HEIGHT, WIDTH), strict=True))
    small = np.stack([part.mean(0) for part in np.array_split(values, height)])
    small = np.stack([part.mean(1) for part in np.array_split(small, width, axis=1)], axis=1)
    low, high = np.quantile(small, [0.02, 0.98])
    shade = ((small - low) / max(high - low, 1e-30) * len(SHADES)).clip(0, len(SHADES) - 1).astype(int)
    return ["  |" + "".join(SHADES[i] for i in line) + "|" for line in shade]


def _heuristics(neuron: Neuron) -> Iterator[str | Table]:
    rows, explained = neuron.heuristics, neuron.coverage
    if not explained:
        yield "The run has no stage classify, so there are no heuristics."
        return
    yield (
        f"{len(rows)} heuristics match, {int(rows.calibrated.sum())} of them after calibration; together they explain "
        f"{explained['raw']:.0%} ({explained['calibrated']:.0%}) of the variance of the activation map"
    )
    if rows.empty:
        rows = neuron.best
        yield "best heuristic of each kind, none of them a match:"
    table = bare_table()
    for column in COLUMNS:
        table.add_column(HEADERS.get(column, column), no_wrap=column == "heuristic")
    for row in rows.head(MOST_HEURISTICS).to_dict("records"):
        table.add_row(*(_text(row[column]) for column in COLUMNS))
    yield table
    if len(rows) > MOST_HEURISTICS:
        yield f"and {len(rows) - MOST_HEURISTICS} more"


def _text(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 10 else f"{value:.2g}" if 0 < value < 0.01 else f"{value:.2f}"
    return f"{value:+d}" if value in (1, -1) else str(value)
