"""What `arithscope bench` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arithscope.cli.bench import LENS, PROMPTS, REPLAY, Bench
from arithscope.prompts import OPERATORS
from arithscope.report.terminal import bare_table


def bench_report(found: Bench) -> Iterator[Any]:
    """Lines and tables."""
    yield f"{found.model}, torch {found.torch}, {found.device}"
    yield f"Exact effects of single neurons, {found.prompts} prompts; neurons × prompts per second, and replay as a multiple:"
    others = [way for way in found.ways if way != REPLAY]
    table = bare_table()
    for name in ("layer", *map(_folded, found.ways), *(f"÷ {_folded(way)}" for way in others), "TFLOP/s"):
        table.add_column(name, justify="right")
    for row in found.layers:
        rates = (f"{row.rates[way]:,.0f}" for way in found.ways)
        ratios = (f"{row.ratio(way):,.1f}" for way in others)
        table.add_row(str(row.layer), *rates, *ratios, f"{row.tflops:.3g}")
    yield table
    yield "TFLOP/s: 10¹² operations a second in the layers that were replayed, counted from the shapes of their matrices."
    if found.lens:
        yield f"{LENS} is left out: {found.lens}."
    first, last = found.upper_half
    yield (
        f"All neurons of layers {first} to {last}, {PROMPTS} prompts of {len(OPERATORS)} operators, exactly, would take "
        + ", ".join(f"{duration(seconds)} ({way})" for way, seconds in found.estimates.items())
        + "."
    )


def _folded(way: str) -> str:
    """In two lines where it would be too wide for all columns to fit into 80."""
    return way.replace("one by", "one\nby").replace("TransformerLens", "Transf.\nLens")


def duration(seconds: float) -> str:
    """In the largest unit of which there is more than one."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} seconds"
