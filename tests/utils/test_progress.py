from __future__ import annotations

import io

from arithscope.utils.printing import PlainConsole
from arithscope.utils.progress import Bars, Lines, Silent, console_progress


def test_lines_show_what_is_done_and_the_time_left() -> None:
    lines: list[str] = []
    with Lines(lines.append, every=0.0).task("counting", 40) as advance:
        advance(10)
        advance(30)
    assert lines[0] == "counting: 40 to do"
    assert lines[1].startswith("counting: 10 of 40, about ")
    assert lines[2].startswith("counting: 40 of 40, about 0 s left")
    assert lines[3].startswith("counting: done in ")
    Lines(lines.append).note("by the way")
    assert lines[4] == "by the way"


def test_bars_are_shown_on_a_terminal_only() -> None:
    assert isinstance(console_progress(PlainConsole(file=io.StringIO())), Lines)
    terminal = PlainConsole(file=io.StringIO(), force_terminal=True, width=100)
    progress = console_progress(terminal)
    assert isinstance(progress, Bars)
    with progress.task("counting", 3) as advance:
        advance(3)
    assert "counting" in terminal.file.getvalue()  # type: ignore[attr-defined]
    progress.note("[x] by the way")
    assert "[x] by the way" in terminal.file.getvalue()  # type: ignore[attr-defined]
    with Silent().task("nothing", 1) as advance:
        advance(1)
    Silent().note("nothing")
