"""Reports of a layout of tokens and of its answer steps: their numbers, links and words."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from arithscope.experiments.carries import CARRY, Carries
from arithscope.experiments.digit_probes import DigitProbes
from arithscope.experiments.step_overlap import StepOverlap
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import Layout, Stratum
from arithscope.report import warnings
from arithscope.report.findings.steps import carry_components, digit_probes, held, step_overlap, whole_answers
from arithscope.report.formatting import number
from arithscope.report.layouts import Studied, studied_by
from arithscope.report.page import write_report
from arithscope.report.terminal import layout_table
from arithscope.report.warnings import result_warnings
from arithscope.results.run import Run, distinct_names
from tests.command_line import call
from tests.figures.test_steps import OVERLAP
from tests.hand_built_digits import CARRY_HEAD, CARRYING_POSITION, LAYERS
from tests.report.test_page import Document
from tests.report.test_warnings import OF_LAYOUTS, documented_rows
from tests.strata import SUMS


@pytest.fixture
def layout(layout_runs: Path, tmp_path: Path) -> Path:
    """Sums with answers of three tokens; the first, a 1 in all of them, is left out."""
    return Path(shutil.copytree(layout_runs / "2-2-3", tmp_path / "2-2-3"))


def plain(document: Document) -> str:
    """The page's text in one line."""
    return " ".join(html.unescape(re.sub("<[^>]*>", "", document.text)).split())


def rows_of(document: Document) -> dict[str, list[str]]:
    """The first row of each name, as words."""
    rows: dict[str, list[str]] = {}
    for cells in document.rows:
        rows.setdefault(cells[0].strip(), [" ".join(cell.split()) for cell in cells[1:]])
    return rows


def shown(entry: dict[str, Any]) -> str:
    return f"{number(entry['value'])} [{number(entry['low'])}, {number(entry['high'])}] n = {entry['n']:,}"


def test_the_report_of_a_layout(layout: Path) -> None:
    for step in ("2", "3"):
        write_report(RunFolder(layout / "steps" / step))
    document = Document(write_report(RunFolder(layout)))
    text = plain(document)
    assert "How carry adder does arithmetic: layout 2-2-3" in text
    assert "op1 and op2 take 2 tokens each, the answer 3: a token a digit, as in" in text
    assert "operands 10…99 and 10…99, answers 100…198" in text
    op1, op2, answer = re.search(r"(\d·\d) \+ (\d·\d) = (\d·\d·\d)", text).groups()  # type: ignore[union-attr]
    assert int(op1.replace("·", "")) + int(op2.replace("·", "")) == int(answer.replace("·", ""))
    assert "the hundreds digit: not studied: 1 is asked for in all prompts" in text
    for link in document.links:
        assert link[1:] in document.ids if link.startswith("#") else (layout / link).is_file()
    assert document.links.count("steps/2/report.html") == document.links.count("steps/3/report.html") == 2
    assert "steps/1/report.html" not in document.links
    assert {"answers", "carries", "shared"} <= set(document.ids)
    assert not {"circuit", "accuracy", "training"} & set(document.ids)


def test_the_numbers_of_a_layout_are_those_of_the_results(layout: Path) -> None:
    rows, summary = rows_of(Document(write_report(RunFolder(layout)))), RunFolder(layout).summary["whole_answers"]
    names = {"Whole answer right": "accuracy", "Hundreds digit right": "accuracy_1", "Units digit right": "accuracy_3"}
    names |= {"Free running writes what the steps say": "agreement", "No further digit after the right answer": "stops"}
    for name, measure in names.items():
        assert rows[name] == [shown(summary["+"][measure])]
    steps = [json.loads((layout / "steps" / step / "summary.json").read_text()) for step in ("2", "3")]
    assert rows["Accuracy on legal prompts"] == [shown(step["accuracy"]["+"]["accuracy"]) for step in steps]
    header = next(
        cells for cells in Document(layout / "report.html").rows if "tens digit +" in [c.strip() for c in cells]
    )
    assert [cell.strip() for cell in header] == ["", "tens digit +", "units digit +"]


