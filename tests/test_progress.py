from __future__ import annotations

import io

from rich.console import Console

from arithscope.utils.progress import Bars, Lines, Silent, for_console


def test_lines_say_what_is_done_and_left() -> None:
    said: list[str] = []
    with Lines(said.append, every=0.0).task("counting", 40) as advance:
        advance(10)
        advance(30)
    assert said[0] == "counting: 40 to do"
    assert said[1].startswith("counting: 10 of 40, about ")
    assert said[2].startswith("counting: 40 of 40, about 0 s left")
    assert said[3].startswith("counting: done in ")
    Lines(said.append).note("by the way")
    assert said[4] == "by the way"


def test_bars_only_on_a_terminal() -> None:
    assert isinstance(for_console(Console(file=io.StringIO())), Lines)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    progress = for_console(terminal)
    assert isinstance(progress, Bars)
    with progress.task("counting", 3) as advance:
        advance(3)
    assert "counting" in terminal.file.getvalue()  # type: ignore[attr-defined]
    progress.note("[x] by the way")
    assert "[x] by the way" in terminal.file.getvalue()  # type: ignore[attr-defined]
    with Silent().task("nothing", 1) as advance:
        advance(1)
    Silent().note("nothing")
