"""Reasons to doubt a run's results, shown in the report beside the numbers concerned."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arithscope.figures.style import SIGNS
from arithscope.pipeline.store import RunFolder
from arithscope.report.formatting import as_mean, number, with_interval, worded
from arithscope.stats.intervals import Mean

SATURATED = 0.98  # mean probability of correct answers above which there is hardly room for differences
STABLE = 0.5  # correlation of neuron effects between halves of the prompts below which their ranking is mostly chance
DISAGREEMENT = 0.1  # between faithfulness and accuracy of the same circuit
# Circuits with both measures: experiment, prefix of the measures' names, description, section of the report.
CIRCUITS = (
    ("circuit", "", "the circuit alone", "circuit"),
    ("topk", "", "the circuit with only its top neurons", "neurons"),
    ("bag", "raw_", "the circuit with only neurons that match a raw heuristic", "proof"),
    ("bag", "calibrated_", "the circuit with only neurons that match a calibrated heuristic", "proof"),
)


@dataclass(frozen=True)
class ResultWarning:
    section: str  # of the report
    name: str
    text: str


def result_warnings(run: RunFolder) -> list[ResultWarning]:
    """All warnings that the summary of a run gives reason for."""
    settings, summary = run.manifest["configuration"], run.summary
    return [
        *_too_few_prompts(summary, settings),
        *_saturation(summary, settings),
        *_unstable_ranking(summary),
        *_disagreement(summary),
    ]


def _means(summary: Mapping[str, Any], experiment: str, measure: str) -> dict[str, Mean]:
    """A measure by operator, where it has a value."""
    entries = {o: values.get(measure) for o, values in summary.get(experiment, {}).items() if o in SIGNS}
    return {o: as_mean(entry) for o, entry in entries.items() if isinstance(entry, dict) and entry["value"] is not None}


def _too_few_prompts(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[ResultWarning]:
    """Samples shrink if there are fewer correct prompts than discovery, evaluation and tests need together."""
    if settings.get("sizes") is None:  # written by an earlier version
        return
    discovery, evaluation = (settings["sizes"][name] for name in ("discovery", "evaluation"))
    needed = discovery + evaluation + max(discovery, evaluation)
    correct = dict.fromkeys(_means(summary, "accuracy", "accuracy"), 0)
    correct |= {o: mean.n for o, mean in _means(summary, "accuracy", "p_answer_correct").items()}
    few = [f"{n} for {SIGNS[o]}" for o, n in correct.items() if n < needed]
    if few:
        text = worded("warnings", "too_few_prompts", few=few, needed=needed)
        yield ResultWarning("accuracy", "Too few correct prompts", text)


def _saturation(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[ResultWarning]:
    means = _means(summary, "accuracy", "p_answer_correct")
    saturated = [f"{number(p.value)} for {SIGNS[o]}" for o, p in means.items() if p.value >= SATURATED]
    if saturated and settings.get("effect") == "probability":
        text = worded("warnings", "saturation", saturated=saturated)
        yield ResultWarning("circuit", "Saturated probabilities", text)


def _unstable_ranking(summary: Mapping[str, Any]) -> Iterator[ResultWarning]:
    halves = {o: entries.get("split_half") for o, entries in summary.get("neurons", {}).items() if o in SIGNS}
    low = [f"{number(r)} for {SIGNS[o]}" for o, r in halves.items() if isinstance(r, int | float) and r < STABLE]
    if low:
        text = worded("warnings", "unstable_ranking", low=low)
        yield ResultWarning("neurons", "Unstable ranking of neurons", text)


def _disagreement(summary: Mapping[str, Any]) -> Iterator[ResultWarning]:
    """Faithfulness and accuracy of a circuit differ, and their intervals do not overlap."""
    for experiment, prefix, circuit, section in CIRCUITS:
        faithfulness, accuracy = (_means(summary, experiment, prefix + m) for m in ("faithfulness", "accuracy"))
        apart = [
            f"{SIGNS[o]}: faithfulness {with_interval(f)}, accuracy {with_interval(accuracy[o])}"
            for o, f in faithfulness.items()
            if o in accuracy
            and abs(f.value - accuracy[o].value) >= DISAGREEMENT
            and not (f.low <= accuracy[o].high and accuracy[o].low <= f.high)  # their intervals overlap
        ]
        if apart:
            text = worded("warnings", "disagreement", apart=apart)
            yield ResultWarning(section, f"Faithfulness disagrees with accuracy, for {circuit}", text)
