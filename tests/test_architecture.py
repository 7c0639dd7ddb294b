"""Imports point downwards only, and only `models` imports transformers."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import arithscope

ROOT = Path(arithscope.__file__).parent
# From the ground up; a module may import from its own level or a lower one.
LEVELS: list[set[str]] = [
    {"errors"},
    {"utils"},
    {"prompts"},
    {"stats", "heuristics"},
    {"models"},
    {"settings", "training"},
    {"experiments"},
    {"figures"},
    {"pipeline"},
    {"results"},
    {"report", "explorer", "verify"},
    {"cli", "__main__", "__init__"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
HUB = {"transformers", "tokenizers", "huggingface_hub"}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return [p for p in ROOT.rglob("*.py") if "pretrained" not in p.parts]


def test_every_module_has_a_level() -> None:
    assert {room(p) for p in modules()} == set(LEVEL)


def test_architecture_page_lists_the_levels_in_order() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [re.findall(r"`(\w+)/?`", row) for row in re.findall(r"^\| (`.*?) \|", page, re.M)]
    assert sorted(name for row in rows for name in row) == sorted(LEVEL.keys() - {"__main__", "__init__"})
    levels = [[LEVEL[name] for name in row] for row in rows]
    assert all(max(below) <= min(above) for below, above in pairwise(levels))


def test_imports_point_downwards() -> None:
    for path in modules():
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "arithscope" and len(parts) > 1 and parts[1] in LEVEL:
                assert LEVEL[parts[1]] <= LEVEL[room(path)], f"{path.relative_to(ROOT)} imports {name}"


def test_only_models_imports_transformers() -> None:
    for path in modules():
        if room(path) != "models":
            assert not {name.split(".")[0] for name in imports(path)} & HUB, path


def test_no_file_exceeds_400_lines() -> None:
    assert max(len(p.read_text(encoding="utf-8").splitlines()) for p in modules()) <= 400
