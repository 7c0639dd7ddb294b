"""Text from outside reaches a terminal as it is, without control characters, and is never taken for markup."""

from __future__ import annotations

import ast
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

import arithscope
from arithscope.utils.printing import PlainConsole, printable, say
from arithscope.utils.progress import Bars, console_progress

HOSTILE = "\x1b]0;title\x07[red]a[/red] :smile: \x9b31m\u202eb\x7f\r"
SHOWN = "\\u001b]0;title\\u0007[red]a[/red] :smile: \\u009b31m\\u202eb\\u007f\\u000d"


@given(st.text())
def test_nothing_printable_controls_a_terminal(text: str) -> None:
    shown = printable(text)
    shown.encode()  # no lone surrogates
    assert all(c in "\t\n" or not (ord(c) < 32 or 0x7F <= ord(c) < 0xA0) for c in shown)
    assert not set(shown) & set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")
    assert printable(shown) == shown
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_ordinary_text_is_not_changed() -> None:
    text = "a\tb\nc\\u001b 数字 ½ − é 🙂"
    assert printable(text) == text


def test_lines_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    say(HOSTILE, error=True)
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    PlainConsole(width=200).print(HOSTILE, table)
    out, err = capsys.readouterr()
    assert err == SHOWN + "\n"
    assert out.count(SHOWN) == 5
    assert all(c == "\n" or c.isprintable() for c in out)


def test_progress_bars_show_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is printed while a bar is shown, which Rich sends to the bar's console."""
    terminal = PlainConsole(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    progress = console_progress(terminal)
    assert isinstance(progress, Bars)
    with progress.task(HOSTILE, 1) as advance:
        say(HOSTILE)
        print(HOSTILE)
        advance(1)
    progress.note(HOSTILE)
    output = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert output.count(SHOWN) >= 3
    assert "\x1b[" in output  # the bar's own colours
    assert not [code for code in ("\x1b]", "\x9b", "\u202e", "\x7f", "\x07") if code in output]


def test_everything_is_printed_in_this_way() -> None:
    """`print` and Rich's own console appear nowhere else; the message of a stopped command has no text from outside."""
    package = Path(arithscope.__file__).parent
    found = {
        (path.relative_to(package).as_posix(), node.func.id)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "Console")
    }
    assert found == {(f"{module}.py", "print") for module in ("__main__", "utils/printing", "utils/signals")}
