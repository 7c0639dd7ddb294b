"""The command line: what it prints, and one sentence with exit code 2 for each mistake of the user."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from typer.models import OptionInfo

from arithscope.cli.app import app
from arithscope.figures.registry import all_figures
from arithscope.models.load import load
from arithscope.models.untrained import number_tokenizer
from arithscope.pipeline.runner import run_stages
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.command_line import call, error_message
from tests.hand_built import MAX_OPERAND, SUMS
from tests.tokenizers_for_tests import digit_splitting, misreading


def test_run(saved_adder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hand-built adder gets only 0·0 and 2·2 right, so `*` has samples of one prompt each, and `/` is left out."""
    out = tmp_path / "run"
    few = ("--max-operand", "9", "--operators", "+*/", "--neurons", "atp", "--topk", "16")
    arguments = ("run", saved_adder, *few, "--out", out)
    assert call(*arguments) == 0
    output = capsys.readouterr()
    assert str(out) in output.out.replace("\n", "")
    summary = json.loads((out / "summary.json").read_text())
    # No failures: it never fails on prompts it can do. No knockout: no rule has enough neurons. No overlap: only + is left.
    stages = (
        "accuracy answer_layers localize circuit probe neurons topk patterns classify bag heads mlp0 prompt_knockout"
    )
    assert list(summary) == stages.split()
    for experiment in summary:
        assert experiment in output.out
        # These two only read results of other stages, so they show no progress.
        assert f"\n{experiment}: done" in output.err or experiment in ("accuracy", "overlap")
    for left_out in "*/":
        assert f"{left_out} is left out" in output.err
    assert list(summary["accuracy"]) == ["+", "*", "/", "mean"]
    assert list(summary["circuit"]) == ["+", "mean"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["configuration"]["max_operand"] == 9
    assert {stage["status"] for stage in manifest["stages"].values()} == {"done"}
    drawn = {p.name: p.stat().st_size for p in (out / "figures").iterdir()}
    names = [spec.name for spec in all_figures() if spec.name not in ("training", "stability")]
    assert drawn.keys() == {f"{name}.{kind}" for name in names for kind in ("png", "svg")} | {"index.json"}
    assert min(drawn.values()) > 1000
    assert str(out / "report.html") in output.out.replace("\n", "")
    first = (out / "report.html").read_text(encoding="utf-8")
    assert first.count("<img ") == len(names)
    assert call(*arguments) == 0
    assert (out / "report.html").read_text(encoding="utf-8") == first
    assert capsys.readouterr().err.count("unchanged, not run again") == len(manifest["stages"])


def test_neuron(adder_run: Path, saved_adder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neuron a · 31 + b of layer 3 fires for a + b alone. With one top neuron of a layer, the others have no pattern."""
    out = Path(shutil.copytree(adder_run, tmp_path / "run"))
    other = Settings(("+",), MAX_OPERAND, topk=1)
    run_stages(load(str(saved_adder)), other, out, ["classify"], Silent(), overwrite=True)
    top = pd.read_parquet(out / "patterns" / "neurons.parquet").set_index("layer").loc[3]
    a, b = divmod(int(top.neuron), 31)
    capsys.readouterr()
    assert call("neuron", out, "3", str(top.neuron), "--operator", "+") == 0
    output = capsys.readouterr().out
    assert f"L3N{top.neuron} of " in output
    assert "rank 1 of 1024 in its layer (50 prompts, exact)" in output
    assert f"numbers it promotes most: {a + b} " in output
    pattern = [line for line in output.splitlines() if line.startswith("  |")]
    assert [line.count("@") for line in pattern] == [int(i == a * 25 // 31) for i in range(25)]
    assert "heuristics match" in output
    assert call("neuron", out, "3", str((top.neuron + 1) % 961), "--operator", "+") == 0
    assert "not among the top 1 neurons" in capsys.readouterr().out
    assert "no neuron L0N0; it has layers 3 to 4" in error_message(capsys, "neuron", out, "0", "0")
    assert "no neurons for the operator '-'; choose from +" in error_message(
        capsys, "neuron", out, "3", "0", "--operator", "-"
    )
    assert "no run at" in error_message(capsys, "neuron", tmp_path, "3", "0")
    shutil.rmtree(out / "classify")
    assert "no complete stage 'classify'" in error_message(capsys, "neuron", out, "3", str(top.neuron))


def test_explain(adder_run: Path, saved_adder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call("explain", adder_run, "17+8=") == 0
    output = capsys.readouterr().out
    for expected in (
        "17+8= 25 with P = 0.9",
        "(correct)",
        "The logit of 25",
        "remainder",
        "heuristics hold for this prompt",
        "neurons zero-ablated: 17+8=",
    ):
        assert expected in output
    assert call("explain", adder_run, "17 + 8", "--json", "--raw") == 0
    explanation = json.loads(capsys.readouterr().out)
    assert (explanation["right"], explanation["answer"]["number"], explanation["criterion"]) == (25, 25, "raw")
    assert sum(explanation["parts"].values()) == pytest.approx(explanation["logit"], abs=1e-5)
    assert {"layer", "neuron", "contribution", "heuristic"} <= set(explanation["neurons"][0])
    own = max(explanation["neurons"], key=lambda n: n["contribution"])
    assert (own["layer"], own["neuron"]) == (3, 17 * 31 + 8)
    assert call("explain", adder_run, "17+8=", "--model", str(saved_adder)) == 0


def test_explain_refuses_bad_input(adder_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for prompt, expected in (
        ("26--8=", "'-8' is not a whole number"),
        ("12/0=", "/ was not studied"),
        ("5000+1=", "beyond 30"),
        ("a+b=", "'a' is not a whole number"),
        ("2%2=", "none of the operators"),
        ("3-1=", "- was not studied in this run; choose from +"),
    ):
        assert expected in error_message(capsys, "explain", adder_run, prompt)
    assert "no run at" in error_message(capsys, "explain", tmp_path, "1+1=")
    assert "not the model of the run" in error_message(capsys, "explain", adder_run, "1+1=", "--model", "tiny-llama")
    assert "no folder" in error_message(capsys, "explain", adder_run, "1+1=", "--model", str(tmp_path / "gone"))
    other = Path(shutil.copytree(adder_run, tmp_path / "run"))
    shutil.rmtree(other / "classify")
    assert "no complete stage 'classify'" in error_message(capsys, "explain", other, "1+1=")
    manifest = json.loads((other / "manifest.json").read_text())
    del manifest["model"]["limit"]
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert "what manifest.json says about limit cannot be right" in error_message(capsys, "explain", other, "1+1=")


def test_run_refuses_bad_input(saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = ("run", saved_model, "--out", out)
    assert "use --max-operand 39" in error_message(capsys, *arguments)
    assert "--max-operand" in error_message(capsys, *arguments, "--max-operand", "ten")
    assert "not an operator" in error_message(capsys, *arguments, "--operators", "+%")
    assert "no --preset 'slow'" in error_message(capsys, *arguments, "--preset", "slow")
    assert "no stage 'lunch'" in error_message(capsys, *arguments, "--stages", "accuracy,lunch")
    assert "template" in error_message(capsys, *arguments, "--template", "{op1}")
    assert "does not know" in error_message(capsys, *arguments, "--template", "{op1} {operator} {op2} =")
    assert "no --effect 'huge'" in error_message(capsys, *arguments, "--effect", "huge")
    assert "choose from exact, atp, ig, relp, atp+exact" in error_message(capsys, *arguments, "--neurons", "quickly")
    assert "choose from mean, mean_abs, mean+std" in error_message(capsys, *arguments, "--rank", "median")
    assert "use at least 1" in error_message(capsys, *arguments, "--topk", "0")
    assert "the 48 neurons" in error_message(capsys, *arguments, "--max-operand", "5", "--topk", "49")
    assert "negative" in error_message(capsys, *arguments, "--seed", "-1")
    assert "no folder" in error_message(capsys, "run", tmp_path / "nothing")
    for option in (("--colour", "red"), ("--uncentred",), ("--ratio-of-means",), ("--knockout-at", "last")):
        assert "No such option" in error_message(capsys, *arguments, *option)
    assert not out.exists()
    (tmp_path / "file").write_text("")
    assert "Cannot write" in error_message(capsys, "run", saved_model, "--max-operand", "5", "--out", tmp_path / "file")
    assert "No such command" in error_message(capsys, "stroll")


def test_run_refuses_the_folder_of_another_model(
    saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(saved_model, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] *= 1.1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    arguments = ("--max-operand", "5", "--out", tmp_path / "run")
    assert call("run", saved_model, *arguments, "--stages", "accuracy") == 0
    before = {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
    assert "another model" in error_message(capsys, "run", other, *arguments)
    assert before == {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}


def test_doctor(saved_adder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--max-operand", str(MAX_OPERAND))
    assert call("doctor", saved_adder, *settings) == 0
    output = capsys.readouterr().out
    for expected in ("gpt2", f"limit {SUMS}", "(operator)", "BOS + four tokens", "replay", "MiB"):
        assert expected in output
    assert re.search(r"\n  \+  1\.00 \(0\.96–1\.00\) of 100 random prompts; 0\.\d\d by always answering \d+\n", output)
    assert output.endswith(
        "This model can be studied with --operators '+'; with others it is no better than one fixed answer.\n"
    )
    assert call("doctor", saved_adder, *settings, "--operators", "+") == 0
    assert capsys.readouterr().out.endswith("\nThis model can be studied.\n")
    assert call("doctor", saved_adder, "--max-operand", "1", "--operators", "+") == 0
    assert "  +  1.00 of all 4 legal prompts; 0.50 by always answering 1\n" in capsys.readouterr().out
    assert f"--max-operand {SUMS - 1}" in error_message(capsys, "doctor", saved_adder, "--max-operand", "100")


def test_doctor_on_a_random_model(saved_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "can be loaded and its tokenizer read, but it answers hardly any" in error_message(
        capsys, "doctor", saved_model
    )


def test_doctor_on_a_tokenizer_that_reads_6_as_7(
    saved_adder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(saved_adder, tmp_path / "model"))
    misreading(number_tokenizer(SUMS), {"6": "7", "7": "6"}).save_pretrained(folder)
    for command in ("doctor", "run"):
        assert "reads the number 6 as op1 as '7'" in error_message(capsys, command, folder)


def test_a_device_map(saved_adder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "places.json").write_text('{"transformer": "disk", "lm_head": "cpu"}')
    model = (saved_adder, "--operators", "+")
    assert call("doctor", *model, "--device-map", tmp_path / "places.json") == 0
    output = capsys.readouterr()
    assert "sdpa attention, some weights fetched in each pass, on cpu" in output.out
    assert not output.err
    assert "no device map 'sideways'" in error_message(capsys, "doctor", *model, "--device-map", "sideways")


def test_doctor_on_split_digits(saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(saved_model, tmp_path / "digits"))
    digit_splitting().save_pretrained(folder)
    assert call("doctor", folder) == 2  # a random model
    assert "only --max-operand 9 " in capsys.readouterr().out
    too_large = ("--max-operand", "20", "--out", tmp_path / "run")
    assert "use --max-operand 9" in error_message(capsys, "run", folder, *too_large)
    assert call("run", folder, "--max-operand", "9", "--stages", "accuracy", "--out", tmp_path / "run") == 0


def test_prefixes_may_contain_line_breaks(
    saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(saved_model, tmp_path / "digits"))
    digit_splitting().save_pretrained(folder)
    arguments = ("--template", "{op1} {operator} {op2} = ", "--prefix", r"1 + 2 = 3\n4 + 3 = 7\n")
    assert call("doctor", folder, *arguments) == 2  # a random model
    assert r"7\n" in capsys.readouterr().out


def test_messages_hold_no_escape_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["report", tmp_path / "\x1b[2J\u202e"], ["run", "\x1b[2J\u202e"], ["\x1b[2J\u202e"]):
        message = error_message(capsys, *command)
        assert r"\u001b[2J\u202e" in message or r"\x1b[2J\u202e" in message
        assert not set("\x1b\u202e") & set(message)


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom arithscope.cli.app import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    assert call("--version") == 0


def test_help_pages(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are grouped, and flags show neither a type nor a --no- variant."""
    for command in ("run", "explain", "explore", "verify", "doctor", "bench", "train", "compare", "neuron"):
        assert call(command, "--help") == 0
        page = capsys.readouterr().out
        assert not [text for text in ("<bool>", "<list", "--no-raw", "--browser", "SUBJECT") if text in page]
        if command == "run":
            panels = [page.index(f" {name} ─") for name in ("What to study", "Samples", "Measures", "Model", "Machine")]
            assert panels == sorted(panels)


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.callback.__name__)
def test_options_declare_their_names(command: Any) -> None:
    """typer 0.27 derives missing names from the metavar and would make --device of `run` --DEVICE."""
    for parameter in inspect.signature(command.callback, eval_str=True).parameters.values():
        [declared] = parameter.annotation.__metadata__
        if isinstance(declared, OptionInfo):
            name = "json" if parameter.name == "as_json" else parameter.name.replace("_", "-")
            assert declared.default == f"--{name}"  # the first argument of typer.Option, inside Annotated a name


def test_the_package_needs_no_posix_module() -> None:
    """On Windows, fcntl does not exist."""
    code = "import sys; sys.modules['fcntl'] = None; import arithscope.cli.app, arithscope.utils.files"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.real
@pytest.mark.skipif("ARITHSCOPE_GGUF" not in os.environ, reason="ARITHSCOPE_GGUF names no file")
def test_a_real_gguf_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SmolLM2-135M-Instruct splits numbers into digits; with few-shot examples it adds, with spaces better than without."""
    file = os.environ["ARITHSCOPE_GGUF"]
    shots = r"1 + 2 = 3\n4 + 3 = 7\n2 + 2 = 4\n5 + 1 = 6\n"
    assert call("doctor", file, "--template", "{op1} {operator} {op2} = ", "--prefix", shots) == 0
    assert "only --max-operand 9 " in capsys.readouterr().out
    assert "use --max-operand 9" in error_message(capsys, "run", file, "--out", tmp_path / "refused")
    accuracy = {}
    for name, template, prefix in (
        ("spaced", "{op1} {operator} {op2} = ", shots),
        ("bare", "{op1}{operator}{op2}=", shots.replace(" ", "")),
        ("no examples", "{op1}{operator}{op2}=", ""),
    ):
        arguments = ("--max-operand", "9", "--operators", "+", "--template", template, "--prefix", prefix)
        arguments = (*arguments, "--stages", "accuracy")
        assert call("run", file, *arguments, "--out", tmp_path / name) == 0
        accuracy[name] = json.loads((tmp_path / name / "summary.json").read_text())["accuracy"]["+"]["accuracy"][
            "value"
        ]
    assert accuracy["spaced"] > accuracy["bare"] > accuracy["no examples"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif("ARITHSCOPE_GGUF" not in os.environ, reason="ARITHSCOPE_GGUF names no file")
def test_every_stage_of_a_real_gguf_model(tmp_path: Path) -> None:
    """Takes a quarter of an hour on two cores. One head copies op1 to the last position, others op2."""
    shots = r"1 + 2 = 3\n4 + 3 = 7\n2 + 2 = 4\n5 + 1 = 6\n"
    arguments = ("--max-operand", "9", "--operators", "+", "--template", "{op1} {operator} {op2} = ", "--prefix", shots)
    assert call("run", os.environ["ARITHSCOPE_GGUF"], *arguments, "--out", tmp_path / "run") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["circuit"]["+"]["faithfulness"]["value"] > 0.9
    assert "L20H8" in summary["heads"]["+"]["attend_to_op1"]
    assert "L14H2" in summary["heads"]["+"]["attend_to_op2"]
