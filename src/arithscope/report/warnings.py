"""Reasons to doubt a run's results, shown in the report beside the numbers concerned."""

from collections.abc import Mapping
from math import nan
from typing import Any, NamedTuple

from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.figures.style import SIGNS
from arithscope.figures.words import WHOLE_NUMBERS, words_for
from arithscope.pipeline.layouts import is_layout, only_token
from arithscope.pipeline.registry import stage_of
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import stratum_from_json
from arithscope.report.formatting import as_mean, number, with_interval, worded
from arithscope.report.layouts import studied_by
from arithscope.stats.intervals import Mean

SATURATED = 0.98  # mean probability of correct answers above which there is hardly room for differences
STABLE = 0.5  # correlation of neuron effects between halves of the prompts below which their ranking is mostly chance
DISAGREEMENT = 0.1  # between faithfulness and accuracy of the same circuit
GOOD_FLOOR = 0.2  # accuracy above the baseline with no neuron kept, from which on the answer is computed elsewhere
OFTEN_RIGHT = 0.5  # accuracy of whole answers below which the model mostly does something else
MOST_NEURONS = 0.5  # share of an MLP's neurons beyond which top neurons are not few
# Circuits with both measures: experiment, prefix of the measures' names, description, section of the report.
CIRCUITS = (
    ("circuit", "", "the circuit alone", "circuit"),
    ("topk", "", "the circuit with only its top neurons", "neurons"),
    ("bag", "raw_", "the circuit with only neurons that match a raw heuristic", "proof"),
    ("bag", "calibrated_", "the circuit with only neurons that match a calibrated heuristic", "proof"),
)


class ResultWarning(NamedTuple):
    section: str  # of the report
    name: str
    text: str


def result_warnings(run: RunFolder) -> list[ResultWarning]:
    """The warnings that a run's summary gives reason for."""
    settings, summary = run.manifest["configuration"], run.summary
    accuracy = _means(summary, "accuracy", "accuracy")
    probability = _means(summary, "accuracy", "p_answer_correct")  # missing where no prompt is answered correctly
    correct = {o: probability[o].n if o in probability else 0 for o in accuracy}
    needed = _correct_prompts_needed(settings)
    few = [f"{n} for {SIGNS[o]}" for o, n in correct.items() if n < needed]
    saturated = [f"{number(p.value)} for {SIGNS[o]}" for o, p in probability.items() if p.value >= SATURATED]
    if settings.get("effect") != "probability":
        saturated = []
    ranked_by = {o: entries.get("ranked_by") for o, entries in summary.get("topk", {}).items() if o in SIGNS}
    halves = {o: _values(summary, "neurons", f"split_half_by_{by}").get(o, nan) for o, by in ranked_by.items()}
    low = [f"{number(r)} for {SIGNS[o]}" for o, r in halves.items() if r < STABLE]
    by_probe = summary.get("probe", {}).get("all", {}).get("first_answer_layer")
    by_cause = _values(summary, "answer_layers", "first_answer_layer")
    studied = _values(summary, "neurons", "first_layer")
    uses_mlps = _values(summary, "answer_layers", "needed")
    moved = [
        f"{layer} for {SIGNS[o]}"
        for o, layer in by_cause.items()
        if layer != studied.get(o, layer) and uses_mlps.get(o, True)
    ]
    first = [SIGNS[o] for o, layer in studied.items() if layer == 0]
    baseline = _values(summary, "answer_layers", "baseline")
    floors = [
        f"{with_interval(floor)} for {SIGNS[o]}"
        for o, floor in _means(summary, "topk", "floor_accuracy").items()
        if floor.value > baseline.get(o, 0.0) + GOOD_FLOOR
    ]
    kept = _values(summary, "topk", "share_of_neurons")
    # Where the answer needs no MLP at the last position, how many neurons it needs there means nothing.
    many = [
        f"{share:.0%} for {SIGNS[o]}" for o, share in kept.items() if share > MOST_NEURONS and uses_mlps.get(o, True)
    ]
    reasons = [
        ("accuracy", "Too few correct prompts", few, worded("warnings", "too_few_prompts", few=few, needed=needed)),
        ("circuit", "Saturated probabilities", saturated, worded("warnings", "saturation", saturated=saturated)),
        ("probes", "Probe and cause disagree", moved, worded("warnings", "moved_layers", probe=by_probe, moved=moved)),
        ("neurons", "All layers are answer layers", first, worded("warnings", "first_layer", first=first)),
        ("neurons", "The answer is computed below", floors, worded("warnings", "good_floor", floors=floors)),
        ("neurons", "Unstable ranking of neurons", low, worded("warnings", "unstable_ranking", low=low)),
        ("neurons", "Most neurons are needed", many, worded("warnings", "many_neurons", many=many)),
    ]
    reasons += _reasons_of_layout(run) if is_layout(run) else []
    for experiment, prefix, circuit, section in CIRCUITS:
        apart = _apart(*(_means(summary, experiment, prefix + m) for m in ("faithfulness", "accuracy")))
        name = f"Faithfulness disagrees with accuracy, for {circuit}"
        reasons.append((section, name, apart, worded("warnings", "disagreement", apart=apart)))
    words = words_for(stratum_from_json(settings["stratum"])) if settings.get("stratum") else WHOLE_NUMBERS
    return [ResultWarning(section, name, words.fill(text)) for section, name, found, text in reasons if found]


