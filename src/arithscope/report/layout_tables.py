"""Tables of a layout's report: whole answers and each token of them, and the key numbers of the answer steps side by side."""

from typing import Any

from arithscope.experiments.common.key_numbers import KEY_NUMBERS, key_number_entries
from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.figures.style import SIGNS
from arithscope.pipeline.registry import stage_of
from arithscope.pipeline.store import RunFolder
from arithscope.report.layouts import ALL, Studied
from arithscope.report.tables import Cell, Table, value_cell

OF_ANSWERS = {  # rows below those of accuracy, by measure of `WholeAnswers`
    "p_answer": "Probability of the right answer",
    "log_p": "Log-probability of the right answer",
    "agreement": "Free running writes what the steps say",
    "stops": "No further digit after the right answer",
}


def answer_measures(studied: Studied) -> dict[str, str]:
    """Names of the measures of whole answers and of each step."""
    steps = studied.stratum.every_step() if studied.stratum.steps > 1 else []
    right = {f"accuracy_{own.step}": f"{own.token_name.capitalize()} right" for own in steps}
    return {"accuracy": "Whole answer right", **right, **OF_ANSWERS}


def answers_table(run: RunFolder, studied: Studied) -> Table | None:
    """Measures of whole answers and of each step by operator; None if they are not computed yet."""
    summary = run.summary.get(stage_of(WholeAnswers).name)
    if summary is None:
        return None
    columns = [*studied.operators, *([AVERAGE] if len(studied.operators) > 1 else [])]
    rows = [
        [Cell(name, href="#answers"), *(value_cell(summary.get(column, {}).get(measure)) for column in columns)]
        for measure, name in answer_measures(studied).items()
    ]
    caption = (
        "Whole answers, and each token of them given the right ones before it, with 95 % intervals and sample sizes"
    )
    return Table(caption, ["", *(SIGNS.get(column, ALL) for column in columns)], rows, "numbers")


def steps_table(run: RunFolder, studied: Studied) -> Table | None:
    """The key numbers of every answer step that was studied, side by side; None if none was."""
    several = len(studied.operators) > 1
    runs = [step for step in studied.steps if step.run is not None]
    summaries = [step.run.summary for step in runs if step.run is not None]
    signs = [SIGNS[operator] for operator in studied.operators] + ([ALL] if several else [])
    header = [Cell(f"{step.stratum.token_name} {sign}", href=step.href) for step in runs for sign in signs]
    rows = []
    for row in KEY_NUMBERS:
        entries: list[Any] = []
        for summary in summaries:
            *own, overall = key_number_entries(row, summary, studied.operators)
            entries += [*own, overall] if several else [overall if own[0] is None else own[0]]
        if any(entry is not None for entry in entries):
            rows.append([row.name, *map(value_cell, entries)])
    return Table("Answer steps side by side", ["", *header], rows, "side-by-side") if rows else None
