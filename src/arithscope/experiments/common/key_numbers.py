"""The key numbers of a run: those the report shows first, and those that `stability` compares between repetitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.probe import ALL
from arithscope.experiments.prompt_knockout import REPORTED


@dataclass(frozen=True)
class KeyNumber:
    name: str  # in the table of key numbers, where it may continue the row above (`… calibrated`)
    short: str  # name that needs no context
    experiment: str  # stage whose summary has it
    measure: str  # its key in that summary

    @property
    def section(self) -> str:
        """Section of the report that explains it."""
        return _SECTIONS.get(self.experiment, self.experiment)

    @property
    def share(self) -> bool:
        """Whether it is a share, a faithfulness, or a difference of such; otherwise a count, a name or a logit."""
        counts = ("heads", "union_heads", "shared_heads", "first_answer_layer", "k")
        return self.measure not in counts and not self.measure.endswith("_contribution")


_SECTIONS = {"probe": "probes", "answer_layers": "probes", "topk": "neurons"}
_SECTIONS |= dict.fromkeys(("classify", "overlap"), "classification")
_SECTIONS |= dict.fromkeys(("knockout", "prompt_knockout", "bag"), "proof")
_LOST = REPORTED[-1]  # neurons ablated per layer, for each prompt
_KNOCKED_OUT = "Accuracy on a heuristic's prompts without its neurons, raw"
_ON_OTHERS = "… calibrated: how much more is left on other prompts"
_OWN = f"Accuracy without {_LOST} of the prompt's own neurons per layer, raw"
_LOSS = "… neurons of other heuristics minus own, {}"
_SHORT_LOSS = f"{_LOST} of a prompt's neurons knocked out, {{}}: other heuristics' minus own"
_ALONE = "Faithfulness with calibrated heuristic neurons alone"
_CONTRIBUTION = "Contribution to the right answer, correct minus incorrect prompts, {}"
_CARRIED = "Faithfulness over training carried by final pairs, raw"
_NUMBERS = (
    ("Accuracy on legal prompts", "accuracy", "accuracy", "accuracy"),
    ("… of always giving the most frequent answer", "accuracy of one fixed answer", "accuracy", "baseline"),
    ("… averaged over prompts", "accuracy, averaged over prompts", "accuracy", "accuracy_over_prompts"),
    ("Heads in the circuit", "heads in the circuit", "circuit", "heads"),
    ("Faithfulness of the circuit", "faithfulness of the circuit", "circuit", "faithfulness"),
    ("Accuracy of the circuit alone", "accuracy of the circuit", "circuit", "accuracy"),
    ("Heads in the union of all operators' circuits", "heads in the union circuit", "circuit", "union_heads"),
    ("Faithfulness of the union circuit", "faithfulness of the union circuit", "circuit", "union_faithfulness"),
    ("Heads shared by all operators", "heads shared by all operators", "circuit", "shared_heads"),
    ("First answer layer by probe, from 0", "first answer layer by probe", "probe", "first_answer_layer"),
    ("First answer layer by cause, from 0", "first answer layer by cause", "answer_layers", "first_answer_layer"),
    ("Neurons kept of each MLP", "neurons kept of each MLP", "topk", "k"),
    ("Faithfulness with these", "faithfulness with the neurons kept", "topk", "faithfulness"),
    ("Accuracy with these", "accuracy with the neurons kept", "topk", "accuracy"),
    ("… with no neuron kept (floor)", "accuracy with no neuron kept", "topk", "floor_accuracy"),
    ("Top neurons classified, raw", "neurons classified, raw", "classify", "raw_share"),
    ("Top neurons classified, calibrated", "neurons classified, calibrated", "classify", "calibrated_share"),
    ("Overlap of operators' top neurons (IoU)", "overlap of operators' neurons (IoU)", "overlap", "mean_iou"),
    ("Top neurons that no other operator has", "neurons unique to an operator", "overlap", "unique_share"),
    (_KNOCKED_OUT, "heuristic knocked out, raw: accuracy left", "knockout", "raw_associated"),
    ("… calibrated", "heuristic knocked out, calibrated: accuracy left", "knockout", "calibrated_associated"),
    (_ON_OTHERS, "heuristic knocked out, calibrated: other minus own prompts", "knockout", "calibrated_difference"),
    (_OWN, f"accuracy without {_LOST} of a prompt's neurons, raw", "prompt_knockout", f"raw_associated_{_LOST}"),
    *(
        (_LOSS.format(c), _SHORT_LOSS.format(c), "prompt_knockout", f"{c}_vs_other_heuristics_{_LOST}")
        for c in ("raw", "calibrated")
    ),
    (_ALONE, "faithfulness with calibrated neurons alone", "bag", "calibrated_faithfulness"),
    ("… above the floor", "calibrated neurons alone, above the floor", "bag", "calibrated_above_floor"),
    *(
        (_CONTRIBUTION.format(c), f"contribution, correct minus incorrect, {c}", "failures", f"{c}_contribution")
        for c in ("raw", "calibrated")
    ),
    (_CARRIED, _CARRIED.lower(), "training", "raw_mutual_share"),
    (
        "… above the floor, raw",
        "faithfulness over training, above the floor",
        "training",
        "raw_mutual_share_above_floor",
    ),
)
KEY_NUMBERS = tuple(KeyNumber(*names) for names in _NUMBERS)


def key_number_entries(number: KeyNumber, summary: Mapping[str, Any], operators: list[str]) -> list[Any]:
    """Entries of a summary for a key number: one per operator, then the overall one; None where there is none."""
    by_operator = summary.get(number.experiment, {})
    overall = (by_operator.get(AVERAGE) or by_operator.get(ALL) or {}).get(number.measure)
    return [*(by_operator.get(operator, {}).get(number.measure) for operator in operators), overall]
