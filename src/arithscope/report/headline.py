"""The key numbers of a run in one table, beside those that the authors report."""

from __future__ import annotations

from arithscope.experiments.common.headline import HEADLINE_NUMBERS, headline_entries
from arithscope.figures.style import SIGNS
from arithscope.pipeline.store import RunFolder
from arithscope.report.authors import AUTHORS
from arithscope.report.cells import cell
from arithscope.report.formatting import NOTHING
from arithscope.report.markup import Markup, element, table

_OF = {("probe", "first_answer_layer"): "layers", ("topk", "k"): "neurons"}  # numbers that are some of so many


def headline(run: RunFolder) -> Markup:
    """A row for each key number that the run has, a column for each operator and one for all together."""
    operators = [str(o) for o in run.manifest["configuration"]["operators"]]
    rows, summary = [], run.summary
    for row in HEADLINE_NUMBERS:
        entries = headline_entries(row, summary, operators)
        if any(entry is not None for entry in entries):
            sizes, total = run.manifest["model"]["sizes"], _OF.get((row.experiment, row.measure))
            suffix = f" of {sizes[total]:,}" if total else ""
            cells = [cell(entry, suffix) for entry in entries]
            authors = AUTHORS.get((row.experiment, row.measure), NOTHING)
            rows.append([element("a", row.name, href=f"#{row.section}"), *cells, authors])
    if not rows:
        return element("p", "This run has no numbers to show yet.")
    header = ["", *(SIGNS[o] for o in operators), "all operators", "authors’ Llama-3-8B"]
    return table("Key numbers, each with its 95 % interval and sample size", header, rows, "headline")
