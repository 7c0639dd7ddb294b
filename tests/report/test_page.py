"""report.html is well-formed, self-contained, escaped and small enough, and shows the numbers of the run."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from markupsafe import escape
from playwright.sync_api import Browser

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.key_numbers import KEY_NUMBERS
from arithscope.experiments.common.result import AVERAGE
from arithscope.figures.circuit import accuracy_table
from arithscope.figures.registry import all_figures, figure
from arithscope.pipeline.registry import stage_of
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.report import page as page_module
from arithscope.report.figure_files import draw_figures, drawn_figures
from arithscope.report.formatting import TEMPLATES, number
from arithscope.report.page import MORE, SECTIONS, setting_text, write_report
from arithscope.report.paper_numbers import LLAMA_8B, PAPER
from arithscope.report.tables import Cell, Table
from arithscope.settings import Settings
from arithscope.utils.files import checksum, locked, with_checksum
from arithscope.utils.progress import Silent
from tests.browser import browser, watched_page  # noqa: F401 (a fixture)
from tests.command_line import call, error_message
from tests.families import small
from tests.report.test_figure_files import noise

HOSTILE = "</style><script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;\n"
CONTROL = "\x00\x1b\ud800\u202e"  # characters that HTML cannot hold, or that change what is shown
MOST = 15_000_000
LEFT_OUT = ("mlp0", "training", "stability")
OF_LAYOUTS = ("answers", "carries", "shared")  # sections about numbers of several tokens
NAMED = [name for name in SECTIONS if name not in (*OF_LAYOUTS, MORE)]
OF_WHOLE_NUMBERS = [spec for spec in all_figures() if spec.section not in OF_LAYOUTS]
DRAWN = [spec for spec in OF_WHOLE_NUMBERS if not {stage_of(result).name for result in spec.results} & {*LEFT_OUT}]


class Document(HTMLParser):
    """A parsed page: its ids, links, images, tags and table rows; every tag must be closed in order."""

    EMPTY = frozenset({"meta", "img", "br"})

    def __init__(self, path: Path):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        values = dict(attributes)
        self.attributes |= values.keys()
        assert len(values) == len(attributes)
        if "id" in values:
            self.ids.append(str(values["id"]))
        if tag == "a":
            self.links.append(str(values["href"]))
        if tag == "img":
            self.images.append(values)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data + " "


@pytest.fixture(scope="module")
def made(small_adder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the hand-built model with every stage except slow ones, its figures and its report."""
    folder = shutil.copytree(small_adder_run, tmp_path_factory.mktemp("runs") / "adder")
    draw_figures(RunFolder(folder), Silent())
    write_report(RunFolder(folder))
    return folder


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    """A run with accuracy alone."""
    run_stages(small("llama", "sdpa"), Settings(("+", "-"), 5), tmp_path / "run", ["accuracy"], Silent())
    return tmp_path / "run"


def report(folder: Path) -> Document:
    return Document(write_report(RunFolder(folder)))


def test_a_whole_page(made: Path) -> None:
    document = Document(made / "report.html")
    assert (document.tags["h1"], document.tags["title"], document.tags["main"]) == (1, 1, 1)
    assert max(Counter(document.ids).values()) == 1
    for link in document.links:
        assert link[1:] in document.ids if link.startswith("#") else (made / unquote(link)).is_file()
    for name in NAMED:
        assert name in document.ids
        question = document.text.split(f'<section id="{name}">')[1].split('<p class="question">')[1].split("</p>")[0]
        assert len(question) > 50
    assert MORE not in document.ids
    assert document.text.startswith('<!doctype html>\n<html lang="en">')
    assert (made / "report.html").stat().st_size < MOST
    assert document.tags["caption"] == document.tags["table"] > 5
    assert document.tags["figcaption"] == document.tags["figure"] == document.tags["h3"]


def test_the_page_is_self_contained(made: Path) -> None:
    document = Document(made / "report.html")
    assert not {"script", "link", "iframe", "object", "form"} & document.tags.keys()
    assert all(str(image["src"]).startswith("data:image/") for image in document.images)
    assert not [name for name in document.attributes if name.startswith("on")]
    assert not [link for link in document.links if "//" in link or ":" in link]
    outside = re.sub(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]*", "", document.text)
    assert not re.search(r"https?://|url\(|@import", outside)
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in document.text


def test_every_figure_has_its_image_caption_and_finding(made: Path) -> None:
    document = Document(made / "report.html")
    assert sorted(str(image["alt"]) for image in document.images) == sorted(spec.title for spec in DRAWN)
    by_alt = {image["alt"]: image for image in document.images}
    for spec in DRAWN:
        kind, data = str(by_alt[spec.title]["src"]).split(";base64,")
        files = {"data:image/png": ".png", "data:image/svg+xml": ".svg"}
        file = made / "figures" / f"{spec.name}{files[kind]}"
        assert base64.b64decode(data) == file.read_bytes()
        other = file.with_suffix(".svg" if file.suffix == ".png" else ".png")
        assert file.stat().st_size <= other.stat().st_size
        assert escape(spec.caption) in document.text
    assert document.text.count("This model: ") == len(DRAWN)
    for stage in ("training", "stability"):
        assert document.text.count(f"no results of the stage {stage}") == 1
    assert "nan" not in re.findall(r"[a-z]+", re.sub(r'src="[^"]*"', "", document.text).lower())


