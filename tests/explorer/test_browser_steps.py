"""Answer steps in a real browser, at desktop and at phone width, compared with the runs themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import arithscope
from arithscope.results.run import Run
from tests.browser import browser, watched_page  # noqa: F401 (a fixture)
from tests.explorer.client import serving
from tests.explorer.test_browser import at, point, settings

WIDTHS = (1280, pytest.param(390, marks=pytest.mark.slow))  # a laptop, a phone
LAYOUT = "tiny-digits-2-2-3"
TENS, UNITS = f"{LAYOUT}-step-2", f"{LAYOUT}-step-3"
SIZE = 30  # operands 60…89


@pytest.fixture(scope="module")
def layout(small_steps_run: Path) -> Run:
    return arithscope.open(small_steps_run / "2-2-3")


@pytest.fixture(scope="module")
def steps_address(small_steps_run: Path) -> Iterator[str]:
    with serving([small_steps_run / "2-2-3"]) as url:
        yield url


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Browser, steps_address: str) -> Iterator[Page]:  # noqa: F811
    with watched_page(browser, request.param) as opened:
        opened.goto(steps_address)
        expect(opened.locator("main:not([aria-busy]) h1")).to_be_visible()
        yield opened


def top_neuron(run: Run) -> dict[str, int]:
    row = run.patterns.neurons.iloc[0]
    return {"layer": int(row.layer), "neuron": int(row.neuron)}


def step_button(page: Page, name: str) -> None:
    page.get_by_role("group", name="Answer step").get_by_role("button", name=name).click()


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize(("page", "run"), [(1280, TENS), (390, UNITS)], indirect=["page"])
def test_every_view_of_a_step_loads_and_fits(page: Page, layout: Run, run: str) -> None:
    """The page itself is watched: it must log no errors."""
    step = layout.steps[int(run[-1])]
    for view in ("answers", "neurons", "heuristics", "circuit", "training", "compare", "prompt", "neuron"):
        at(page, view, run=run, operator="+", **(top_neuron(step) if view == "neuron" else {}))
        if view == "prompt":
            expect(page.locator(".waterfall")).to_be_visible()
        assert page.get_by_role("alert").count() == 0, view
        assert fits(page), view
        assert not re.search(r"\b(NaN|undefined|null)\b", page.locator("main").inner_text()), view


def test_step_buttons_switch_the_run_and_back_returns(page: Page) -> None:
    at(page, "circuit", run=TENS, operator="+", measure="logit")
    expect(page.locator("main")).to_contain_text("Accuracy of linear probes for the tens digit")
    expect(page.get_by_role("button", name="1 hundreds")).to_be_disabled()  # 1 in all sums
    step_button(page, "3 units")
    expect(page.locator("main")).to_contain_text("Accuracy of linear probes for the units digit")
    assert settings(page)["run"] == [UNITS]
    assert settings(page)["measure"] == ["logit"]
    page.go_back()
    expect(page.locator("main")).to_contain_text("Accuracy of linear probes for the tens digit")
    assert settings(page)["run"] == [TENS]
    expect(page.get_by_role("button", name="2 tens")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("link", name="Heuristics", exact=True).click()
    expect(page.locator(".lead")).to_contain_text("The result is the tens digit.")
    step_button(page, "3 units")
    expect(page.locator(".lead")).to_contain_text("The result is the units digit.")


def test_a_prompt_shows_all_steps(page: Page, layout: Run) -> None:
    at(page, "prompt", run=TENS, prompt="85+68")
    expect(page.locator("h1")).to_have_text("How does the model get the tens digit?")
    expect(page.locator(".tokens .equation")).to_have_text("85 + 68 =")
    expect(page.locator(".token small:nth-of-type(1)")).to_have_text(["hundreds", "tens", "units"])
    answers = {step: layout.steps[step].explain("85+68").answer.number for step in (2, 3)}
    digits = page.locator(".token strong").all_inner_texts()
    assert digits[1:] == [str(answers[2]), str(answers[3])]
    expect(page.locator(".token[aria-current]")).to_contain_text("tens")
    expect(page.locator(".verdict .equation")).to_contain_text("85 + 68 = 1")  # the answer so far
    expect(page.locator(".verdict .equation strong")).to_have_text(str(answers[2]))
    page.get_by_role("link", name=re.compile("units")).click()
    expect(page.locator("h1")).to_have_text("How does the model get the units digit?")
    expect(page.locator(".verdict .equation")).to_contain_text("85 + 68 = 15")
    assert settings(page) == {"run": [UNITS], "prompt": ["85+68"]}
    page.go_back()
    expect(page.locator("h1")).to_have_text("How does the model get the tens digit?")


def test_the_map_of_predictions_has_the_operands_of_the_layout(page: Page, layout: Run) -> None:
    at(page, "prompt", run=TENS, prompt="85+68")
    expect(page.locator(".axis.x b")).to_have_text(["60", "89"])
    expect(page.locator(".axis.y b")).to_have_text(["60", "89"])
    rows = layout.steps[2].accuracy.prompts
    predicted = rows[(rows.op1 == 60 + 12) & (rows.op2 == 60 + 7)].iloc[0].predicted
    point(page, 12, 7, SIZE)
    expect(page.locator(".readout")).to_contain_text("72 + 67 = 139, tens digit 3")
    expect(page.locator(".readout")).to_contain_text(str(predicted))
    page.mouse.down()
    page.mouse.up()
    expect(page.locator(".verdict .equation")).to_contain_text("72 + 67 = 1")
    assert settings(page)["prompt"] == ["72+67"]


def test_a_neuron_has_the_words_of_its_step(page: Page, layout: Run) -> None:
    step = layout.steps[3]
    row = top_neuron(step)
    at(page, "neuron", run=UNITS, operator="+", **row)
    expect(page.locator(".map h2")).to_have_text(["Activation", "Logit of the units digit", "Activation × logit"])
    expect(page.locator(".map .hint").first).to_have_text("at position answer.2")
    neuron = step.neuron(row["layer"], row["neuron"], "+")
    assert neuron.activation_map is not None
    expect(page.locator("main")).to_contain_text(
        f"Most promoted values of the units digit: {' '.join(map(str, neuron.activation_map.tokens))}"
    )
    point(page, 12, 7, SIZE)
    shown = page.locator(".readout").first.inner_text()
    assert shown.startswith("72 + 67 = 139, units digit 9: ")
    value = float(shown.split(": ")[1].replace("−", "-"))
    assert value == pytest.approx(float(neuron.activation_map.activations[12, 7]), rel=6e-3, abs=1e-4)


def test_whole_answers_of_a_layout(page: Page, layout: Run) -> None:
    at(page, "answers", run=LAYOUT)
    expect(page.locator(".lead")).to_contain_text("op1 takes 2 tokens, op2 2 tokens and the answer 3 tokens.")
    correct = int(layout.whole_answers.prompts.correct.sum())
    expect(page.locator(".key-line")).to_contain_text(re.compile(rf"(?<!in)correct \({correct:,}\)"))
    accuracy = layout.folder.summary["whole_answers"]["+"]["accuracy_2"]["value"]
    row = page.locator("tr", has_text="tens digit right").locator(".numeric").inner_text()
    assert float(row.split(" [")[0]) == pytest.approx(accuracy, abs=5e-4)
    expect(page.locator("tr", has_text="hundreds digit right")).to_contain_text(
        "not studied: 1 is asked for in all prompts"
    )
    heads = layout.step_overlap.table.query("components == 'heads'").iloc[0]
    expect(page.locator("section", has_text="What the steps share").locator("tbody tr").first).to_contain_text(
        f"{heads.shared:.0f} of {heads['size']:.0f} and {heads.other_size:.0f}"
    )


def test_where_carries_are_held(page: Page, layout: Run) -> None:
    """Each stretch of a path, with the share of its weakest layer beside the largest share of the control there."""
    at(page, "answers", run=LAYOUT)
    panel = page.locator("section", has_text="Where digits and carries are held")
    names = {("carry", 2): "carry into tens", ("digit", 2): "tens digit", ("digit", 3): "units digit"}
    expected, held = [], layout.carries.held
    for (sources, step), name in names.items():
        own = held[(held.sources == sources) & (held.step == step)].set_index("layer")
        for position, low, high in layout.carries.path("+", step, sources):
            values, control = own.loc[low:high, "value"], own.loc[low:high, "control"]
            expected.append((name, position, min(values), max(control)))
    expect(panel.locator("tbody tr")).to_have_count(len(expected))
    assert {name for name, *_ in expected} == set(names.values())  # after the last layer, every one is held somewhere
    shown = [row.locator("td").all_inner_texts() for row in panel.locator("tbody tr").all()]
    for cells, (name, position, value, control) in zip(shown, expected, strict=True):
        assert cells[0] == name
        assert cells[1].startswith(f"{position}, ")
        assert float(cells[2].split(" [")[0]) == pytest.approx(value, rel=5e-3)
        if math.isnan(control):
            assert cells[3] == "–"
        else:
            assert float(cells[3]) == pytest.approx(control, rel=5e-3)


def test_operands_beside_the_layout_are_refused(browser: Browser, steps_address: str) -> None:  # noqa: F811
    context = browser.new_context()  # not a watched page: the browser logs the refusal as an error
    opened = context.new_page()
    opened.goto(f"{steps_address}#/prompt?run={TENS}&prompt=5%2B38")
    expect(opened.get_by_role("alert")).to_have_text("5 is below 60, the smallest operand here; choose larger ones.")
    opened.goto(f"{steps_address}#/neuron?run={TENS}&layer=2&neuron=99999&operator=%2B")
    expect(opened.get_by_role("alert")).to_contain_text("no neuron L2N99999")
    context.close()
