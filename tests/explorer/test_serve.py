"""Starting and stopping the explorer, and errors on start."""

from __future__ import annotations

import json
import socket
import urllib.request
import webbrowser
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from arithscope.errors import UserError
from arithscope.explorer import server as serving_module
from arithscope.explorer.server import serve
from arithscope.results.run import Run
from tests.command_line import error_message
from tests.explorer.client import serving_process


def test_the_explorer_serves_until_interrupted(small_run: Path) -> None:
    """As a separate process: prints its address, answers there, and exits cleanly on Ctrl-C."""
    with serving_process(small_run) as (address, _), urllib.request.urlopen(f"{address}api/runs") as response:
        assert [run["name"] for run in json.load(response)["runs"]] == ["tiny-llama"]


@pytest.mark.parametrize(("host", "shown"), [("LOCALHOST", "127.0.0.1"), ("0", "127.0.0.1"), ("::1", "[::1]")])
def test_the_browser_opens_the_address(
    small_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str, shown: str
) -> None:
    class Timer:
        def __init__(self, seconds: float, function: Any, arguments: list[str]):
            self.start = lambda: function(*arguments)

    try:
        serving_module.bound_socket(host, 0).close()
    except UserError:
        pytest.skip(f"this machine has no {host}")
    opened: list[str] = []
    monkeypatch.setattr(serving_module.threading, "Timer", Timer)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    serve([Run(small_run)], host, None, browser=True)
    [address] = opened
    assert address.startswith(f"http://{shown}:83")
    assert address in capsys.readouterr().out


def test_another_port_is_used_if_the_first_is_taken(
    small_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(serving_module, "FIRST_PORT", port)
        serve([Run(small_run)], "127.0.0.1", None, browser=False)
        assert f":{port}/" not in capsys.readouterr().out
        message = error_message(capsys, "explore", small_run, "--no-browser", "--port", str(port))
        assert f"cannot listen on port {port} of 127.0.0.1 (Address already in use)" in message


def test_bad_arguments_are_refused(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no run at" in error_message(capsys, "explore", tmp_path / "nowhere")
    assert "name only one run" in error_message(capsys, "explore", small_run, small_run, "--model", "tiny-llama")
    assert "choose another --port" in error_message(capsys, "explore", small_run, "--no-browser", "--port", "99999")
    assert "choose another --port or --host" in error_message(
        capsys, "explore", small_run, "--host", "no.such.host.invalid"
    )


def test_missing_packages_are_named(
    small_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *a: None if name == "fastapi" else find_spec(name, *a))
    assert "pip install 'arithscope[explore]'" in error_message(capsys, "explore", small_run)
