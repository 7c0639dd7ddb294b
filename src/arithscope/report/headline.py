"""The key numbers of a run in one table, beside those that the authors report."""

from __future__ import annotations

from dataclasses import dataclass

from arithscope.experiments.probe import ALL
from arithscope.experiments.prompt_knockout import REPORTED
from arithscope.experiments.result import AVERAGE
from arithscope.figures.style import SIGNS
from arithscope.report.authors import AUTHORS
from arithscope.report.cells import cell
from arithscope.report.markup import Markup, element, table
from arithscope.report.words import NOTHING
from arithscope.store import RunFolder


@dataclass(frozen=True)
class Row:
    """A number of the summary: under which experiment and measure it stands there, and in which section it is explained."""

    name: str
    experiment: str
    measure: str
    section: str


ROWS = (
    Row("Accuracy on legal prompts", "accuracy", "accuracy", "accuracy"),
    Row("Heads in the circuit", "circuit", "heads", "circuit"),
    Row("Faithfulness of the circuit", "circuit", "faithfulness", "circuit"),
    Row("Accuracy of the circuit alone", "circuit", "accuracy", "circuit"),
    Row("Heads shared by all operators", "circuit", "shared_heads", "circuit"),
    Row("First answer layer, counted from 0", "probe", "first_answer_layer", "probes"),
    Row("Neurons of each MLP that are kept", "topk", "k", "neurons"),
    Row("Faithfulness with these", "topk", "faithfulness", "neurons"),
    Row("Top neurons classified, raw", "classify", "raw_share", "classification"),
    Row("Top neurons classified, calibrated", "classify", "calibrated_share", "classification"),
    Row("Overlap of top neurons with other operators (IoU)", "overlap", "mean_iou", "classification"),
    Row("A heuristic silenced (raw): accuracy left on its prompts", "knockout", "raw_associated", "proof"),
    Row("… calibrated", "knockout", "calibrated_associated", "proof"),
    Row("… calibrated: by how much more is left on other prompts", "knockout", "calibrated_difference", "proof"),
    Row(
        f"{REPORTED[-1]} of a prompt's neurons a layer silenced (calibrated): by how much more is left if they are "
        "random",
        "prompt_knockout",
        f"calibrated_beyond_random_{REPORTED[-1]}",
        "proof",
    ),
    Row("Faithfulness with calibrated heuristic neurons alone", "bag", "calibrated_faithfulness", "proof"),
    Row(
        "Contribution to the right answer, right minus wrong prompts", "failures", "calibrated_contribution", "failures"
    ),
    Row("Faithfulness over training carried by final pairs, raw", "training", "raw_mutual_share", "training"),
)
_OF = {("probe", "first_answer_layer"): "layers", ("topk", "k"): "neurons"}  # numbers that are some of so many


def headline(run: RunFolder) -> Markup:
    """A row for each key number that the run has, a column for each operator and one for all together."""
    operators = [str(o) for o in run.manifest["configuration"]["operators"]]
    rows = []
    for row in ROWS:
        found = run.summary.get(row.experiment, {})
        by_column = [found.get(operator, {}).get(row.measure) for operator in operators]
        overall = (found.get(AVERAGE) or found.get(ALL) or {}).get(row.measure)
        if any(entry is not None for entry in (*by_column, overall)):
            sizes, total = run.manifest["subject"]["sizes"], _OF.get((row.experiment, row.measure))
            suffix = f" of {sizes[total]:,}" if total else ""
            cells = [cell(entry, suffix) for entry in (*by_column, overall)]
            authors = AUTHORS.get((row.experiment, row.measure), NOTHING)
            rows.append([element("a", row.name, href=f"#{row.section}"), *cells, authors])
    if not rows:
        return element("p", "This run has no numbers to show yet.")
    header = ["", *(SIGNS[o] for o in operators), "all operators", "authors’ Llama-3-8B"]
    return table("Key numbers, each with its 95 % interval and sample size", header, rows, "headline")
