"""report.html: a run on one self-contained page, without scripts. Its tables show the key numbers beside the paper's, the
numbers behind each finding, and how the run was made."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from arithscope.experiments.common.key_numbers import KEY_NUMBERS, key_number_entries
from arithscope.experiments.common.result import AVERAGE
from arithscope.figures.registry import FigureSpec, all_figures
from arithscope.figures.style import SIGNS
from arithscope.pipeline.registry import all_stages, load_plugins, stage_of
from arithscope.pipeline.schema import check_description
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import OPERATORS
from arithscope.report.figure_files import FOLDER, Picture, drawn_figures, has_results, read_picture, within
from arithscope.report.findings.finding import Finding, all_findings
from arithscope.report.formatting import NOTHING, TEMPLATES
from arithscope.report.layout_tables import answers_table, steps_table
from arithscope.report.layouts import ALL, REPORT, Studied, studied_by
from arithscope.report.paper_numbers import PAPER, paper_models
from arithscope.report.tables import Cell, Table, value_cell
from arithscope.report.warnings import result_warnings
from arithscope.utils.files import write_text

PICTURE_BYTES = 14_000_000  # of all pictures together; with the text, the page stays below 15 MB
MORE = "more"  # section of figures that name none
SECTIONS = (  # in the paper's order; templates/sections.html has their titles and the question that each answers
    *("accuracy", "circuit", "probes", "neurons", "gallery", "classification", "proof", "failures", "training"),
    *("stability", "answers", "carries", "shared", MORE),  # those before the last are about a layout of tokens
)
# Numbers shown as "k of n".
_TOTALS = dict.fromkeys([("probe", "first_answer_layer"), ("answer_layers", "first_answer_layer")], "layers")
_TOTALS |= {("topk", "k"): "neurons", ("circuit", "union_heads"): "heads in all"}
SHORT = 12  # digits of a checksum


def write_report(run: RunFolder) -> Path:
    """Write report.html into the run folder, with the figures that are up to date; returns its path."""
    check_description(run.manifest, run.path)
    pictures = {name: read_picture(run.path / FOLDER, name, entry) for name, entry in drawn_figures(run).items()}
    path = run.path / REPORT
    write_text(path, page(run, within(pictures, PICTURE_BYTES)))
    return path


def page(run: RunFolder, pictures: dict[str, Picture]) -> str:
    """The page as HTML, with these pictures of figures."""
    studied, findings = studied_by(run), all_findings()
    groups = figures_by_section(studied)
    read = cache(run.read)  # findings share results

    def entry(spec: FigureSpec) -> dict[str, Any]:
        results, compose = findings.get(spec.name, ((), None))
        finding = (
            compose(*map(read, results)).in_words(studied.words) if compose and has_results(run, results) else None
        )
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
        studied=studied,
        tables=summary_tables(run, studied),
        warnings=result_warnings(run),
        sections=[section(name, specs) for name, specs in groups.items()],
        appendix=run_tables(run, [spec for specs in groups.values() for spec in specs if spec.name in pictures]),
    )


def figures_by_section(studied: Studied) -> dict[str, list[FigureSpec]]:
    """The figures that such a run can have, in its words, by their section's name."""
    load_plugins()
    groups: dict[str, list[FigureSpec]] = {name: [] for name in SECTIONS}
    for spec in all_figures():
        if any(stage_of(result).joins_steps for result in spec.results) == studied.is_layout:
            groups[spec.section if spec.section in SECTIONS else MORE].append(spec.in_words(studied.words))
    return {name: specs for name, specs in groups.items() if specs}


def summary_tables(run: RunFolder, studied: Studied) -> list[Table]:
    """The tables of the summary: key numbers, or of a layout, whole answers and its steps side by side."""
    tables = [answers_table(run, studied), steps_table(run, studied)] if studied.is_layout else [key_number_table(run)]
    return [table for table in tables if table is not None]