def test_the_report_of_a_step(layout: Path) -> None:
    write_report(RunFolder(layout))
    step = layout / "steps" / "2"
    document = Document(write_report(RunFolder(step)))
    text = plain(document)
    assert "How carry adder does arithmetic: layout 2-2-3, answer step 2 of 3 (tens digit)" in text
    assert "Answer step 2 of 3: the tens digit of the answer, given the right tokens before it." in text
    [link] = [link for link in document.links if link.startswith("..")]
    assert (step / link).resolve() == layout / "report.html"
    assert "operands from 0 to" not in text
    assert "max operand" not in text
    assert "the last position" not in text
    assert "Always giving an operator's most frequent tens digit" in text
    assert "an answer that is a single token" not in text
    assert not {"answers", "carries", "shared"} & set(document.ids)


def test_a_step_without_its_layout_has_no_link(layout: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(layout / "steps" / "3", tmp_path / "alone"))
    document = Document(write_report(RunFolder(alone)))
    assert not [link for link in document.links if link.startswith("..")]
    assert "answer step 3 of 3 (units digit)" in document.text


def of(stratum: Stratum) -> Studied:
    return Studied(stratum, ["+"], True, [], "")


def test_layouts_in_words() -> None:
    assert of(SUMS).layout == "op1 and op2 take 2 tokens each, the answer 3: a token a digit"
    by_one = Stratum((10, 99), (2, 9), (12, 99), Layout((1, 0), (0,), (1, 0)))
    assert of(by_one).layout == "op1 takes 2 tokens, op2 1 and the answer 2: a token a digit"
    grouped = Stratum((100, 999), (100, 999), (1000, 1998), Layout((0,), (0,), (3, 0)))
    assert of(grouped).layout == "op1 and op2 take 1 token each, the answer 2 (thousands and up and last 3 digits)"
    prompt = of(grouped).example
    assert re.fullmatch(r"\d{3} \+ \d{3} = 1·\d{3}", prompt)


def test_findings_have_the_numbers_of_the_results(layout_runs: Path) -> None:
    run = RunFolder(layout_runs / "2-2-3")
    answers, carries = run.read(WholeAnswers), run.read(Carries)
    found = whole_answers(answers)
    assert found.text.startswith("The whole answer is right in 1.00 [")
    assert set(found.numbers) >= {"whole answer right", "hundreds right", "tens right", "units right"}
    text = held(answers, carries).text
    *_, before, after = carries.path("+", 2, CARRY)
    assert before[0] == CARRYING_POSITION
    rows = carries.held[(carries.held.step == 2) & (carries.held.sources == CARRY)].set_index("layer")
    [sentence] = [s for s in text.split(". ") if s.startswith("For +, the carry into the tens is held at")]
    assert f"to L{before[2]} ({number(float(rows.value[before[1]]))} [" in sentence
    assert f"then at answer.1 from L{after[1]} on (1.00 [" in sentence
    assert (after[1], after[2]) == (CARRY_HEAD[0], LAYERS - 1)
    assert "follow, control .000)" in sentence
    assert "the carry into the tens L" in carry_components(answers, carries).text


def test_a_carry_that_is_nowhere(layout_runs: Path) -> None:
    run = RunFolder(layout_runs / "2-2-3")
    carries = run.read(Carries)
    lost = Carries(carries.exchange, carries.held.assign(value=0.4), carries.components)
    assert "nowhere do more than half of the answers follow" in held(run.read(WholeAnswers), lost).text
    nothing = Carries(carries.exchange[:0], carries.held[:0], carries.components[:0])
    assert "Too few prompts" in held(run.read(WholeAnswers), nothing).text
    assert "No step has a carry" in carry_components(run.read(WholeAnswers), nothing).text


