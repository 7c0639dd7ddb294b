"""Running commands in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from arithscope.cli.app import main


def call(*arguments: str | Path) -> int:
    """Run a command; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def error_message(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that must exit with code 2 and one line on stderr; returns that line."""
    capsys.readouterr()
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("arithscope: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error
