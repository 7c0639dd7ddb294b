from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arithscope.errors import UserError
from arithscope.models.model import Model
from arithscope.pipeline import runner
from arithscope.pipeline.registry import all_stages, chosen_stages
from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.families import small

SMALL = Settings(max_operand=8)


def test_a_stage_runs_once_for_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = all_stages()[0]

    def counted(model: Model, settings: Any, *others: Any) -> Any:
        calls.append(settings.max_operand)
        return original.compute(model, settings, *others)

    monkeypatch.setattr(runner, "STAGES", (replace(original, compute=counted),))
    model = small("llama", "sdpa")
    first = run_stages(model, SMALL, tmp_path, None, Silent()).summary
    second = run_stages(model, SMALL, tmp_path, None, Silent()).summary
    assert calls == [8]
    assert first == second
    run_stages(model, replace(SMALL, preset="paper"), tmp_path, None, Silent())  # means do not depend on the preset
    assert calls == [8]
    run_stages(model, replace(SMALL, max_operand=6), tmp_path, None, Silent())
    run_stages(model, SMALL, tmp_path, None, Silent())
    assert calls == [8, 6, 8]


def test_stages_can_read_only_what_they_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = replace(all_stages()[0], reads=("operators", "seed"))
    monkeypatch.setattr(runner, "STAGES", (greedy,))
    with pytest.raises(AttributeError, match="max_operand"):
        run_stages(small("llama", "sdpa"), SMALL, tmp_path, None, Silent())
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
    seen: set[str] = set()
    for stage in all_stages():
        assert set(stage.needs) <= seen
        seen.add(stage.name)


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

    other = replace(SMALL, operators=("+",), preset="paper", seed=3, effect="logit", centre=False)
    run_stages(model, other, tmp_path, ["means"], Noting())
    assert noted == ["means: nothing has changed, so it is not run again"]


def test_stages_behind_a_changed_setting_are_stale(tmp_path: Path) -> None:
    """Another way of ranking components changes the circuit and what is built on it, and nothing else; effects of neurons are
    what they are, unless neurons are picked by that ranking."""
    model = small("llama", "sdpa")

    def changed(before: Settings, **settings: Any) -> set[str]:
        a, b = (runner.keys_of(model, s, all_stages(), {}) for s in (before, replace(before, **settings)))
        return {name for name in a if a[name] != b[name]}

    behind_classes = {"knockout", "prompt_knockout", "failures", "bag", "training", "stability"}
    behind_topk = {"topk", "patterns", "classify", "overlap"} | behind_classes
    assert changed(SMALL, knockout_at="all") == {"knockout", "prompt_knockout", "training", "stability"}
    assert changed(SMALL, both_operands=True) == {"classify"} | behind_classes
    assert changed(SMALL, topk=7) == changed(SMALL, rank="mean+std") == behind_topk
    assert changed(SMALL, effect="log_ratio") == {"circuit", "heads", "mlp0"} | behind_topk
    screened = replace(SMALL, neurons="screen")
    assert changed(SMALL, neurons="screen") == {"neurons"} | behind_topk
    assert changed(screened, effect="log_ratio") == {"circuit", "heads", "mlp0", "neurons"} | behind_topk
    assert changed(SMALL, preset="paper") == {stage.name for stage in all_stages()} - {"accuracy", "means"}


def test_nothing_to_look_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is never right has no circuit; what was found before stays."""
    model = small("llama", "sdpa")
    first, original = all_stages()[:2]

    def never_right(*arguments: Any) -> Any:
        found = original.compute(*arguments)
        return replace(found, prompts=found.prompts.assign(correct=False))

    monkeypatch.setattr(runner, "STAGES", (first, replace(original, compute=never_right), *all_stages()[2:]))
    for stage in ("localize", "probe"):
        with pytest.raises(UserError, match="next to no prompt correctly"):
            run_stages(model, SMALL, tmp_path / stage, [stage], Silent())
        assert (tmp_path / stage / "accuracy" / "stage.json").exists()


def test_after_each_stage(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    for _ in range(2):
        run(
            small("llama", "sdpa"),
            SMALL,
            tmp_path,
            ["means", "accuracy"],
            Silent(),
            after_stage=lambda folder: seen.append([s.name for s in all_stages() if folder.is_done(s.name)]),
        )
    assert seen == [["means"], ["means", "accuracy"], ["means", "accuracy"], ["means", "accuracy"]]
