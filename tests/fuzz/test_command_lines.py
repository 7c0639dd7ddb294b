"""Command lines: whatever is typed, a command starts its work or refuses in one sentence.

The work itself does not start, unless it is quick: loading a model (by then all other values have been checked), joining a
cluster, drawing, training and listening are replaced. Rules here state independently, value by value, whether a command line
should be accepted.
"""

from __future__ import annotations

import io
import math
import os
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from arithscope.cli.app import main
from arithscope.explorer import server as server_module
from arithscope.models import load as load_module
from arithscope.pipeline import ray_executor
from arithscope.pipeline.registry import all_stages
from arithscope.report import comparison
from arithscope.training import loop
from arithscope.training.recipe import read_recipe
from arithscope.utils import files
from tests.fuzz.effort import check_sentence, fuzz, twice

Legal = Callable[[str], bool | None]  # None: left to the library that parses numbers (1_0, ９, 1e3)


class Started(Exception):
    """The command was accepted."""


def start(*_: Any, **__: Any) -> Any:
    raise Started


ODD = [
    *(
        "",
        " ",
        "-",
        "--",
        "--help",
        "-1",
        "0",
        "1",
        "nan",
        "inf",
        "1e9",
        "1_0",
        "９",
        "0x10",
        "1.5",
        "9" * 5000,
        "null",
    ),
    *("~nobody-here", "x" * 300, "x/" * 2000, "..", "/", "/dev/null", "/dev/null/x", "\udcff", "a\nb", "é", "{}", "%s"),
    *("auto", "cpu", "cuda", "cuda:0", "cuda:99", "cpu:1", "meta", "+", "++", "+%", "all", "mean", "tiny-llama@", "@"),
]
odd = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_characters="\x00"), max_size=6))


def one_of(*known: str) -> Legal:
    return lambda text: text in known


def anything(text: str) -> bool:
    return True


def whole(low: float = -math.inf, high: float = math.inf) -> Legal:
    def legal(text: str) -> bool | None:
        try:
            if re.fullmatch("-?[0-9]+", text):
                return low <= int(text) <= high
            return None if float(text).is_integer() and low <= float(text) <= high else False
        except ValueError:
            return False

    return legal


def is_float(text: str) -> bool | None:
    try:
        float(text)
    except ValueError:
        return False
    return True if re.fullmatch("-?[0-9]+([.][0-9]+)?", text) else None


def operators(text: str) -> bool:
    return text != "" and set(text) <= set("+-*/")


def stages(text: str) -> bool:
    named = [part.strip() for part in text.split(",") if part.strip()]
    known = {stage.name for stage in all_stages()} - {"training"}  # for which checkpoints must be named too
    return bool(named) and set(named) <= known


def can_be_a_path(text: str) -> bool:
    """Not too long for the system, not the home of another user, and valid Unicode."""
    try:
        text.encode()
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        return re.match("~[^/]", text) is None and text != ""
    except (OSError, ValueError):
        return False
    return re.match("~[^/]", text) is None


def template(text: str) -> bool:
    return text in TEMPLATES


def words(text: str) -> bool:
    pairs = [part.split("=") for part in text.split(",")] if text else []
    if not all(len(pair) == 2 and pair[0].strip() in "+-*/" and pair[0].strip() for pair in pairs):
        return False
    named = [word.strip() for _, word in pairs]
    usable = all(w and is_text(w) and not any(x.isnumeric() or x in "+-*/" for x in w) for w in named)
    return usable and len({*named}) == len({pair[0].strip() for pair in pairs}) == len(pairs)


