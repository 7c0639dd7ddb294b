"""Tables in the documents equal those in the result files; a document that differs is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arithscope.errors import UserError
from benchmarks import record, tables
from benchmarks.tables import DOCUMENTS, MARKER, filled, main, shown

RESULT: dict[str, Any] = {
    "name": "speed",
    "command": "python -m benchmarks.speed --n 3",
    "machine": "an abacus, 7 cores",
    "date": "2026-11-15",
    "versions": {"torch": "2.13.0"},
    "notes": ["a note", "another"],
    "tables": {"by-layer": {"columns": ["layer", "rate|s"], "rows": [[3, 12345.6], [11, None]]}},
}
BARE = "Before\n\n<!-- table speed by-layer -->\n<!-- end -->\n\nafter\n"
FULL = """Before

<!-- table speed by-layer -->
`python -m benchmarks.speed --n 3` (an abacus, 7 cores, torch 2.13.0, 2026-11-15): a note; another.

| layer | rate\\|s |
|---|---|
| 3 | 12,300 |
| 11 | – |
<!-- end -->

after
"""


def test_documents_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_some_documents_have_tables() -> None:
    """Else the test above would check nothing."""
    assert {"RESULTS.md"} <= {path.name for path in DOCUMENTS if MARKER.search(path.read_text(encoding="utf-8"))}


def test_every_result_file_states_its_origin() -> None:
    paths = list(record.RESULTS.glob("*.json"))
    assert paths
    for path in paths:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result["name"] == path.stem
        for table in result["tables"].values():
            assert {len(row) for row in table["rows"]} == {len(table["columns"])}
        assert all(result[field] for field in ("command", "machine", "date")), path.name
        assert not any("by hand" in note for note in result["notes"]), path.name


def test_filling_a_table_is_idempotent() -> None:
    assert filled(BARE, {"speed": RESULT}.__getitem__) == FULL
    assert filled(FULL, {"speed": RESULT}.__getitem__) == FULL
    assert filled(FULL + BARE, {"speed": RESULT}.__getitem__) == FULL + FULL
    assert filled("no tables", {}.__getitem__) == "no tables"


def test_number_format() -> None:
    expected = {
        0.0: "0",
        1234567: "1,234,567",
        7654321.0: "7,650,000",
        999.6: "1,000",
        44.46: "44.5",
        9.996: "10",
        6.8: "6.8",
        0.012345: "0.0123",
        0.0001: "0.0001",
        -1234.5: "-1,230",
        "text": "text",
        None: "–",
        float("inf"): "inf",
    }
    assert {value: shown(value) for value in expected} == expected


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one document and one result."""
    (tmp_path / "speed.json").write_text(json.dumps(RESULT))
    path = tmp_path / "page.md"
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "DOCUMENTS", [path])
    return path


def test_a_stale_document_is_found_and_updated(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = FULL.replace("12,300", "12,400")
    document.write_text(stale, encoding="utf-8")
    assert main(["--check"]) == 1
    assert "Out of date: page.md" in capsys.readouterr().out
    assert document.read_text(encoding="utf-8") == stale  # checking changes nothing
    assert main([]) == 0
    assert document.read_text(encoding="utf-8") == FULL
    assert main(["--check"]) == 0


def test_bad_markers_are_refused(document: Path) -> None:
    for text, expected in (
        ("<!-- table speed by-layer -->\n", "page.md: The marker <!-- table speed by-layer --> has no partner"),
        ("<!-- end -->\n", "has no partner"),
        ("<!-- table speed by-layer -->\n" * 2 + "<!-- end -->\n" * 2, "has no partner"),
        (BARE.replace("by-layer", "gone"), "no table 'gone'; it has by-layer"),
        (BARE.replace("speed", "gone"), "no result file benchmarks/results/gone.json"),
        (BARE.replace("speed", "../up"), "no name for a result file"),
    ):
        document.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"page\.md") as refused:
            main(["--check"])
        assert expected in str(refused.value)
