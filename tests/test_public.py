"""The public names: loaded on first use, known to type checkers, and free until then."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import arithscope

SOURCE = Path(arithscope.__file__)
HEAVY = {"torch", "transformers", "pandas", "matplotlib", "numpy"}


def imported(code: str) -> set[str]:
    """The top-level packages that some code loads, run in a fresh process."""
    code += "\nimport json, sys\nprint(json.dumps([name for name in sys.modules]))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in json.loads(output)}


def test_importing_loads_no_heavy_package() -> None:
    assert not imported("import arithscope; dir(arithscope); arithscope.__version__") & HEAVY
    assert HEAVY - {"transformers"} <= imported("import arithscope; arithscope.Run")  # a name does load what it needs


def test_every_public_name_can_be_loaded() -> None:
    for name in dir(arithscope):
        assert getattr(arithscope, name) is not None or name == "__spec__"
    for name, module in arithscope._WHERE.items():
        assert name in dir(arithscope)
        found = getattr(arithscope, name)
        assert found is getattr(import_module(f"arithscope.{module}"), name)
        assert found.__module__ == f"arithscope.{module}"  # where it is defined, not where it is re-exported
        assert found.__doc__ or name in ("LoadOptions", "UserError"), name
    with pytest.raises(AttributeError, match="module 'arithscope' has no attribute 'lunch'"):
        _ = arithscope.lunch


def test_type_checkers_see_the_same_names() -> None:
    """The names under TYPE_CHECKING, each as itself so that it counts as exported, are those of the table."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name
            seen[alias.name] = (node.module or "").removeprefix("arithscope.")
    assert seen == arithscope._WHERE


def test_no_name_is_hidden_by_a_module() -> None:
    """`import arithscope.prompts` sets arithscope.prompts; a public name like that would turn into the module."""
    modules = {path.stem for path in SOURCE.parent.iterdir()}
    assert {"prompts", "results", "cli"} <= modules
    assert not modules & set(arithscope._WHERE)
