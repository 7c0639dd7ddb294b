"""The key numbers of a run: what the report shows first, and what is measured again to see whether it is stable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.probe import ALL
from arithscope.experiments.prompt_knockout import REPORTED


@dataclass(frozen=True)
class Row:
    """A number of the summary: under which experiment and measure it stands there, what it is called in the table of key
    numbers, where those above it may say half of it, and by itself (`short`), and in which section it is explained. share: it
    is a share, a faithfulness, or a difference of such; otherwise it counts something, names something or is a logit."""

    name: str
    short: str
    experiment: str
    measure: str
    section: str
    share: bool = True


ROWS = (
    Row("Accuracy on legal prompts", "accuracy", "accuracy", "accuracy", "accuracy"),
    Row("Heads in the circuit", "heads in the circuit", "circuit", "heads", "circuit", share=False),
    Row("Faithfulness of the circuit", "faithfulness of the circuit", "circuit", "faithfulness", "circuit"),
    Row("Accuracy of the circuit alone", "accuracy of the circuit", "circuit", "accuracy", "circuit"),
    Row(
        "Heads shared by all operators",
        "heads shared by all operators",
        "circuit",
        "shared_heads",
        "circuit",
        share=False,
    ),
    Row(
        "First answer layer, counted from 0",
        "first answer layer",
        "probe",
        "first_answer_layer",
        "probes",
        share=False,
    ),
    Row("Neurons of each MLP that are kept", "neurons kept of each MLP", "topk", "k", "neurons", share=False),
    Row("Faithfulness with these", "faithfulness with the neurons kept", "topk", "faithfulness", "neurons"),
    Row("Top neurons classified, raw", "neurons classified, raw", "classify", "raw_share", "classification"),
    Row(
        "Top neurons classified, calibrated",
        "neurons classified, calibrated",
        "classify",
        "calibrated_share",
        "classification",
    ),
    Row(
        "Overlap of top neurons with other operators (IoU)",
        "overlap of operators' neurons (IoU)",
        "overlap",
        "mean_iou",
        "classification",
    ),
    Row(
        "A heuristic silenced (raw): accuracy left on its prompts",
        "heuristic silenced, raw: accuracy left",
        "knockout",
        "raw_associated",
        "proof",
    ),
    Row("… calibrated", "heuristic silenced, calibrated: accuracy left", "knockout", "calibrated_associated", "proof"),
    Row(
        "… calibrated: by how much more is left on other prompts",
        "heuristic silenced, calibrated: others minus own prompts",
        "knockout",
        "calibrated_difference",
        "proof",
    ),
    Row(
        f"{REPORTED[-1]} of a prompt's neurons a layer silenced (calibrated): by how much more is left if they are "
        "random",
        f"{REPORTED[-1]} of a prompt's neurons silenced, calibrated: random minus own",
        "prompt_knockout",
        f"calibrated_vs_random_{REPORTED[-1]}",
        "proof",
    ),
    Row(
        "Faithfulness with calibrated heuristic neurons alone",
        "faithfulness with calibrated neurons alone",
        "bag",
        "calibrated_faithfulness",
        "proof",
    ),
    Row(
        "Contribution to the right answer, right minus wrong prompts",
        "contribution, right minus wrong prompts",
        "failures",
        "calibrated_contribution",
        "failures",
        share=False,
    ),
    Row(
        "Faithfulness over training carried by final pairs, raw",
        "faithfulness over training carried by final pairs, raw",
        "training",
        "raw_mutual_share",
        "training",
    ),
)


def entries_of(row: Row, summary: Mapping[str, Any], operators: list[str]) -> list[Any]:
    """What a summary holds of a key number: for each operator, and for all together; None where there is nothing."""
    found = summary.get(row.experiment, {})
    overall = (found.get(AVERAGE) or found.get(ALL) or {}).get(row.measure)
    return [*(found.get(operator, {}).get(row.measure) for operator in operators), overall]
