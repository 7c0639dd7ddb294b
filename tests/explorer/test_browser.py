"""The explorer in a real browser, at desktop and at phone width, compared with the run itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

import arithscope
from arithscope.heuristics.kinds import kind_name
from arithscope.results.run import Run
from tests.browser import browser, watched_page  # noqa: F401 (a fixture)

WIDTHS = (1280, pytest.param(390, marks=pytest.mark.slow))  # a laptop, a phone


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Page]:  # noqa: F811
    with watched_page(browser, request.param) as opened:
        opened.goto(address)
        expect(opened.locator("main:not([aria-busy]) h1")).to_be_visible()
        yield opened


def at(page: Page, view: str, **values: str | int) -> None:
    """Open a view by its address."""
    base = page.url.split("#")[0]
    page.goto("about:blank")
    page.goto(f"{base}#/{view}?{urlencode(values)}")
    expect(page.locator(f"main:not([aria-busy]) .view.{view} h1")).to_be_visible()


def settings(page: Page) -> dict[str, list[str]]:
    """The settings in the address."""
    return parse_qs(page.url.split("?", 1)[1])


def outlined(page: Page, canvas: int = 0) -> int:
    """Number of pixels of a heat map in the colour of outlines."""
    count = """(canvas) => {
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
        let n = 0;
        for (let i = 0; i < data.length; i += 4) n += [data[i], data[i + 1], data[i + 2]].join() === "255,45,149";
        return n;
    }"""
    return int(page.locator(".map-frame canvas").nth(canvas).evaluate(count))


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(100):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError("the condition never held")


def point(page: Page, op1: int, op2: int, size: int, canvas: int = 0) -> None:
    """Move the mouse over a cell of a heat map."""
    target = page.locator(".map-frame canvas").nth(canvas)
    target.scroll_into_view_if_needed()
    box = target.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] * (op1 + 0.5) / size
    y = box["y"] + box["height"] * (1 - (op2 + 0.5) / size)
    page.mouse.move(x, y)


def test_the_explorer_opens_with_an_explained_prompt(page: Page, run: Run) -> None:
    expect(page.locator(".equation").first).to_contain_text("=")
    shown = page.locator("input[name=prompt]").input_value()
    explained = run.explain(shown)
    expect(page.locator(".verdict strong")).to_have_text(str(explained.answer.number))
    expect(page.locator(".waterfall tr:last-child .figure")).to_have_text(f"{explained.logit:.3f}")
    correct = run.accuracy.prompts[run.accuracy.prompts.operator == explained.operator].correct.sum()
    expect(page.locator(".key-line")).to_contain_text(re.compile(rf"(?<!in)correct \({correct:,}\)"))


@pytest.mark.parametrize("view", ["neurons", "heuristics", "circuit", "training", "compare"])
def test_views_fit_a_phone(browser: Browser, address: str, view: str) -> None:  # noqa: F811
    with watched_page(browser, 390) as page:
        page.goto(address)
        at(page, view)


def test_a_prompt_can_be_typed_clicked_or_chosen_with_keys(page: Page, run: Run) -> None:
    page.locator("input[name=prompt]").fill("25+11")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".verdict .equation")).to_contain_text(f"25 + 11 = {run.explain('25+11').answer.number}")
    assert settings(page)["prompt"] == ["25+11"]
    point(page, 30, 7, 41)
    row = run.accuracy.prompts.query("operator == '+' and op1 == 30 and op2 == 7").iloc[0]
    expect(page.locator(".readout").first).to_contain_text(f"30 + 7 = {row.predicted}")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator(".verdict .equation")).to_contain_text("30 + 7 = ")
    page.locator(".map-frame canvas").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator(".verdict .equation")).to_contain_text("31 + 8 = ")
    assert settings(page)["prompt"] == ["31+8"]


def test_an_empty_prompt_is_explained(browser: Browser, address: str) -> None:  # noqa: F811
    context = browser.new_context()  # not a watched page: the browser logs the refusal as an error
    page = context.new_page()
    page.goto(address)
    page.locator("input[name=prompt]").fill(" ")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("alert")).to_have_text("The prompt is empty; write one as in 226-68=.")
    context.close()


def test_requests_that_nobody_waits_for_are_aborted(page: Page) -> None:
    """A newer prompt, and another view, abort the explanation that is under way; the page then shows the newest."""
    aborted: list[str] = []
    page.on("requestfailed", lambda request: aborted.append(request.url))
    held = []
    page.route("**/explanation?**", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    for prompt in ("25+11", "26+11"):
        page.locator("input[name=prompt]").fill(prompt)
        page.get_by_role("button", name="Explain").click()
        until(page, lambda: bool(held) and prompt.replace("+", "%2B") in held[-1].request.url)  # noqa: B023
    until(page, lambda: len(aborted) == 1)
    page.get_by_role("link", name="Circuit", exact=True).click()
    until(page, lambda: len(aborted) == 2)
    assert ["25%2B11" in aborted[0], "26%2B11" in aborted[1]] == [True, True]
    expect(page.locator(".view.circuit .verdict")).to_be_visible()
    page.go_back()
    expect(page.locator(".verdict .equation")).to_contain_text("26 + 11 = ")


def prompt_that_needs_its_neurons(run: Run) -> tuple[str, str]:
    """A prompt that the model answers correctly only with its associated neurons, and the criterion for these."""
    for criterion in ("calibrated", "raw"):
        for row in run.accuracy.prompts[run.accuracy.prompts.correct].sample(200, random_state=1).itertuples():
            prompt = f"{row.op1}{row.operator}{row.op2}"
            if run.explain(prompt, criterion).ablated.answer.number != row.answer:
                return prompt, criterion
    raise AssertionError("no answer of this run depends on its heuristics")


def test_ablated_neurons_change_the_answer(page: Page, run: Run) -> None:
    prompt, criterion = prompt_that_needs_its_neurons(run)
    at(page, "prompt", run="tiny-llama", prompt=prompt, criterion=criterion)
    explained = run.explain(prompt, criterion)
    expect(page.locator(".verdict strong")).to_have_text(str(explained.right))
    page.get_by_role("button", name="Ablate all associated neurons").click()
    new = explained.ablated.answer
    expect(page.locator("#new-answer")).to_have_text(str(new.number) if new.number is not None else f'"{new.token}"')
    expect(page.locator(".ablation")).to_contain_text(f"instead of {explained.right}")
    expect(page.locator(".ablation h2")).to_have_text(re.compile(f"With {len(explained.neurons)} neurons? ablated"))
    assert settings(page)["ablate"] == ["all"]
    page.reload()
    expect(page.locator("#new-answer")).not_to_have_text(str(explained.right))
    page.get_by_role("button", name="Restore all").click()
    expect(page.locator("#new-answer")).to_have_count(0)
    assert "ablate" not in settings(page)


def test_one_neuron_and_one_heuristic_can_be_ablated(page: Page, run: Run) -> None:
    at(page, "prompt", run="tiny-llama", prompt="25+11", criterion="raw")
    explained = run.explain("25+11", "raw")
    first = explained.neurons.iloc[0]
    page.get_by_role("checkbox", name=f"Neuron L{first.layer}N{first.neuron}", exact=True).uncheck()
    expect(page.locator(".ablation h2")).to_have_text("With 1 neuron ablated")
    without = arithscope.ask(run.model, "25+11", [(int(first.layer), int(first.neuron))]).iloc[0]
    expect(page.locator("#new-answer")).to_have_text(str(without.predicted))
    page.get_by_role("button", name="Restore all").click()
    rule = explained.heuristics.iloc[0]
    page.get_by_role("checkbox", name=f"Neurons of {rule.heuristic}", exact=True).uncheck()
    expect(page.locator(".ablation h2")).to_have_text(re.compile(f"With {rule.neurons} neurons? ablated"))
    assert settings(page)["ablate_heuristic"] == [rule.heuristic]
    page.get_by_role("button", name="Ablate all associated neurons").click()
    expect(page.locator(".ablation h2")).to_have_text(f"With {len(explained.neurons)} neurons ablated")
    assert page.locator("input.toggle:checked").count() == 0
    page.get_by_role("checkbox", name=f"Neuron L{first.layer}N{first.neuron}", exact=True).check()
    expect(page.locator(".ablation h2")).to_have_text(f"With {len(explained.neurons) - 1} neurons ablated")


def test_neurons_are_filtered_sorted_and_opened(page: Page, run: Run) -> None:
    page.get_by_role("link", name="Neurons", exact=True).click()
    rows = page.locator("table.rows tbody tr")
    expect(page.locator("table.rows caption")).to_contain_text(f"{len(run.patterns.neurons):,} neurons")
    page.get_by_role("group", name="Operator").get_by_role("button", name="+").click()
    page.get_by_label("Layer").select_option("5")
    m = run.classify.matches
    kinds = m[(m.operator == "+") & (m.layer == 5) & m.calibrated]
    kind, on = kinds[["kind", "on"]].value_counts().index[0]
    name = kind_name(kind, on)
    page.get_by_label("Kind of heuristic").select_option(name)
    own = kinds[(kinds.kind == kind) & (kinds.on == on)].drop_duplicates("neuron")
    left = re.compile(rf"\b{len(own)} neurons")  # "64 neurons", from before, holds "4 neurons", too
    expect(page.locator("table.rows caption")).to_contain_text(left)
    assert set(rows.locator("a").all_inner_texts()) == {f"L5N{n}" for n in own.neuron}
    page.get_by_role("button", name=re.compile("^score")).click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("score")
    assert settings(page)["run"] == ["tiny-llama"]
    assert settings(page)["kind"] == [name]
    before = rows.locator("a").all_inner_texts()
    page.reload()
    expect(page.locator("table.rows caption")).to_contain_text(left)
    assert rows.locator("a").all_inner_texts() == before
    rows.first.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text(f"{before[0]}, operator +")
    expect(page.locator(".map-frame canvas")).to_have_count(3)
    page.go_back()
    expect(page.locator("table.rows caption")).to_contain_text(left)


def test_maps_of_a_neuron_show_values_and_outline_heuristics(page: Page, run: Run) -> None:
    matches = run.classify.matched(None, "raw")
    wide = matches[(matches.operator == "+") & (matches.kind == "range") & (matches["size"] > 100)]
    row = wide.iloc[0]
    at(page, "neuron", run="tiny-llama", operator="+", layer=int(row.layer), neuron=int(row.neuron))
    own_map = run.neuron(int(row.layer), int(row.neuron), "+").activation_map
    assert own_map is not None
    point(page, 12, 30, 41)
    readouts = page.locator(".readout")
    for i, values in enumerate((own_map.activations[12, 30], own_map.logits[42], own_map.attribution[12, 30])):
        expect(readouts.nth(i)).to_contain_text("12 + 30 = 42: ")
        text = readouts.nth(i).inner_text().split(": ")[1].replace("−", "-").replace(",", "")
        assert float(text) == pytest.approx(float(values), rel=6e-3, abs=1e-4)
    page.mouse.move(2, 2)
    assert outlined(page) == 0
    rule = page.get_by_role("button", name=str(row.heuristic), exact=True)
    rule.hover()
    until(page, lambda: outlined(page) > 20)
    page.mouse.move(2, 2)
    until(page, lambda: outlined(page) == 0)
    rule.click()
    page.mouse.move(2, 2)
    until(page, lambda: outlined(page, 2) > 20)
    assert settings(page)["heuristic"] == [row.heuristic]


def test_a_deep_link_restores_the_view(page: Page, run: Run) -> None:
    matches = run.classify.matched(None, "raw")
    row = matches[(matches.operator == "-") & (matches.kind == "range") & (matches["size"] > 100)].iloc[0]
    values = {"run": "tiny-llama", "operator": "-", "layer": int(row.layer), "neuron": int(row.neuron)}
    at(page, "neuron", **values, heuristic=str(row.heuristic), zoom=30)
    until(page, lambda: outlined(page) > 20)
    expect(page.get_by_role("button", name="30 × 30")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(f'tr[data-heuristic="{row.heuristic}"]')).to_have_attribute("aria-selected", "true")
    picture = page.locator(".map-frame canvas").first.evaluate("(canvas) => canvas.toDataURL()")
    page.reload()
    expect(page.locator(".map-frame canvas")).to_have_count(3)
    until(page, lambda: page.locator(".map-frame canvas").first.evaluate("(canvas) => canvas.toDataURL()") == picture)


def test_heuristics_are_listed_and_opened(page: Page, run: Run) -> None:
    page.get_by_role("link", name="Heuristics", exact=True).click()
    page.get_by_role("group", name="Matches").get_by_role("button", name="raw").click()
    total = run.classify.matched(None, "raw").groupby(["operator", "heuristic"]).ngroups
    expect(page.locator(".results caption")).to_contain_text(f"{total:,} heuristics")
    page.get_by_role("button", name="knocked out").click()
    tested = run.knockout.accuracy.query("criterion == 'raw'").groupby(["operator", "heuristic"]).ngroups
    expect(page.locator(".results caption")).to_contain_text(f"{tested:,} heuristics")
    first = page.locator(".results tbody .heuristic").first
    name = first.inner_text()
    first.click()
    expect(page.locator(".detail h2")).to_contain_text(name)
    own = run.knockout.accuracy.query("criterion == 'raw' and heuristic == @name and ablated == 'own'")
    associated = own[own.group == "associated"].iloc[0].value
    cell = page.locator(".detail tbody tr").first.locator("td").first.inner_text()
    assert float(cell.split(" ")[0]) == pytest.approx(associated, abs=0.005)
    page.locator(".detail").get_by_role("link", name=re.compile("matching neurons?")).click()
    expect(page.locator(".filter-note code")).to_have_text(name)


def test_the_circuit_shows_its_heads(page: Page, run: Run) -> None:
    page.get_by_role("link", name="Circuit", exact=True).click()
    page.get_by_role("group", name="Operator").get_by_role("button", name="−").click()
    kept = run.circuit.chosen("-")
    expect(page.locator(".verdict")).to_contain_text(f"has {len(kept)} heads")
    expect(page.locator(".diagram .arrow")).to_have_count(len(kept))
    layer, head = kept[-1]
    page.locator(f'.diagram [data-head="L{layer}H{head}"]').focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"L{layer}H{head}: attention pattern")).to_be_visible()
    roles = run.heads.roles.reset_index(drop=True)
    roles = roles[(roles.operator == "-") & (roles.layer == layer) & (roles["head"] == head)]
    share = run.heads.attention[int(roles.index[0])][-1, -2]
    cell = page.locator('.matrix [aria-label^="from last to op2: "]')
    assert float(cell.get_attribute("aria-label").split(": ")[1]) == pytest.approx(share, rel=6e-3, abs=1e-4)  # type: ignore[union-attr]
    assert settings(page)["head"] == [f"L{layer}H{head}"]


def test_training_steps_through_checkpoints(page: Page) -> None:
    at(page, "training", run="tiny-pythia")
    expect(page.locator(".line-chart")).to_have_count(4)
    expect(page.locator(".line-chart").nth(3).locator("polyline")).to_have_count(2)  # own neurons, and random ones
    expect(page.locator(".stepper output")).to_have_text("final")
    expect(page.locator(".stepper canvas").first).to_be_visible()
    for name in ("step-01500", "step-00000"):
        page.get_by_role("button", name="← earlier").click()
        expect(page.locator(".stepper output")).to_have_text(name)
        expect(page.locator(".stepper .map-frame canvas")).to_have_attribute("aria-label", re.compile(f"at {name}"))
    assert settings(page)["checkpoint"] == ["0"]
    page.reload()
    expect(page.locator(".stepper output")).to_have_text("step-00000")


def test_comparison_of_runs(page: Page, run: Run) -> None:
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.locator("thead th")).to_have_text(["experiment", "measure", "tiny-llama", "tiny-pythia"])
    page.get_by_role("group", name="Operator").get_by_role("button", name="+").click()
    page.get_by_label("Experiment").select_option("accuracy")
    value = run.folder.summary["accuracy"]["+"]["accuracy"]["value"]
    expect(page.locator("tbody tr").first.locator("td").nth(1)).to_contain_text(f"{value:.3g}")
    page.locator("#run").select_option("tiny-pythia")
    expect(page).to_have_title(re.compile("Compare · tiny-pythia"))


def test_errors_are_shown_as_one_sentence(browser: Browser, address: str) -> None:  # noqa: F811
    """Refused requests log errors on the console, so this page is not watched."""
    page = browser.new_page()
    page.goto(f"{address}#/prompt?prompt=99%2B1")
    expect(page.get_by_role("alert")).to_contain_text("beyond 40")
    page.goto(f"{address}#/neurons?run=nobody")
    expect(page.get_by_role("alert")).to_have_text("There is no run nobody here.")
    page.goto(f"{address}#/nowhere")
    expect(page.get_by_role("alert")).to_have_text("There is no view nowhere.")
    page.goto(f"{address}#/neuron?layer=5&neuron=99999&operator=%2B")
    expect(page.get_by_role("alert")).to_contain_text("no neuron L5N99999")
    page.goto(f"{address}#/prompt?prompt=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    page.close()