def test_the_figures_of_each_section_are_in_order(made: Path) -> None:
    assert {spec.section for spec in OF_WHOLE_NUMBERS} == set(NAMED)
    document = Document(made / "report.html")
    shown = [name.removeprefix("figure-") for name in document.ids if name.startswith("figure-")]
    assert shown == [spec.name for section in NAMED for spec in DRAWN if spec.section == section]
    assert shown == [spec.name for spec in DRAWN]


def test_a_figure_from_outside_the_package(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arithscope.figures.registry._FIGURES", {spec.name: spec for spec in all_figures()})
    figure("mine", Accuracy, title="My & own")(accuracy_table)
    figure("also-mine", Accuracy, title="Also my own", section="accuracy")(accuracy_table)
    draw_figures(RunFolder(partial), Silent())
    document = report(partial)
    assert [image["alt"] for image in document.images] == ["Accuracy on arithmetic prompts", "Also my own", "My & own"]
    assert "My &amp; own" in document.text.split(f'<section id="{MORE}">')[1].split("<section")[0]
    assert document.text.count("This model: ") == 1  # the others have no finding


def test_key_numbers_are_those_of_the_summary(made: Path) -> None:
    summary = json.loads((made / "summary.json").read_text())
    by_name = {cells[0].strip(): cells[1:] for cells in Document(made / "report.html").rows if cells}
    compared = 0
    for row in KEY_NUMBERS:
        entries = summary.get(row.experiment, {})
        for column, operator in enumerate(("+", AVERAGE)):
            entry = entries.get(operator, {}).get(row.measure)
            if isinstance(entry, dict) and entry["value"] is not None:
                interval = "" if entry["low"] is None else f"[{number(entry['low'])}, {number(entry['high'])}] "
                want = f"{number(entry['value'])} {interval}n = {entry['n']:,}"
                assert by_name[row.name][column].strip() == want
                compared += 1
        if row.name in by_name:
            assert by_name[row.name][-1].strip() == PAPER[LLAMA_8B].get((row.experiment, row.measure), "–")
    assert compared > 20
    named = {(row.experiment, row.measure): row.name for row in KEY_NUMBERS}
    assert by_name[named["circuit", "heads"]][0].strip() == str(summary["circuit"]["+"]["heads"])
    assert (
        by_name[named["probe", "first_answer_layer"]][1].strip()
        == f"{summary['probe']['all']['first_answer_layer']} of 5"
    )


def test_the_papers_models_of_the_same_family_are_shown(partial: Path) -> None:
    [accuracy] = [cells for cells in report(partial).rows if cells and cells[0].strip() == "Accuracy on legal prompts"]
    small, large = (PAPER[model]["accuracy", "accuracy"] for model in ("Llama-3-8B", "Llama-3-70B"))
    assert accuracy[-1].split() == f"{small} Llama-3-70B: {large}".split()


def test_the_appendix_names_every_file(made: Path) -> None:
    document = Document(made / "report.html")
    for record in made.glob("*/stage.json"):
        for name, digest in json.loads(record.read_text())["files"].items():
            assert f"{record.parent.name}/{name}" in document.links
            assert digest[:12] in document.text
    manifest = json.loads((made / "manifest.json").read_text())
    for digest in ("weight_hash", "tokenizer_hash"):
        assert manifest["model"][digest] in document.text


def test_a_run_with_accuracy_alone(partial: Path) -> None:
    bare = report(partial)
    assert bare.images == []
    assert "This figure has not been drawn yet" in bare.text  # nothing drew it
    draw_figures(RunFolder(partial), Silent())
    document = report(partial)
    assert [image["alt"] for image in document.images] == [all_figures()[0].title]
    assert document.text.count("This run has no results of the stage") == len(NAMED) - 1
    assert "no results of the stages localize, circuit, heads and mlp0." in document.text
    assert set(document.ids) >= set(NAMED)


def test_a_run_without_any_number(tmp_path: Path) -> None:
    run_stages(small("llama", "sdpa"), Settings(("+",), 5), tmp_path / "run", ["means"], Silent())
    assert "This run has no numbers to show yet." in report(tmp_path / "run").text


def test_stale_results_and_figures_are_left_out(partial: Path) -> None:
    settings = Settings(("+", "-"), 5)
    draw_figures(RunFolder(partial), Silent())
    run_stages(small("llama", "sdpa"), replace(settings, max_operand=4), partial, ["means"], Silent(), overwrite=True)
    assert "accuracy" not in drawn_figures(RunFolder(partial))
    document = report(partial)  # accuracy is of other operands
    assert document.images == []
    assert "no results of the stage accuracy" in document.text
    run_stages(
        small("llama", "sdpa"), replace(settings, max_operand=4), partial, ["accuracy"], Silent(), overwrite=True
    )
    assert report(partial).images == []  # the figure still shows the old numbers
    draw_figures(RunFolder(partial), Silent())
    assert len(report(partial).images) == 1


def test_the_page_is_escaped(partial: Path) -> None:
    manifest = json.loads((partial / "manifest.json").read_text())
    manifest["model"] |= {
        "name": HOSTILE + CONTROL,
        "family": HOSTILE,
        "source": HOSTILE,
        "revision": HOSTILE,
        "device": HOSTILE,
    }
    manifest["configuration"] |= {
        "template": f"{{op1}}{{operator}}{{op2}}{HOSTILE}",
        "prefix": HOSTILE,
        "preset": HOSTILE,
    }
    manifest["version"] = HOSTILE
    (partial / "manifest.json").write_text(json.dumps(manifest))
    document = report(partial)
    assert not {"script", "iframe"} & document.tags.keys()
    assert document.images == []
    assert "onerror" not in document.attributes
    assert document.tags["style"] == 1
    assert "&lt;script&gt;" in document.text
    assert not set(CONTROL) & set(document.text)


def test_table_markup() -> None:
    rows = [["a < b", Cell("1", ("[0, 2]", "n = 3")), Cell("file", href="a&b"), Cell("ff", code=True)]]
    macros: Any = TEMPLATES.get_template("macros.html").module
    text = str(macros.data_table(Table('"&', ["", "<", "", ""], rows)))
    assert 'aria-label="&#34;&amp;"><' in text.replace("\n", "")
    assert '<tr><th scope="col"></th><th scope="col">&lt;</th>' in text
    cells = (
        '<td>1<small>[0, 2]</small><small>n = 3</small></td><td><a href="a&amp;b">file</a></td><td><code>ff</code></td>'
    )
    assert f'<tr><th scope="row">a &lt; b</th>{cells}</tr>' in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (9999, "9999"),
        (10_000, "10,000"),
        ("", "–"),
        (None, "–"),
        (["+", "-"], "+ -"),
        ("a\nb", '"a\\nb"'),
    ],
)
def test_setting_text(value: object, text: str) -> None:
    assert setting_text(value) == text
    assert setting_text({"a_b": value}) == f"a b {text}"


