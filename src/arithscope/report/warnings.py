"""Where a run's results are weak: warnings that stand in the report beside the numbers they are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arithscope.figures.style import SIGNS
from arithscope.pipeline.store import RunFolder
from arithscope.report.formatting import as_mean, listed, number, shown
from arithscope.stats.intervals import Mean

SATURATED = 0.98  # from this mean probability of right answers on, there is hardly room for it to rise or to differ
STABLE = 0.5  # correlation of neurons' effects between halves of the prompts; below it their ranking is mostly chance
DISAGREEMENT = 0.1  # between faithfulness and accuracy of the same circuit
# Where both are told of a circuit: experiment, what stands before the measure's name, what it is, and its section.
CIRCUITS = (
    ("circuit", "", "the circuit alone", "circuit"),
    ("topk", "", "the circuit with only the top neurons", "neurons"),
    ("bag", "raw_", "the circuit with only neurons of raw heuristics", "proof"),
    ("bag", "calibrated_", "the circuit with only neurons of calibrated heuristics", "proof"),
)


@dataclass(frozen=True)
class ResultWarning:
    section: str  # of the report
    name: str
    says: str


def result_warnings(run: RunFolder) -> list[ResultWarning]:
    """All that the summary gives reason to warn of."""
    asked, summary = run.manifest["configuration"], run.summary
    found = [_few(summary, asked), _saturated(summary, asked), _unstable(summary), *_disagreeing(summary)]
    return [weakness for weakness in found if weakness is not None]


def _means(summary: Mapping[str, Any], experiment: str, measure: str) -> dict[str, Mean]:
    """By operator, where there is one."""
    entries = {
        operator: values.get(measure) for operator, values in summary.get(experiment, {}).items() if operator in SIGNS
    }
    return {operator: as_mean(e) for operator, e in entries.items() if isinstance(e, dict) and e["value"] is not None}


def _few(summary: Mapping[str, Any], asked: Mapping[str, Any]) -> ResultWarning | None:
    """Samples shrink where fewer prompts are answered correctly than discovery, evaluation and tests ask for together."""
    if asked.get("sizes") is None:  # written by an earlier version
        return None
    discovery, evaluation = (asked["sizes"][name] for name in ("discovery", "evaluation"))
    wanted = discovery + evaluation + max(discovery, evaluation)
    correct = {o: accuracy.n for o, accuracy in _means(summary, "accuracy", "p_answer_correct").items()}
    missing = {o: 0 for o in _means(summary, "accuracy", "accuracy") if o not in correct}
    few = {o: n for o, n in (missing | correct).items() if n < wanted}
    if not few:
        return None
    counts = listed(f"{n} of {SIGNS[o]}" for o, n in few.items())
    return ResultWarning(
        "accuracy",
        "Too few correct prompts",
        f"only {counts}, where the samples want {wanted} of each "
        "operator. Samples are smaller there, and what rests on them is uncertain.",
    )


def _saturated(summary: Mapping[str, Any], asked: Mapping[str, Any]) -> ResultWarning | None:
    sure = _means(summary, "accuracy", "p_answer_correct")
    full = {o: p for o, p in sure.items() if p.value >= SATURATED}
    if not full or asked.get("effect") != "probability":
        return None
    told = listed(f"{number(p.value)} for {SIGNS[o]}" for o, p in full.items())
    return ResultWarning(
        "circuit",
        "Saturated probabilities",
        f"right answers have a mean probability of {told}. So near to one, probabilities hardly "
        "tell components apart that move the logits differently; compare with --effect logit.",
    )


def _unstable(summary: Mapping[str, Any]) -> ResultWarning | None:
    halves = {o: entries.get("split_half") for o, entries in summary.get("neurons", {}).items()}
    low = {o: r for o, r in halves.items() if o in SIGNS and isinstance(r, int | float) and r < STABLE}
    if not low:
        return None
    told = listed(f"{number(r)} for {SIGNS[o]}" for o, r in low.items())
    return ResultWarning(
        "neurons",
        "Unstable ranking of neurons",
        f"between two halves of the prompts, neurons' effects correlate with only {told}. Which neurons "
        "are the top ones depends on the sample; the preset paper has more prompts.",
    )


def _disagreeing(summary: Mapping[str, Any]) -> Iterator[ResultWarning]:
    """Faithfulness and accuracy say different things of a circuit, and their intervals do not overlap."""
    for experiment, prefix, what, section in CIRCUITS:
        faithful = _means(summary, experiment, f"{prefix}faithfulness")
        right = _means(summary, experiment, f"{prefix}accuracy")
        apart = [
            f"{SIGNS[o]}: faithfulness {shown(f)}, accuracy {shown(right[o])}"
            for o, f in faithful.items()
            if o in right and abs(f.value - right[o].value) >= DISAGREEMENT and not _overlap(f, right[o])
        ]
        if apart:
            yield ResultWarning(
                section,
                f"Faithfulness that disagrees with accuracy, of {what}",
                f"{'; '.join(apart)}. The answer's logit may stay close to "
                "the largest while another number has overtaken it, so faithfulness alone says too much here.",
            )


def _overlap(a: Mean, b: Mean) -> bool:
    return a.low <= b.high and b.low <= a.high
