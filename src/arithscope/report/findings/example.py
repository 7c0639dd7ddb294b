"""Finding on one prompt and the heuristics that hold for it."""

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.explanation import HEURISTIC_NEURONS
from arithscope.experiments.example import CONTROL, NONE, OWN, Example
from arithscope.figures.words import shown_prompt
from arithscope.report.findings.finding import Finding, finding, worded


@finding("one-prompt", Example, Accuracy)
def one_prompt(result: Example, accuracy: Accuracy) -> Finding:
    answers = {str(row["ablated"]): row for row in result.answers.to_dict("records")}
    contributions = result.parts.set_index("part").contribution
    return worded(
        "one_prompt",
        example=result,
        prompt=shown_prompt(accuracy.stratum, result.op1, result.operator, result.op2),
        model=answers[NONE],
        without=answers[OWN],
        control=answers.get(CONTROL),
        neurons=len(result.neurons),
        added=float(contributions[HEURISTIC_NEURONS]),
        logit=float(contributions.sum()),
        above=int((result.total > result.total[result.answer]).sum()),
    )
