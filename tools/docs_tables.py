"""Reference tables of the documentation, generated from what stages and result classes declare.

    python -m tools.docs_tables            # rewrites docs/reference/stages.md and docs/reference/results.md
    python -m tools.docs_tables --check    # exits with code 1 if a page is out of date

A page holds generated text between two markers; everything else on it is written by hand:

    <!-- generated: stages -->
    <!-- end of generated text -->
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_type_hints

from arithscope.experiments.common.schema import Array, Table, Value
from arithscope.experiments.common.stage import Stage
from arithscope.pipeline.registry import all_stages

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
MARKED = re.compile(r"(^<!-- generated: (\w+) -->\n).*?(^<!-- end of generated text -->$)", re.M | re.S)


def stages_table(stages: Sequence[Stage]) -> str:
    """One row per stage: what it computes, the paper's section, the stages it needs and the settings it reads."""
    by_result = {stage.result: stage.name for stage in stages}
    rows = []
    for stage in stages:
        needs = [by_result.get(kind, kind.__name__) for kind in stage.needs]
        name = f"[{stage.name}](results.md#{stage.name})" + (" *(on request)*" if stage.on_request else "")
        rows.append([name, stage.summary_line, stage.paper, ", ".join(needs), ", ".join(_code(stage.reads))])
    return _table(["stage", "what it computes", "paper", "needs", "settings read"], rows)


def results_reference(stages: Sequence[Stage]) -> str:
    """For every stage a section with the columns of its tables, its arrays and its plain values."""
    return "\n\n".join(part for stage in stages for part in _result_sections(stage))


def _result_sections(stage: Stage) -> list[str]:
    schema = stage.result.schema()
    hints = get_type_hints(stage.result).items()
    types = {name: inspect.formatannotation(kind).replace("typing.", "") for name, kind in hints}
    summary = " ".join((inspect.getdoc(stage.result) or "").split("\n\n")[0].split())
    sections = [f"## {stage.name}\n\n`{stage.result.__name__}`: {summary}"]
    for name, declared in schema.items():
        if isinstance(declared, Table):
            rows = [[f"`{c.name}`", c.kind, "yes" if c.key else "", c.doc] for c in declared.columns]
            columns = _table(["column", "kind", "key", "meaning"], rows)
            sections.append(
                f"### {stage.name}: {name}\n\n{declared.doc} File: `{stage.name}/{name}.parquet`.\n\n{columns}"
            )
    arrays = [(name, a) for name, a in schema.items() if isinstance(a, Array)]
    if arrays:
        rows = [[f"`{stage.name}/{name}.npy`", a.dtype, a.axes, a.doc] for name, a in arrays]
        sections.append(f"### {stage.name}: arrays\n\n{_table(['file', 'dtype', 'axes', 'meaning'], rows)}")
    values = [(name, v) for name, v in schema.items() if isinstance(v, Value)]
    if values:
        rows = [[f"`{name}`", f"`{types[name]}`", v.doc] for name, v in values]
        table = _table(["value", "type", "meaning"], rows)
        sections.append(
            f"### {stage.name}: plain values\n\nStored in `{stage.name}/stage.json`, under `values`.\n\n{table}"
        )
    return sections


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) + " |" for row in lines
    )


def _code(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


GENERATED: dict[str, Callable[[Sequence[Stage]], str]] = {"stages": stages_table, "results": results_reference}


def with_tables(page: str, stages: Sequence[Stage]) -> str:
    """A page with the text between its markers generated from these stages."""
    return MARKED.sub(lambda found: f"{found[1]}\n{GENERATED[found[2]](stages)}\n\n{found[3]}", page)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the generated tables of docs/reference.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    stages, outdated = all_stages(), []
    for path in sorted(REFERENCE.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = with_tables(before, stages)
        if after != before:
            outdated.append(path.name)
            if not check:
                path.write_text(after, encoding="utf-8")
    print(f"{'out of date' if check else 'rewritten'}: {', '.join(outdated) or 'nothing'}")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
