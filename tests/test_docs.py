"""The Python in README, docs and the tutorial runs, and their links lead somewhere."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from arithscope.cli.app import main

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.*")), ROOT / "src/arithscope/subjects/README.md"]


def test_the_readme_example_runs(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_run, tmp_path / "runs" / "tiny-llama")
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert "Explanation('23+14='" in capsys.readouterr().out
    assert (tmp_path / "neuron.png").stat().st_size > 10_000


def test_the_run_folder_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["run", "--max-operand", "20", "--operators", "+", "--stages", "accuracy"])
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/run-folder.md").read_text(encoding="utf-8"), re.S)
    exec(compile(code, "run-folder.md", "exec"), {})
    assert "operator" in capsys.readouterr().out
    assert (tmp_path / "runs" / "tiny-llama" / "summary.json").is_file()


def test_the_how_to_runs(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All blocks in order, as one program."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_run, tmp_path / "runs" / "tiny-llama")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to.md").read_text(encoding="utf-8"), re.S)
    assert len(split_evenly) >= 10
    names: dict[str, Any] = {}
    for i, code in enumerate(split_evenly, 1):
        exec(compile(code, f"how-to.md, block {i}", "exec", dont_inherit=True), names)
    said = capsys.readouterr().out
    for expected in (
        "This subject can be studied.",
        "Model('tiny-llama'",
        "computed: means, accuracy, localize, circuit)",
        "torch.Size([512, 50])",
    ):
        assert expected in said
    assert names["prompted"].encoder.length > names["model"].encoder.length
    assert (names["lab"].accuracy.prompts.op1 % 10 + names["lab"].accuracy.prompts.op2 % 10).min() == 10
    assert names["neuron"].pattern is not None
    assert (tmp_path / "neuron.png").stat().st_size > 10_000
    assert (names["found"].right, names["both"].runs) == (34, ["tiny-llama", "other-seed"])
    assert len(names["matches"]) == names["run"].classify.matches.calibrated.sum() > 0


class ThisPython(KernelSpecManager):
    """Kernels of the interpreter that runs the tests, whatever is or is not installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


def test_the_tutorial_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)  # nothing stale is shown
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
    client = NotebookClient(notebook, km=manager, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(cleanup_kc=True)  # raises if a cell does; the kernel is ours to end
    shown = "".join(_text(output) for cell in code for output in cell.outputs)
    for expected in ("tiny-llama", "faithfulness", "Neuron(L", "Explanation(", "calibrated", "p_answer"):
        assert expected in shown, expected
    [ablated] = [cell.outputs[0]["data"]["text/plain"] for cell in code if "without=own" in cell.source]
    said = [line.split()[-3:-1] for line in ablated.splitlines()[1:]]  # predicted, correct
    assert said == [["77", "True"], ["59", "False"], ["77", "True"]]  # the prose tells of it
    images = [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(images) >= 3


def _text(output: Any) -> str:
    return output.get("text", "") + "".join(str(x) for kind, x in output.get("data", {}).items() if "text" in kind)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
