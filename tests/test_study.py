from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common.stage import Context
from arithscope.pipeline import runner
from arithscope.pipeline.registry import all_stages, chosen_stages, stage_named
from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.families import small

SMALL = Settings(max_operand=8)


def test_a_stage_runs_once_for_the_same_inputs(tmp_path: Path) -> None:
    calls = []
    original = stage_named("means")

    def counted(ctx: Context) -> Any:
        calls.append(ctx.settings.max_operand)
        return original.compute(ctx)

    model, known = small("llama", "sdpa"), [replace(original, compute=counted)]
    first = run_stages(model, SMALL, tmp_path, None, Silent(), known=known).summary
    second = run_stages(model, SMALL, tmp_path, None, Silent(), known=known).summary
    assert calls == [8]
    assert first == second
    other = replace(SMALL, preset="paper")  # means do not depend on the preset
    run_stages(model, other, tmp_path, None, Silent(), known=known)
    assert calls == [8]
    run_stages(model, replace(SMALL, max_operand=6), tmp_path, None, Silent(), known=known)
    run_stages(model, SMALL, tmp_path, None, Silent(), known=known)
    assert calls == [8, 6, 8]


def test_stages_can_read_only_what_they_declare(tmp_path: Path) -> None:
    greedy = replace(stage_named("means"), reads=("operators", "seed"))
    with pytest.raises(AttributeError, match="max_operand"):
        run_stages(small("llama", "sdpa"), SMALL, tmp_path, None, Silent(), known=[greedy])
    assert "failed" in (tmp_path / "manifest.json").read_text()
    assert not (tmp_path / greedy.name).exists()


def test_same_numbers_in_another_folder(tmp_path: Path) -> None:
    model = small("gptj")
    a, b = (run_stages(model, SMALL, tmp_path / name, ["means", "accuracy"], Silent()).summary for name in "ab")
    assert a == b


def test_chosen_stages() -> None:
    assert [s.name for s in chosen_stages(None)] == [
        s.name for s in all_stages() if s.name not in ("training", "stability")
    ]
    assert [s.name for s in chosen_stages(["means"])] == ["means"]
    assert [s.name for s in chosen_stages(["circuit"])] == ["means", "accuracy", "localize", "circuit"]
    for bad in (["nothing"], []):
        with pytest.raises(UserError, match="tage"):
            chosen_stages(bad)


def test_stages_need_only_earlier_ones() -> None:
    seen: set[type] = set()
    for stage in all_stages():
        assert set(stage.needs) <= seen
        seen.add(stage.result)


@pytest.mark.parametrize(
    "bad",
    [
        dict(operators="x"),
        dict(operators=()),
        dict(max_operand=0),
        dict(preset="slow"),
        dict(seed=-1),
        dict(effect="huge"),
    ],
)
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Settings(**bad)


def test_operands_beyond_the_limit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use --max-operand 39"):
        run_stages(small("llama", "sdpa"), Settings(), tmp_path / "run", None, Silent())
    assert not (tmp_path / "run").exists()


def test_means_serve_every_choice_of_operators(tmp_path: Path) -> None:
    """They are taken over all operators, so they depend neither on those studied, nor on the seed or the preset."""
    model = small("llama", "sdpa")
    run_stages(model, SMALL, tmp_path, ["means"], Silent())
    noted: list[str] = []

    class Noting(Silent):
        def note(self, text: str) -> None:
            noted.append(text)

    other = replace(SMALL, operators=("+",), preset="paper", seed=3, effect="logit")
    run_stages(model, other, tmp_path, ["means"], Noting())
    assert noted == ["means: unchanged, not run again"]


def test_stages_behind_a_changed_setting_are_stale(tmp_path: Path) -> None:
    """Another way of ranking components changes the circuit and what is built on it, and nothing else; effects of neurons are
    what they are, unless neurons are picked by that ranking."""
    model = small("llama", "sdpa")

    def changed(before: Settings, **settings: Any) -> set[str]:
        a, b = (runner.keys_of(model, s, all_stages(), []) for s in (before, replace(before, **settings)))
        return {name for name in a if a[name] != b[name]}

    behind_classes = {"knockout", "prompt_knockout", "failures", "bag", "training", "stability"}
    behind_topk = {"topk", "patterns", "classify", "overlap"} | behind_classes
    assert changed(SMALL, both_operands=True) == {"classify"} | behind_classes
    assert changed(SMALL, topk=7) == changed(SMALL, rank="mean+std") == behind_topk
    assert changed(SMALL, effect="log_ratio") == {"circuit", "heads", "mlp0"} | behind_topk
    selected = replace(SMALL, neurons="atp+exact")
    assert changed(SMALL, neurons="atp+exact") == {"neurons"} | behind_topk
    assert changed(selected, effect="log_ratio") == {"circuit", "heads", "mlp0", "neurons"} | behind_topk
    assert changed(SMALL, preset="paper") == {stage.name for stage in all_stages()} - {"accuracy", "means"}


def test_nothing_to_look_for(tmp_path: Path) -> None:
    """A model that is never right has no circuit; what was found before stays."""
    model = small("llama", "sdpa")

    def never_right(ctx: Context) -> Accuracy:
        accuracy = stage_named("accuracy").compute(ctx)
        assert isinstance(accuracy, Accuracy)
        return replace(accuracy, prompts=accuracy.prompts.assign(correct=False))

    known = [replace(s, compute=never_right) if s.name == "accuracy" else s for s in all_stages()]
    for stage in ("localize", "probe"):
        with pytest.raises(UserError, match="almost no prompt correctly"):
            run_stages(model, SMALL, tmp_path / stage, [stage], Silent(), known=known)
        assert (tmp_path / stage / "accuracy" / "stage.json").exists()


def test_after_each_stage(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    for _ in range(2):
        run_stages(
            small("llama", "sdpa"),
            SMALL,
            tmp_path,
            ["means", "accuracy"],
            Silent(),
            after_stage=lambda folder: seen.append([s.name for s in all_stages() if folder.is_done(s.name)]),
        )
    assert seen == [["means"], ["means", "accuracy"], ["means", "accuracy"], ["means", "accuracy"]]