def key_number_table(run: RunFolder) -> Table | None:
    """The key numbers of a run by operator, beside the paper's; None if it has none."""
    operators = [str(o) for o in run.manifest["configuration"]["operators"]]
    summary, sizes = run.summary, run.manifest["model"]["sizes"]
    sizes = {**sizes, "heads in all": sizes["layers"] * sizes["heads"]}
    first, *of_family = paper_models(run.manifest["model"])
    rows = []
    for row in KEY_NUMBERS:
        key = row.experiment, row.measure
        entries = key_number_entries(row, summary, operators)
        if any(entry is not None for entry in entries):
            suffix = f" of {sizes[_TOTALS[key]]:,}" if key in _TOTALS else ""
            cells = [value_cell(entry, suffix) for entry in entries]
            notes = tuple(f"{name}: {PAPER[name][key]}" for name in of_family if key in PAPER[name])
            reported = Cell(PAPER[first].get(key, NOTHING), notes)
            rows.append([Cell(row.name, href=f"#{row.section}"), *cells, reported])
    header = ["", *(SIGNS[o] for o in operators), ALL, f"paper’s {first}"]
    caption = "Key numbers, each with its 95 % interval and sample size"
    return Table(caption, header, rows, "key-numbers") if rows else None


def numbers_table(finding: Finding, title: str) -> Table | None:
    """The numbers of a finding by operator, and their average if there are several operators; None without numbers."""
    lines = {name: values for name, values in finding.numbers.items() if values}
    columns = [o for o in OPERATORS if any(o in values for values in lines.values())]
    if not columns:
        return None
    if len(columns) > 1 and any(AVERAGE in values for values in lines.values()):
        columns.append(AVERAGE)
    rows = [[name, *(value_cell(values.get(c)) for c in columns)] for name, values in lines.items()]
    return Table(f"Numbers: {title}", ["", *(SIGNS.get(c, ALL) for c in columns)], rows, "numbers")


def run_tables(run: RunFolder, figures: Iterable[FigureSpec]) -> dict[str, Table]:
    """The tables of the appendix: model, settings, stages, data files, and the files of these figures."""
    model = {name: value for name, value in run.manifest["model"].items() if name != "sizes"}
    model |= {f"size: {name}": value for name, value in run.manifest["model"]["sizes"].items()}
    model["arithscope"] = run.manifest["version"]
    stages = [
        [name, str(e["status"]), str(e.get("finished", NOTHING)), f"{e['seconds']:,.1f}" if "seconds" in e else NOTHING]
        for name, e in run.manifest["stages"].items()
    ]
    pictures: list[list[Cell | str]] = [
        [spec.title, *(_link(f"{FOLDER}/{spec.name}.{kind}", f"{spec.name}.{kind}") for kind in ("png", "svg"))]
        for spec in figures
    ]
    return {
        "model": Table("Model", ["", "value"], _settings(model)),
        "settings": Table("Settings", ["", "value"], _settings(configuration_in_words(run))),
        "stages": Table("Stages", ["stage", "status", "finished", "seconds"], stages, "files"),
        "files": Table("Data files", ["file", "size", "SHA-256, shortened"], _data_files(run), "files"),
        "figures": Table(f"Figures as files, in the folder {FOLDER}", ["figure", "", ""], pictures),
    }


def configuration_in_words(run: RunFolder) -> dict[str, Any]:
    """The settings of a run; of several tokens a number, with operands and layout in words."""
    settings, studied = dict(run.manifest["configuration"]), studied_by(run)
    if not studied.stratum.whole:
        del settings["max_operand"]
        settings["operands"], settings["stratum"] = studied.stratum.described(), studied.part
    return settings


def _settings(values: dict[str, Any]) -> list[list[Cell | str]]:
    return [[name.replace("_", " "), setting_text(value)] for name, value in values.items()]


def setting_text(value: Any) -> str:
    """A setting as text; strings with control characters are quoted."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {setting_text(entry)}" for name, entry in value.items())
    if value is None or value == "":
        return NOTHING
    return str(value) if not isinstance(value, str) or value.isprintable() else json.dumps(value, ensure_ascii=False)


def _data_files(run: RunFolder) -> list[list[Cell | str]]:
    paths: dict[str, str | None] = {"manifest.json": None, "summary.json": None}
    for name in (stage.name for stage in all_stages() if run.is_done(stage.name)):
        record = json.loads((run.path / name / "stage.json").read_text(encoding="utf-8"))
        paths |= {f"{name}/{file}": digest for file, digest in {"stage.json": None, **record["files"]}.items()}
    return [
        [_link(path), _size(run, path), Cell(digest[:SHORT], code=True) if digest else NOTHING]
        for path, digest in paths.items()
    ]


def _link(path: str, text: str = "") -> Cell:
    return Cell(text or path, href=quote(path))


def _size(run: RunFolder, path: str) -> str:
    size = (run.path / path).stat().st_size
    thousands = min((len(str(size)) - 1) // 3, 3)
    return f"{size / 1000**thousands:.1f} {('kB', 'MB', 'GB')[thousands - 1]}" if thousands else f"{size} B"
