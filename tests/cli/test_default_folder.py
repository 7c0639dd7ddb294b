from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.cli.default_folder import default_folder
from arithscope.cli.options import ModelOptions, SettingsOptions


@pytest.mark.parametrize(
    ("settings", "options", "name"),
    [
        ({}, {}, "m"),
        ({"operators": "/*-+"}, {}, "m"),
        ({"operators": "-+"}, {}, "m-add-sub"),
        ({"preset": "paper", "seed": 1}, {}, "m-paper-seed1"),
        ({"max_operand": 50, "topk": 20}, {}, "m-max50-top20"),
        ({"neurons": "atp+exact", "rank": "mean+std", "effect": "log_ratio"}, {}, "m-log-ratio-atp-exact-mean-std"),
        ({"both_operands": True}, {}, "m-both-operands"),
        ({}, {"dtype": "bfloat16", "quantize": "4bit"}, "m-bfloat16-4bit"),
        ({}, {"prefix": "1+1=2\n"}, "m-prompts-48f964"),
        ({}, {"chat": True, "reply": "It is "}, "m-prompts-bc9d29"),
        ({}, {"device": "cuda", "allow_pickle": True}, "m"),
    ],
)
def test_names(settings: dict[str, Any], options: dict[str, Any], name: str) -> None:
    assert default_folder("m", SettingsOptions(**settings), ModelOptions(**options)) == Path("runs") / name


def test_models(saved_model: Path) -> None:
    names = {str(saved_model): "small-llama", "EleutherAI/pythia-70m@step1": "EleutherAI--pythia-70m@step1"}
    for model, name in names.items():
        assert default_folder(model, SettingsOptions(), ModelOptions()) == Path("runs") / name


SETTINGS = st.builds(
    SettingsOptions,
    operators=st.sampled_from(["+-*/", "+", "+-", "/"]),
    max_operand=st.sampled_from([300, 50]),
    preset=st.sampled_from(["quick", "paper"]),
    seed=st.integers(0, 3),
    effect=st.sampled_from(["probability", "log_ratio", "logit"]),
    neurons=st.sampled_from(["exact", "atp", "ig", "atp+exact"]),
    rank=st.sampled_from(["mean", "mean+std"]),
    topk=st.sampled_from([None, 1, 50]),
    both_operands=st.booleans(),
)
OPTIONS = st.builds(
    ModelOptions,
    template=st.sampled_from(["{op1}{operator}{op2}=", "{op1} {operator} {op2} ="]),
    prefix=st.sampled_from(["", "1+1=2\n"]),
    operator_words=st.sampled_from(["", "+=plus", "+=plus,-=minus"]),
    chat=st.booleans(),
    reply=st.sampled_from(["", "True", "+=plus"]),
    dtype=st.sampled_from(["auto", "float32", "bfloat16"]),
    quantize=st.sampled_from([None, "4bit"]),
)


@given(SETTINGS, OPTIONS, SETTINGS, OPTIONS)
def test_other_settings_have_another_folder(
    a: SettingsOptions, b: ModelOptions, other_a: SettingsOptions, other_b: ModelOptions
) -> None:
    same = default_folder("m", a, b) == default_folder("m", other_a, other_b)
    assert same == ((a, b) == (other_a, other_b))
