"""How a run was made: settings, hashes, versions, times, and where every number is stored."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from arithscope.figures.gallery import PLATES
from arithscope.pipeline.registry import STAGES
from arithscope.pipeline.store import RunFolder
from arithscope.report.figure_files import FOLDER
from arithscope.report.formatting import NOTHING
from arithscope.report.markup import Markup, element, table, together

SHORT = 12  # digits of a checksum


def appendix(run: RunFolder, drawn: list[str]) -> Markup:
    """Tables about the run itself; links lead to files beside the report."""
    model, configuration = run.manifest["model"], run.manifest["configuration"]
    about = {name: value for name, value in model.items() if name != "sizes"}
    about |= {f"size: {name.replace('_', ' ')}": value for name, value in model["sizes"].items()}
    about["arithscope"] = run.manifest["version"]
    return together(
        table("Model", ["", "value"], [[name.replace("_", " "), plain(value)] for name, value in about.items()]),
        table("Settings", ["", "value"], [[name.replace("_", " "), plain(v)] for name, v in configuration.items()]),
        table("Stages", ["stage", "status", "finished", "seconds"], _stages(run), "files"),
        element(
            "p",
            "Links lead to files in the run folder that this page was written into. docs/run-folder.md says what each "
            "column holds.",
        ),
        table("Data files", ["file", "size", "SHA-256, shortened"], _files(run), "files"),
        table(f"Figures as files, in the folder {FOLDER}", ["figure", "", ""], _figures(drawn)),
    )


def plain(value: Any) -> str:
    """A setting as it is written; text that is empty, or has more than letters, as a program would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {plain(inside)}" for name, inside in value.items())
    if value is None or value == "":
        return NOTHING
    return str(value) if not isinstance(value, str) or value.isprintable() else json.dumps(value, ensure_ascii=False)


def _stages(run: RunFolder) -> list[list[str]]:
    return [
        [name, str(e["status"]), str(e.get("finished", NOTHING)), f"{e['seconds']:,.1f}" if "seconds" in e else NOTHING]
        for name, e in run.manifest["stages"].items()
    ]


def _files(run: RunFolder) -> list[list[str]]:
    rows = [[_link("manifest.json"), _size(run, "manifest.json"), NOTHING]]
    rows.append([_link("summary.json"), _size(run, "summary.json"), NOTHING])
    for stage in STAGES:
        if run.is_done(stage.name):
            record = json.loads((run.path / stage.name / "stage.json").read_text(encoding="utf-8"))
            for name, digest in {"stage.json": None, **record["files"]}.items():
                path = f"{stage.name}/{name}"
                checksum = element("code", digest[:SHORT]) if digest else NOTHING
                rows.append([_link(path), _size(run, path), checksum])
    return rows


def _figures(drawn: list[str]) -> list[list[str]]:
    return [
        [
            plate.title,
            *(_link(f"{FOLDER}/{plate.name}.{ending}", f"{plate.name}.{ending}") for ending in ("png", "svg")),
        ]
        for plate in PLATES
        if plate.name in drawn
    ]


def _link(path: str, name: str | None = None) -> Markup:
    return element("a", name or path, href=quote(path))


def _size(run: RunFolder, path: str) -> str:
    size = float((run.path / path).stat().st_size)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
