"""report.html: all of a run on one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from arithscope.figures.style import SIGNS
from arithscope.pipeline.registry import STAGES
from arithscope.pipeline.schema import check_description
from arithscope.pipeline.store import RunFolder
from arithscope.report.appendix import appendix
from arithscope.report.cells import numbers_table
from arithscope.report.figure_files import FOLDER, drawn_plates
from arithscope.report.findings.figures import FINDINGS
from arithscope.report.findings.finding import Finding
from arithscope.report.formatting import listed
from arithscope.report.headline import headline
from arithscope.report.markup import Markup, element
from arithscope.report.pictures import Picture, read_picture, within
from arithscope.report.story import BY_NAME, SECTIONS, Section
from arithscope.report.warnings import ResultWarning, result_warnings
from arithscope.utils.files import write_text

REPORT = "report.html"
PICTURE_BYTES = 14_000_000  # of all pictures together; the text takes far less than the megabyte that is left of 15
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(run: RunFolder) -> Path:
    """Write the page into the run folder, with the figures that show its stages as they are now."""
    check_description(run.manifest, run.path)
    drawn = {name: read_picture(run.path / FOLDER, name, entry) for name, entry in drawn_plates(run).items()}
    path = run.path / REPORT
    write_text(path, page(run, within(drawn, PICTURE_BYTES)))
    return path


def page(run: RunFolder, pictures: dict[str, Picture]) -> str:
    """The whole document."""
    title = f"How {run.manifest['model']['name']} calculates"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} · arithscope"),
        element("style", Markup((resources.files(__package__) / "report.css").read_text(encoding="utf-8"))),
    )
    read, weak = _reader(run), result_warnings(run)
    sections = [
        _section("summary", "In short", *_studied(run), *_warned(weak), headline(run)),
        *(
            _section(s.name, name, *_told(s, run, read, pictures, [w for w in weak if w.section == s.name]))
            for s, name in zip(SECTIONS, _titles(), strict=True)
        ),
        _section("appendix", "Appendix: how this was made", appendix(run, list(pictures))),
    ]
    body = element(
        "body",
        element("header", element("h1", title)),
        element("details", element("summary", "Contents"), _contents(), class_="contents"),
        _contents("side"),
        element("main", *sections),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _titles() -> list[str]:
    return [f"{i + 1}. {section.title}" for i, section in enumerate(SECTIONS)]


def _contents(name: str | None = None) -> Markup:
    titles = {
        "summary": "In short",
        **{s.name: t for s, t in zip(SECTIONS, _titles(), strict=True)},
        "appendix": "Appendix",
    }
    links = [element("li", element("a", title, href=f"#{section}")) for section, title in titles.items()]
    return element("nav", element("ul", *links), class_=name, aria_label="Contents")


def _section(name: str, title: str, *parts: Markup) -> Markup:
    return element("section", element("h2", title), *parts, id=name)


def _studied(run: RunFolder) -> list[Markup]:
    """What was studied, and how to read what follows."""
    model, asked = run.manifest["model"], run.manifest["configuration"]
    sizes, revision = model["sizes"], f" at {model['revision']}" if model["revision"] else ""
    example = asked["template"].replace("\n", "\\n")
    prefix = ", after a prefix that is in the appendix" if asked["prefix"] else ""
    return [
        element(
            "p",
            element("strong", f"{model['name']}{revision}"),
            f", a model of the family {model['family']} with {sizes['layers']} layers of {sizes['heads']} heads and "
            f"{sizes['neurons']:,} neurons each ({sizes['parameters']:,} parameters), was asked arithmetic with the "
            f"operators {listed(SIGNS[o] for o in asked['operators'])} and operands from 0 to {asked['max_operand']}, "
            "written as ",
            element("code", example),
            f"{prefix}. The run began on {run.manifest['created'][:10]}, with the sample sizes of the preset "
            f"{asked['preset']} and seed {asked['seed']}.",
        ),
        element(
            "p",
            "The experiments follow the paper ",
            element("cite", "Arithmetic Without Algorithms: Language Models Solve Math with a Bag of Heuristics"),
            " (ICLR 2025). Brackets hold 95 % bootstrap intervals. Layers, heads and neurons are counted from 0: L2H3 "
            "is head 3 of layer 2, L2N3 is neuron 3 of its MLP. What is called clear is so by its interval, one at a "
            "time; no allowance is made for the number of comparisons. The authors’ numbers are of Llama-3-8B, "
            "unless it says otherwise, and by the paper’s definitions.",
        ),
    ]


def _warned(weak: list[ResultWarning]) -> list[Markup]:
    """All warnings together, each a link to its section."""
    if not weak:
        return []
    lines = [element("li", element("a", w.name, href=f"#{w.section}")) for w in weak]
    return [element("div", element("strong", "Weak points of this run"), element("ul", *lines), class_="weak")]


def _told(
    section: Section,
    run: RunFolder,
    read: Callable[[str], Any],
    pictures: dict[str, Picture],
    weak: list[ResultWarning],
) -> list[Markup]:
    """A section's question, what is weak or missing of it, and its figures."""
    parts = [element("p", section.question, class_="question")]
    parts += [element("p", element("strong", f"{w.name}: "), w.says, class_="weak") for w in weak]
    absent = [stage for stage in section.stages if not run.is_done(stage)]
    if absent:
        parts.append(element("p", f"This run has no results of {_stages(absent)}.", class_="absent"))
    for name in section.figures:
        if all(map(run.is_done, BY_NAME[name].needs)):
            finding = FINDINGS[name](*(read(stage) for stage in BY_NAME[name].needs))
            parts.append(_figure(name, pictures.get(name), finding))
    return parts


def _stages(names: list[str]) -> str:
    return f"the stage{'s' if len(names) > 1 else ''} {listed(names)}"


def _reader(run: RunFolder) -> Callable[[str], Any]:
    kinds = {stage.name: stage.result for stage in STAGES}

    @cache  # several findings are drawn from the same stages
    def read(stage: str) -> Any:
        return run.read(stage, kinds[stage])

    return read


def _figure(name: str, picture: Picture | None, finding: Finding) -> Markup:
    """A figure without its own title and caption, which stand beside it as text; opened full size it has them."""
    plate = BY_NAME[name]
    said = element("p", element("strong", "This subject: "), finding.says, class_="finding")
    numbers = numbers_table(finding, plate.title) or Markup()
    reading = element("p", element("strong", "How to read it: "), plate.caption)
    if picture is None:
        shown = element("p", "This figure is not drawn yet; the command arithscope report draws it.", class_="absent")
    else:
        image = element("img", src=picture.uri, alt=plate.title, width=picture.width, height=picture.height)
        view = element(
            "div",
            element("a", image, class_="open", href=f"#view-{name}", title="Open full size"),
            element("a", "Close", class_="close", href=f"#figure-{name}"),
            class_="view",
            id=f"view-{name}",
        )
        shown = element("div", view, class_="plate", style=_geometry(picture))
    caption = element("figcaption", said, numbers, reading)
    return element("figure", element("h3", plate.title), shown, caption, id=f"figure-{name}")


def _geometry(picture: Picture) -> str:
    """What the style sheet needs to show the body of a figure only: its shape, and how far the image is moved up."""
    height = (picture.bottom - picture.top) * picture.height
    up = picture.top * picture.height / picture.width
    return f"--width: {picture.width}px; --shape: {picture.width} / {height:.1f}; --up: {-100 * up:.2f}%"