def test_where_digits_can_be_read(layout_runs: Path) -> None:
    probes = RunFolder(layout_runs / "2-2-3").read(DigitProbes)
    rows = probes.first[(probes.first.variable == "carry into tens") & ~probes.first.given]
    first = rows[rows.layer >= 0].sort_values("layer", kind="stable").iloc[0]
    found = digit_probes(probes)
    assert f"carry into tens at {first.position} after L{first.layer} (best at" in found.text
    assert f"chance {number(first.chance)}" in found.text
    assert found.numbers["carry into tens: best accuracy"] == {"+": rows.best.max()}
    never = digit_probes(DigitProbes(probes.table, probes.first.assign(layer=-1)))
    assert "carry into tens nowhere" in never.text
    assert "No operator has enough" in digit_probes(DigitProbes(probes.table, probes.first[:0])).text


def test_what_steps_share(layout_runs: Path) -> None:
    answers = RunFolder(layout_runs / "2-2-3").read(WholeAnswers)
    heads = pd.DataFrame([{"operator": "+", "layer": 1, "head": 2, "steps": [2, 3]}])
    found = step_overlap(answers, StepOverlap(OVERLAP, heads, [2, 3], []))
    assert "the circuits' heads is .600, that of random sets .100, of top neurons is .300" in found.text
    assert "circuits of all steps for +: L1H2." in found.text
    assert found.numbers["heads, tens and units: IoU"] == {"+": 0.6}
    nothing = step_overlap(answers, StepOverlap(OVERLAP[:0], heads[:0], [], []))
    assert "nothing to compare" in nothing.text


def test_warnings_of_a_layout(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert result_warnings(RunFolder(layout)) == []  # the hundreds, always 1, are no reason to doubt
    shutil.rmtree(layout / "steps" / "3")
    monkeypatch.setattr(warnings, "OFTEN_RIGHT", 1.1)
    found = {w.name: w for w in result_warnings(RunFolder(layout))}
    assert "1.00 [" in found["Few whole answers are right"].text
    assert "no study of answer step 3 (units digit):" in found["Answer step left out"].text
    assert {w.section for w in found.values()} == {"answers"}
    assert (
        {name.lower() for name in found} == OF_LAYOUTS <= documented_rows("docs/reliability.md", "| warning | when |")
    )
    assert "Few whole answers are right" in Document(write_report(RunFolder(layout))).text


def test_the_terminal_shows_whole_answers(layout: Path) -> None:
    run = RunFolder(layout)
    console = Console(width=80, file=io.StringIO())
    console.print(layout_table(studied_by(run), run.summary))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("layout 2-2-3")
    for name in ("Whole answer right", "Hundreds digit right", "Units digit right", "Free running writes"):
        assert name in text
    assert "mean" not in text.split("\n")[1]


def test_commands_name_what_they_are_about(
    layout_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(layout_runs, tmp_path / "runs"))
    assert call("report", folder) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert f"The report of layout 2-2-2 is {folder / '2-2-2' / 'report.html'}" in lines
    assert f"The report of answer step 2 (tens digit) is {folder / '2-2-3' / 'steps' / '2' / 'report.html'}" in lines
    assert call("report", folder / "2-2-3" / "steps" / "3") == 0
    assert "The report of layout 2-2-3, answer step 3 of 3 (units digit) is" in " ".join(
        capsys.readouterr().out.split()
    )
    assert call("compare", folder / "2-2-2", folder / "2-2-3", "--out", tmp_path / "both") == 0
    output = capsys.readouterr().out
    assert "carry adder-2-2-2" in output
    assert (tmp_path / "both" / "whole-answers.png").stat().st_size > 1000


def test_names_of_runs(layout_runs: Path) -> None:
    layout, short = Run(layout_runs / "2-2-3"), Run(layout_runs / "2-2-2")
    tens, units = layout.steps[2], layout.steps[3]
    names = distinct_names([layout, short, tens, units])
    assert names == [f"carry adder-{own}" for own in ("2-2-3", "2-2-2", "2-2-3-step-2", "2-2-3-step-3")]