def _reasons_of_layout(run: RunFolder) -> list[tuple[str, str, list[str], str]]:
    """Section, name, what is found and text of the warnings about whole answers and their steps."""
    answers = _means(run.summary, stage_of(WholeAnswers).name, "accuracy")
    wrong = [f"{with_interval(mean)} for {SIGNS[o]}" for o, mean in answers.items() if mean.value < OFTEN_RIGHT]
    studied = studied_by(run)
    # A token that is the same in all answers gives no reason to doubt anything.
    missing = [s.name for s in studied.steps if s.run is None and only_token(s.stratum, studied.operators) is None]
    return [
        ("answers", "Few whole answers are right", wrong, worded("warnings", "few_whole_answers", wrong=wrong)),
        ("answers", "Answer step left out", missing, worded("warnings", "step_left_out", missing=missing)),
    ]


def _correct_prompts_needed(settings: Mapping[str, Any]) -> int:
    """Correct prompts of an operator that the samples for discovery, selection, evaluation and tests need together."""
    if settings.get("sizes") is None:  # written by an earlier version
        return 0
    samples = [int(settings["sizes"].get(name, 0)) for name in ("discovery", "selection", "evaluation")]
    return sum(samples) + max(samples)


def _means(summary: Mapping[str, Any], experiment: str, measure: str) -> dict[str, Mean]:
    """A measure by operator, where it has a value."""
    entries = {o: values.get(measure) for o, values in summary.get(experiment, {}).items() if o in SIGNS}
    return {o: as_mean(entry) for o, entry in entries.items() if isinstance(entry, dict) and entry["value"] is not None}


def _values(summary: Mapping[str, Any], experiment: str, measure: str) -> dict[str, Any]:
    """A plain number by operator, where there is one."""
    entries = {o: values.get(measure) for o, values in summary.get(experiment, {}).items() if o in SIGNS}
    return {o: entry for o, entry in entries.items() if isinstance(entry, int | float)}


def _apart(faithfulness: Mapping[str, Mean], accuracy: Mapping[str, Mean]) -> list[str]:
    """Operators whose faithfulness and accuracy differ, with intervals that do not overlap."""
    return [
        f"{SIGNS[o]}: faithfulness {with_interval(f)}, accuracy {with_interval(accuracy[o])}"
        for o, f in faithfulness.items()
        if o in accuracy
        and abs(f.value - accuracy[o].value) >= DISAGREEMENT
        and not (f.low <= accuracy[o].high and accuracy[o].low <= f.high)
    ]
