"""Mutants of a module: each changes the program, no two are alike, and only code is mutated."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from types import ModuleType

from tools.mutants import PACKAGE, mutants

TAILS = PACKAGE / "heuristics" / "tails.py"


def test_every_mutant_is_a_different_program() -> None:
    original = ast.unparse(ast.parse(TAILS.read_text(encoding="utf-8")))
    found = mutants(TAILS)
    assert len({m.id for m in found}) == len(found) > 100
    texts = []
    for i in range(0, len(found), 10):
        mutant = mutants(TAILS)[i]  # a change is made in place, so each needs a fresh tree
        mutant.change()
        texts.append(ast.unparse(mutant.tree))
        compile(ast.fix_missing_locations(mutant.tree), "tails.py", "exec")
    assert original not in texts
    assert len(set(texts)) == len(texts)


def test_a_mutant_does_what_its_id_says() -> None:
    wanted = "heuristics/tails.py neg_log10_p_hypergeom_table: np.zeros(k + 1) → np.ones(k + 1)"
    [mutant] = [m for m in mutants(TAILS) if m.id == wanted]
    assert "out = np.zeros(k + 1)" in TAILS.read_text(encoding="utf-8").splitlines()[mutant.lines.start - 1]
    before, after = ModuleType("before"), ModuleType("after")
    exec(compile(mutant.tree, "tails.py", "exec"), vars(before))
    mutant.change()
    exec(compile(ast.fix_missing_locations(mutant.tree), "tails.py", "exec"), vars(after))
    assert before.neg_log10_p_hypergeom_table(10, 8)[0] == 0  # two sets of eight of ten have six in common
    assert after.neg_log10_p_hypergeom_table(10, 8)[0] == 1


def test_messages_types_and_decorators_are_not_mutated() -> None:
    texts = [m.id for m in mutants(PACKAGE / "models" / "engine" / "replay.py")]
    for part in ("is outside the prompt", "Float", "no_grad", "strict=False", "The fast engine", "dataclass"):
        assert not [text for text in texts if part in text.split(" → ")[-1] and part not in text.split(" → ")[0]]
    assert any("raise ValueError" in text and text.endswith("→ pass") for text in texts)


def test_listed_mutants_exist() -> None:
    """A change of the code can remove a listed mutant, and `python -m tools.mutation --record` refuses the list then."""
    text = (Path(__file__).parents[2] / "tools" / "equivalent_mutants.toml").read_text(encoding="utf-8")
    listed = [mutant for groups in tomllib.loads(text).values() for group in groups for mutant in group["mutants"]]
    assert len(set(listed)) == len(listed) > 50
    files = {PACKAGE / mutant.split(" ")[0] for mutant in listed}
    assert not set(listed) - {m.id for file in files for m in mutants(file)}