def drawn_as_they_are(folder: Path, name: str) -> None:
    """Update the checksums of a figure whose files were changed."""
    index = json.loads((folder / "figures" / "index.json").read_text())
    entry = {key: value for key, value in index[name].items() if key != "checksum"}
    entry["files"] = {file: checksum(folder / "figures" / file) for file in entry["files"]}
    (folder / "figures" / "index.json").write_text(json.dumps(index | {name: with_checksum(entry)}))


@pytest.mark.slow
def test_large_figures_are_shrunk_to_fit(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    for name in ("accuracy", "localization"):
        noise(folder / "figures" / f"{name}.png", 2000)  # 12 MB each, and 16 MB as text
        (folder / "figures" / f"{name}.svg").write_text("<svg>" + "x" * 20_000_000)
        drawn_as_they_are(folder, name)
    document = report(folder)
    assert (folder / "report.html").stat().st_size < MOST
    assert len(document.images) == len(DRAWN)
    small_one = (folder / "figures" / "probe-accuracy.svg").read_bytes()
    assert base64.b64encode(small_one).decode() in document.text  # small ones stay as they are


def test_the_report_command(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    (folder / "report.html").unlink()
    (folder / "figures" / "accuracy.svg").unlink()  # is drawn again
    capsys.readouterr()
    assert call("report", folder) == 0
    assert str(folder / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert len(Document(folder / "report.html").images) == len(DRAWN)
    assert (folder / "report.html").read_bytes() == (made / "report.html").read_bytes()
    with locked(folder):
        assert "Another process is writing" in error_message(capsys, "report", folder)
    assert "no run at" in error_message(capsys, "report", tmp_path / "nothing")
    assert "no run at" in error_message(capsys, "report", tmp_path / "nowhere")
    record = json.loads((folder / "topk" / "stage.json").read_text().replace('"mlp_size"', '"size"'))
    (folder / "topk" / "stage.json").write_text(
        json.dumps(with_checksum({k: v for k, v in record.items() if k != "checksum"}))
    )
    (folder / "figures" / "index.json").unlink()
    assert call("report", folder) == 2
    assert "another version of arithscope" in capsys.readouterr().err.splitlines()[-1]


def test_a_full_disk_is_reported(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_module, "write_text", full)
    assert f"Cannot write to {made} (No space left on device)" in error_message(capsys, "report", made)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it_without_scripts_or_requests(browser: Browser, made: Path, width: int) -> None:  # noqa: F811
    with watched_page(browser, width, scripts=False) as page:
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url.split(":")[0]))
        page.goto((made / "report.html").as_uri())
        assert set(requested) <= {"file", "data"}
        assert requested.count("file") == 1
        pictures = page.locator("figure img:visible")
        assert pictures.count() >= len(DRAWN)
        for i in range(pictures.count()):
            box = pictures.nth(i).bounding_box()
            assert box is not None
            assert box["width"] > 100
            assert box["height"] > 30
            assert box["x"] + box["width"] <= width
        page.emulate_media(media="print")
        assert page.locator("h1").is_visible()
