"""Studies of prompts with operator words and in conversations: their keys, run folders and models."""

from __future__ import annotations

import html
import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arithscope
from arithscope import Lab
from arithscope.errors import UserError
from arithscope.models.load import load, model_spec, weights_of
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import untrained_model
from arithscope.pipeline import runner
from arithscope.pipeline.configuration import encoding_of
from arithscope.pipeline.registry import all_stages, stage_named
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import stage_key
from arithscope.prompts import Template, legal_prompts
from arithscope.report.page import write_report
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests import tokenizers_for_tests as made
from tests.command_line import error_message
from tests.conftest import saved
from tests.families import CONFIGS, small

TEMPLATE = Template(
    "What is {op1} {operator} {op2}?", "1 + 2 = 3\n", {"+": "plus", "-": "minus"}, chat=True, reply="The answer is "
)
SMALL = Settings(("+", "-"), 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama with a chat template."""
    tokenizer = made.with_chat(made.reading_words(30), made.LLAMA_3)
    hf_model = untrained_model("llama", CONFIGS["llama"], tokenizer)
    return saved(Model(hf_model, tokenizer, Identity("m", "", "w", "t")), tmp_path_factory.mktemp("models") / "chat")


def keys(template: Template, folder: Path) -> dict[str, str]:
    return runner.keys_of(load(str(folder), template), SMALL, all_stages(), [])


def test_default_templates_have_the_keys_they_always_had() -> None:
    """Written out, as runs of earlier days must be found again."""
    model = small("llama", prefix="1+2=")
    written = {"template": "{op1}{operator}{op2}=", "prefix": "1+2="}
    assert encoding_of(model) == written
    means = stage_named("means")
    read = {name: getattr(SMALL, name) for name in means.reads}
    about = dict(version=arithscope.__version__, model=runner.describe_model(model), template=written)
    assert runner.keys_of(model, SMALL, [means], []) == {
        "means": stage_key(stage="means", settings=read, needs={}, **about)
    }


def test_every_part_of_a_wording_changes_the_keys(folder: Path) -> None:
    text = TEMPLATE.text
    wordings = [
        Template(text),
        Template(text, words={"+": "plus"}),
        Template(text, words={"+": "plus", "-": "minus"}),
        Template(text, chat=True),
        Template(text, chat=True, reply="The answer is "),
    ]
    assert len({keys(wording, folder)["means"] for wording in wordings}) == len(wordings)


def test_another_chat_template_changes_the_keys_of_conversations_only(folder: Path, tmp_path: Path) -> None:
    other = with_another_chat_template(folder, tmp_path)
    assert keys(Template("{op1} {operator} {op2} ="), folder) == keys(Template("{op1} {operator} {op2} ="), other)
    assert keys(TEMPLATE, folder) != keys(TEMPLATE, other)


def with_another_chat_template(folder: Path, tmp_path: Path) -> Path:
    other = Path(shutil.copytree(folder, tmp_path / "other" / folder.name))
    (other / "chat_template.jinja").write_text(made.GEMMA)
    return other


def test_a_lab_studies_a_conversation(folder: Path) -> None:
    model = load(str(folder), TEMPLATE)
    prompts = legal_prompts("+-", 8, model.limit)
    lab = Lab(model, operators="+-", max_operand=8)
    rows = lab.accuracy.rows(prompts)
    logits = model.logits(model.encode(prompts))
    right = logits.softmax(-1).gather(1, model.answers(prompts)[:, None])[:, 0]
    np.testing.assert_allclose(rows.p_answer, right.numpy(), rtol=1e-4)
    shown = arithscope.ask(model, ["3+4="]).prompt[0]
    assert shown == "What is 3 plus 4?"


def test_a_run_of_a_conversation_is_opened_with_its_model(folder: Path, tmp_path: Path) -> None:
    model = load(str(folder), TEMPLATE)
    run_stages(model, SMALL, tmp_path / "run", ["accuracy"], Silent())
    run = arithscope.open(tmp_path / "run")
    assert run.configuration["operator_words"] == {"+": "plus", "-": "minus"}
    assert run.model.encoder.template == TEMPLATE
    prompts = run.prompt("3+4=")
    assert run.model.encode(prompts).equal(model.encode(prompts))
    elsewhere = with_another_chat_template(folder, tmp_path)
    with pytest.raises(UserError, match="writes something else around a message than when the run was made"):
        _ = arithscope.open(tmp_path / "run", str(elsewhere)).model


def test_the_report_says_how_prompts_are_written(folder: Path, tmp_path: Path) -> None:
    written = {}
    for name, template in {"words": TEMPLATE, "plain": Template(TEMPLATE.text)}.items():
        run = run_stages(load(str(folder), template), SMALL, tmp_path / name, ["accuracy"], Silent())
        page = re.sub("<[^>]*>", "", write_report(run).read_text(encoding="utf-8"))
        written[name] = " ".join(html.unescape(page).split())
    text = "written as What is {op1} {operator} {op2}?"
    assert f"{text}. The run started" in written["plain"]
    worded = ", + as plus, - as minus, after the prefix given in the appendix, as the user’s message"
    assert f"{text}{worded} in the model’s chat template, given in the appendix. The run" in written["words"]
    for shown in ("The answer is", "Today: 26 Jul 2024"):
        assert shown in written["words"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("operator_words", {"+": 3}),
        ("operator_words", ["+", "plus"]),
        ("operator_words", {"%": "mod"}),
        ("operator_words", {"+": "-"}),
        ("chat", 1),
        ("chat", "yes"),
        ("reply", None),
        ("reply", "{op1}"),
        ("surroundings", "none"),
    ],
)
def test_damaged_wordings_are_refused(
    name: str, value: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stages(load(str(folder), TEMPLATE), SMALL, tmp_path / "run", ["means"], Silent())
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["configuration"][name] = value
    path.write_text(json.dumps(manifest))
    assert "is damaged: what manifest.json says about" in error_message(capsys, "verify", tmp_path / "run")


def test_a_model_is_rebuilt_with_its_conversation(folder: Path) -> None:
    """As in the workers of a cluster."""
    model = load(str(folder), TEMPLATE)
    again = pickle.loads(pickle.dumps(model_spec(model))).filled(weights_of(model), model.device)
    prompts = legal_prompts("+", 5, model.limit)
    assert again.encoder.surroundings == model.encoder.surroundings
    assert again.logits(again.encode(prompts)).equal(model.logits(model.encode(prompts)))
