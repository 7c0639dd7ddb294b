"""The mutants that mutation testing makes of a module: real changes, each of its own, and of code only."""

from __future__ import annotations

import ast
from types import ModuleType

from tools.mutants import PACKAGE, mutants

TAILS = PACKAGE / "heuristics" / "tails.py"


def test_every_mutant_is_another_program() -> None:
    original = ast.unparse(ast.parse(TAILS.read_text(encoding="utf-8")))
    found = mutants(TAILS)
    assert len({m.id for m in found}) == len(found) > 100
    texts = []
    for i in range(0, len(found), 10):
        mutant = mutants(TAILS)[i]  # a change is made in place, so each needs a tree of its own
        mutant.change()
        texts.append(ast.unparse(mutant.tree))
        compile(ast.fix_missing_locations(mutant.tree), "tails.py", "exec")
    assert original not in texts
    assert len(set(texts)) == len(texts)


def test_a_change_does_what_it_says() -> None:
    wanted = "heuristics/tails.py neg_log10_p_hypergeom_table: np.zeros(k + 1) → np.ones(k + 1)"
    [mutant] = [m for m in mutants(TAILS) if m.id == wanted]
    assert "out = np.zeros(k + 1)" in TAILS.read_text(encoding="utf-8").splitlines()[mutant.lines.start - 1]
    before, after = ModuleType("before"), ModuleType("after")
    exec(compile(mutant.tree, "tails.py", "exec"), vars(before))
    mutant.change()
    exec(compile(ast.fix_missing_locations(mutant.tree), "tails.py", "exec"), vars(after))
    assert before.neg_log10_p_hypergeom_table(10, 8)[0] == 0  # two sets of eight of ten have six in common
    assert after.neg_log10_p_hypergeom_table(10, 8)[0] == 1


def test_what_is_left_alone() -> None:
    texts = [m.id for m in mutants(PACKAGE / "models" / "engine" / "replay.py")]
    for part in ("is outside the prompt", "Float", "no_grad", "strict=False", "The fast engine", "dataclass"):
        assert not [text for text in texts if part in text.split(" → ")[-1] and part not in text.split(" → ")[0]]
    assert any("raise ValueError" in text and text.endswith("→ pass") for text in texts)
