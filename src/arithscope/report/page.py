"""report.html: a run on one self-contained page, without scripts."""

from functools import cache
from pathlib import Path
from typing import Any

from arithscope.figures.registry import FigureSpec, all_figures
from arithscope.figures.style import SIGNS
from arithscope.pipeline.registry import load_plugins, stage_of
from arithscope.pipeline.schema import check_description
from arithscope.pipeline.store import RunFolder
from arithscope.report.figure_files import FOLDER, Picture, drawn_figures, has_results, read_picture, within
from arithscope.report.findings.finding import all_findings
from arithscope.report.formatting import TEMPLATES
from arithscope.report.tables import headline_table, numbers_table, run_tables
from arithscope.report.warnings import result_warnings
from arithscope.utils.files import write_text

REPORT = "report.html"
PICTURE_BYTES = 14_000_000  # of all pictures together; the text takes far less than the megabyte left of 15
MORE = "more"  # for figures that name no section; left out if there are none
SECTIONS = (  # in the paper's order; titles, and the question that each answers, are in templates/sections.html
    *("accuracy", "circuit", "probes", "neurons", "gallery", "classification", "proof", "failures", "training"),
    *("stability", MORE),
)


def write_report(run: RunFolder) -> Path:
    """Write report.html into the run folder, with the figures that show its present results; returns its path."""
    check_description(run.manifest, run.path)
    pictures = {name: read_picture(run.path / FOLDER, name, entry) for name, entry in drawn_figures(run).items()}
    path = run.path / REPORT
    write_text(path, page(run, within(pictures, PICTURE_BYTES)))
    return path


def page(run: RunFolder, pictures: dict[str, Picture]) -> str:
    """The page as HTML, with these pictures of figures."""
    groups, findings = figures_by_section(), all_findings()
    read = cache(run.read)  # findings share results

    def entry(spec: FigureSpec) -> dict[str, Any]:
        results, word = findings.get(spec.name, ((), None))
        finding = word(*map(read, results)) if word and has_results(run, results) else None
        numbers = numbers_table(finding, spec.title) if finding else None
        return {"spec": spec, "picture": pictures.get(spec.name), "finding": finding, "numbers": numbers}

    def section(name: str, specs: list[FigureSpec]) -> dict[str, Any]:
        stages = dict.fromkeys(stage_of(result).name for spec in specs for result in spec.results)
        missing = [stage for stage in stages if not run.is_done(stage)]
        figures = [entry(spec) for spec in specs if has_results(run, spec.results)]
        return {"name": name, "missing": missing, "figures": figures}

    return TEMPLATES.get_template(REPORT).render(
        manifest=run.manifest,
        operators=[SIGNS[o] for o in run.manifest["configuration"]["operators"]],
        warnings=result_warnings(run),
        headline=headline_table(run),
        sections=[section(name, specs) for name, specs in groups.items()],
        appendix=run_tables(run, [spec for specs in groups.values() for spec in specs if spec.name in pictures]),
    )


def figures_by_section() -> dict[str, list[FigureSpec]]:
    """The figures of each section by its name."""
    load_plugins()
    groups: dict[str, list[FigureSpec]] = {name: [] for name in SECTIONS}
    for spec in all_figures():
        groups[spec.section if spec.section in SECTIONS else MORE].append(spec)
    return {name: specs for name, specs in groups.items() if specs}
