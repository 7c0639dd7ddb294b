"""Fill the tables in the documents from the result files, so that no number in them is typed by hand.

Markers in a document say where a table goes; the text between them is replaced:

    <!-- table NAME KEY -->
    <!-- end -->

NAME is a file in benchmarks/results, KEY one of its tables. Above the table come the command, the machine and the date.

    python -m benchmarks.tables [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from math import floor, isfinite, log10
from typing import Any

from arithscope.errors import UserError
from arithscope.utils.files import write_text
from benchmarks.record import ROOT, result_path

DOCUMENTS = [ROOT / "README.md", ROOT / "benchmarks" / "RESULTS.md", *sorted((ROOT / "docs").glob("*.md"))]
DIGITS = 3  # significant ones of a measured number
MARKER = re.compile(r"^<!-- (?:table (\S+) (\S+)|end) -->$", re.M)


def filled(text: str, read: Callable[[str], dict[str, Any]]) -> str:
    """A document with its tables filled from the result files."""
    done, at, markers = "", 0, list(MARKER.finditer(text))
    for opening, closing in zip(markers[::2], [*markers[1::2], None], strict=False):
        if opening[1] is None or closing is None or closing[1] is not None:
            raise UserError(
                f"The marker {opening[0]} has no partner; every table begins with one and ends with <!-- end -->."
            )
        done += f"{text[at : opening.end()]}\n{table_text(read(opening[1]), opening[2])}\n"
        at = closing.start()
    return done + text[at:]


def read_result(name: str) -> dict[str, Any]:
    path = result_path(name)
    if not path.is_file():
        raise UserError(
            f"There is no result file benchmarks/results/{name}.json; run its benchmark with --record {name}."
        )
    return json.loads(path.read_text(encoding="utf-8"))


def table_text(result: dict[str, Any], key: str) -> str:
    if key not in result["tables"]:
        raise UserError(f"The result {result['name']} has no table {key!r}; it has {', '.join(result['tables'])}.")
    table = result["tables"][key]
    versions = [f"{name} {result['versions'][name]}" for name in ("arithscope", "torch") if name in result["versions"]]
    where = [result["machine"], *versions]
    where.append(result["date"])
    command = f"`{result['command']}`"
    said = "; ".join(result["notes"])
    rows = [[str(c) for c in table["columns"]], ["---"] * len(table["columns"])]
    rows += [[shown(cell) for cell in row] for row in table["rows"]]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines[1] = lines[1].replace(" ", "")
    return "\n".join([f"{command} ({', '.join(where)}){': ' + said if said else ''}.", "", *lines])


def shown(cell: Any) -> str:
    """Measured numbers with three significant digits, whole ones (counts, layers) in full, None as a dash."""
    if cell is None:
        return "–"
    if isinstance(cell, int):
        return f"{cell:,}"
    if not isinstance(cell, float) or not isfinite(cell):
        return str(cell)
    if cell == 0:
        return "0"
    decimals = DIGITS - 1 - floor(log10(abs(cell)))
    text = f"{round(cell, decimals):,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a document is out of date")
    check = parser.parse_args(arguments).check
    stale = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        try:
            new = filled(text, read_result)
        except UserError as error:
            raise UserError(f"{path.relative_to(ROOT)}: {error}") from None
        if new != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                write_text(path, new)
    if stale:
        print(f"{'Out of date' if check else 'Filled'}: {', '.join(stale)}")
    if stale and check:
        print("Run `make tables`.")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