def is_text(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def device(text: str) -> bool:
    return text in ("auto", "cpu")  # other devices of this machine are not among the values


def layers(text: str) -> bool:
    try:
        return bool([int(part) for part in text.split(",")])
    except ValueError:
        return False


HOSTS = ["127.0.0.1", "localhost", "0.0.0.0"]
TEMPLATES = ["{op1}{operator}{op2}=", "{op1} {operator} {op2} =", "{{{op1}{operator}{op2}", "\\n{op1}{operator}{op2}"]
PROMPTS = ["1+2=", " 40 - 40", "0 + 40 =", "12-5"]  # of the run: + and - up to 40
CHECKPOINTS = ["all", "step-00375", "step-02625, step-00000"]
LAYERS, NEURONS = (4, 5), 512  # of the run: from the first answer layer on
Value = tuple[list[str], Legal]
PATH: Value = (["some/where", "there"], can_be_a_path)
SEED: Value = (["0", "7", str(2**70), "-1"], whole(0))
MODEL: dict[str, Value] = {
    "--device": (["auto", "cpu"], device),
    "--device-map": (["auto", "balanced"], one_of("auto", "balanced", "balanced_low_0", "sequential")),
}
LOADING: dict[str, Value] = {
    **MODEL,
    "--dtype": (["auto", "float32", "bfloat16", "float16"], one_of("auto", "float32", "bfloat16", "float16")),
    "--template": ([*TEMPLATES, "{op1}", "{op2}{operator}{op1}", "{op1!r}{operator}{op2}"], template),
    "--prefix": (["", "1+1=2\\n", "{", "{op1}"], is_text),
    "--operator-words": (["+=plus", "+=plus,-=minus", "+=plus,+=and", "+plus", "*=2", "/="], words),
    "--quantize": (["4bit", "8bit", "2bit"], one_of("4bit", "8bit")),
}
OF_A_RUN: dict[str, Value] = {**MODEL, "--model": (["tiny-llama", "some/where"], anything)}
CODE = ["--allow-pickle", "--trust-remote-code"]
LOADING_FLAGS = ["--chat", *CODE]
RUN: Value = (["RUN"], one_of("RUN", "./RUN", "RUN/"))
OTHER: Value = (["OTHER"], one_of("OTHER", "./OTHER", "OTHER/"))
NAMED_MODEL: Value = (["tiny-llama", "some/model", "folder"], anything)


@dataclass(frozen=True)
class Command:
    """Arguments, options and flags of a command, with likely values and a rule for the legal ones."""

    name: str
    arguments: list[Value] = field(default_factory=list)
    options: dict[str, Value] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


COMMANDS = [
    Command(
        "run",
        [NAMED_MODEL],
        {
            **LOADING,
            "--out": PATH,
            "--operators": (["+", "-*", "+-*/", "/+"], operators),
            "--max-operand": (["1", "300", "0", "-3"], whole(1)),
            "--preset": (["quick", "paper"], one_of("quick", "paper")),
            "--stages": (["accuracy", "means, accuracy", ",bag", "training", "accuracy,lunch"], stages),
            "--seed": SEED,
            "--effect": (["probability", "log_ratio", "logit"], one_of("probability", "log_ratio", "logit")),
            "--neurons": (
                ["exact", "atp", "ig", "relp", "atp+exact"],
                one_of("exact", "atp", "ig", "relp", "atp+exact"),
            ),
            "--rank": (["mean", "mean+std"], one_of("mean", "mean+std")),
            "--topk": (["1", "200", "0"], whole(1)),
        },
        ["--both-operands", *LOADING_FLAGS],
    ),
    Command(
        "run",
        [(["tiny-pythia"], one_of("tiny-pythia"))],
        {"--checkpoints": (CHECKPOINTS, one_of(*CHECKPOINTS)), "--cluster": (["local", "auto"], anything)},
    ),
    Command("report", [RUN]),
    Command(
        "neuron",
        [RUN, (["4", "5", "3", "6"], whole(*LAYERS)), (["0", "511", "512"], whole(0, NEURONS - 1))],
        {"--operator": (["+", "-", "*"], one_of("+", "-"))},
    ),
    Command("explain", [RUN, (PROMPTS, one_of(*PROMPTS))], OF_A_RUN, ["--raw", "--json", *CODE]),
    Command("compare", [RUN, OTHER], {"--out": (PATH[0], lambda text: can_be_a_path(text) and not _is_there(text))}),
    Command("verify", [RUN], {**OF_A_RUN, "--seed": SEED}, CODE),
    Command(
        "explore",
        [RUN],
        {
            **OF_A_RUN,
            "--host": ([*HOSTS, "1.2.3.4", "a" * 70, "..", "[::1]", ""], one_of(*HOSTS)),
            "--port": (["0", "-1", "65536"], lambda text: whole()(text) and int(text) == 0),
        },
        ["--no-browser", *CODE],
    ),
    Command("models"),
    Command(
        "doctor",
        [NAMED_MODEL],
        {**LOADING, "--operators": (["+", "-*"], operators), "--max-operand": (["1", "300"], whole())},
        LOADING_FLAGS,
    ),
    Command(
        "bench",
        [NAMED_MODEL],
        {
            **LOADING,
            "--prompts": (["1", "50"], whole()),
            "--layers": (["1", "1,2", "1,,2", "1;2"], layers),
            "--seconds": (["1", "0.5", "1e3"], is_float),
            "--json": (["out.json", "/", "no/folder.json"], lambda text: can_be_a_path(text) and _can_be_written(text)),
        },
        LOADING_FLAGS,
    ),
    Command(
        "train",
        [(["tiny-llama", "tiny-pythia"], one_of("tiny-llama", "tiny-pythia"))],
        {"--out": PATH, "--device": MODEL["--device"]},
    ),
]
# Their values are checked later: a model when it is loaded, an address by the network.
NEVER_ODD = ("--host", "--port", "--cluster", "run", "doctor", "bench")


def _is_there(text: str) -> bool:
    return os.path.exists(os.path.expanduser(text))


def _can_be_written(text: str) -> bool:
    return not os.path.isdir(text) and os.path.isdir(os.path.dirname(text) or ".")


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[str], bool | None]:
    """A command line, and whether it should be accepted (None: either way). Mostly, at most one value is odd."""

    def value(likely: list[str], of: str) -> str:
        return draw(st.sampled_from(likely) if of in NEVER_ODD or draw(st.integers(0, 3)) else odd)

    command = draw(st.sampled_from(COMMANDS))
    line: list[str] = [command.name]
    legal: list[bool | None] = []
    names = draw(st.lists(st.sampled_from(sorted(command.options)), max_size=4, unique=True)) if command.options else []
    for name in names:
        likely, is_legal = command.options[name]
        chosen = value(likely, name)
        line.append(f"{name}={chosen}")
        legal.append(is_legal(chosen))
    line += draw(st.lists(st.sampled_from(command.flags), unique=True, max_size=2)) if command.flags else []
    if draw(st.integers(0, 15)) == 15:
        line.append(draw(st.sampled_from(["--colour", "-x", "--seed", "--browser=1"])))
        legal.append(False)
    line.append("--")
    for likely, is_legal in command.arguments:
        chosen = value(likely, command.name)
        line.append(chosen)
        legal.append(is_legal(chosen))
    if draw(st.integers(0, 15)) == 15 and command.name not in ("explore", "compare"):  # which take any number of runs
        line.append(draw(odd))
        legal.append(False)
    return line, False if False in legal else None if None in legal else True


