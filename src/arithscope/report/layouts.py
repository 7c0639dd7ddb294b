"""What a run is about: whole numbers, a layout of tokens, or one answer step of a layout; and links between reports."""

from dataclasses import dataclass

from arithscope.figures.style import SIGNS
from arithscope.figures.words import Words, words_for
from arithscope.pipeline.configuration import stored_stratum
from arithscope.pipeline.layouts import STEPS, is_layout, layout_of, left_out_steps, steps_of
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import Stratum
from arithscope.report.formatting import listed

REPORT = "report.html"
ALL = "all operators"


@dataclass(frozen=True)
class StepReport:
    """An answer step of a layout.

    Attributes:
        stratum: The layout, at this step.
        run: Its run; None if it was left out.
        left_out: Why it was left out.
    """

    stratum: Stratum
    run: RunFolder | None
    left_out: str

    @property
    def name(self) -> str:
        """answer step 2 (tens digit)"""
        return f"answer step {self.stratum.step} ({self.stratum.token_name})"

    @property
    def href(self) -> str:
        """Its report, as seen from the layout's."""
        return f"{STEPS}/{self.stratum.step}/{REPORT}"


@dataclass(frozen=True)
class Studied:
    """What a run is about.

    Attributes:
        stratum: Its prompts.
        operators: Operators that were studied.
        is_layout: Whether it is about whole answers of several tokens.
        steps: Of a layout, its answer steps.
        layout_report: Of an answer step, where the report of its layout is; empty if there is none.
    """

    stratum: Stratum
    operators: list[str]
    is_layout: bool
    steps: list[StepReport]
    layout_report: str

    @property
    def words(self) -> Words:
        return words_for(self.stratum)

    @property
    def part(self) -> str:
        """The layout and the answer step: `layout 2-2-3, answer step 2 of 3 (tens digit)`; empty for whole numbers."""
        s = self.stratum
        if s.whole:
            return ""
        step = "" if self.is_layout else f", answer step {s.step} of {s.steps} ({s.token_name})"
        return f"layout {s.layout_name}{step}"

    @property
    def layout(self) -> str:
        """How many tokens the numbers take: `op1 and op2 take 2 tokens each, the answer 3: a token a digit`."""
        op1, op2, answer = self.stratum.tokens.counts
        text = f"op1 and op2 take {_tokens(op1)} each, the answer {answer}"
        if op1 != op2:
            text = f"op1 takes {_tokens(op1)}, op2 {op2} and the answer {answer}"
        largest = self.stratum.op1[1], self.stratum.op2[1], self.stratum.answers[1]
        if (op1, op2, answer) == tuple(len(str(number)) for number in largest):
            return f"{text}: a token a digit"
        return f"{text} ({listed(step.step_name for step in self.stratum.every_step())})"

    @property
    def example(self) -> str:
        """A prompt of the layout with its answer, cut into tokens: `4·5 + 7·8 = 1·2·3`."""
        prompts = self.stratum.prompts(self.operators[0])
        row = prompts[[len(prompts) // 3]]
        numbers = {"op1": row.op1, "op2": row.op2, "answer": row.answer}
        op1, op2, answer = ("·".join(self.stratum.cut(name, int(value[0]))) for name, value in numbers.items())
        return f"{op1} {SIGNS[self.operators[0]]} {op2} = {answer}"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def studied_by(run: RunFolder) -> Studied:
    """What a run is about."""
    configuration, whole_answers = run.manifest["configuration"], is_layout(run)
    stratum = stored_stratum(configuration, int(run.manifest["model"]["limit"]))
    operators = [str(operator) for operator in configuration["operators"]]
    steps = step_reports(run, stratum) if whole_answers else []
    report = "../../report.html" if layout_of(run) else ""
    return Studied(stratum, operators, whole_answers, steps, report)


def step_reports(run: RunFolder, stratum: Stratum) -> list[StepReport]:
    """Every answer step of a layout's run."""
    runs, reasons = {int(step.path.name): step for step in steps_of(run)}, left_out_steps(run)
    return [StepReport(own, runs.get(own.step), reasons.get(own.step, "")) for own in stratum.every_step()]