@pytest.fixture
def in_a_folder(tmp_path: Path, small_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").symlink_to(small_run)
    shutil.copytree(small_run, tmp_path / "OTHER")
    monkeypatch.setattr(load_module, "find_model", start)
    monkeypatch.setattr(ray_executor, "_connected", start)
    monkeypatch.setattr(files, "locked", start)
    monkeypatch.setattr(comparison, "explain_write_errors", start)
    monkeypatch.setattr(loop, "train", lambda recipe, *_: start(read_recipe(recipe)))
    monkeypatch.setattr(server_module.uvicorn, "Server", start)
    monkeypatch.setattr(server_module.threading, "Timer", start)
    return tmp_path


def outcome(line: list[str]) -> tuple[int, str]:
    """The exit code (0 if the command started its work), and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(line)
        except Started:
            return 0, err.getvalue()
        except SystemExit as ended:
            return int(ended.code or 0), err.getvalue()
    raise AssertionError("main returned")


def accepts(command: tuple[list[str], bool | None]) -> bool:
    line, legal = command
    code, error = outcome(line)
    if code:
        assert code == 2
        assert error.startswith("arithscope: ")
        assert error.count("\n") == 1
        check_sentence(error)
    assert legal is None or (code == 0) == legal, error
    return code == 0


@twice
def test_command_lines_are_accepted_or_refused(in_a_folder: Path, full: bool) -> None:
    assert fuzz("command lines", lines(), accepts, full).accepted
    assert {path.name for path in in_a_folder.iterdir()} == {"RUN", "OTHER"}  # nothing was written
