"""Python in README, docs and tutorial runs, links work, generated tables are up to date, and the site builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

import arithscope
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.stage import Context, Stage, stage, unregister
from arithscope.heuristics.kinds import ranges
from arithscope.pipeline.registry import all_stages
from arithscope.settings import PRESETS
from tests.command_line import call
from tools import docs_tables

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(p for p in (ROOT / "docs").rglob("*.*") if p.suffix in (".md", ".ipynb")),
    ROOT / "benchmarks/RESULTS.md",
    ROOT / "src/arithscope/pretrained/README.md",
]


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
    assert (
        call("run", "--max-operand", "20", "--operators", "+", "--stages", "accuracy", "--out", "runs/tiny-llama") == 0
    )
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
    assert len(blocks) >= 10
    names: dict[str, Any] = {}
    for i, code in enumerate(blocks, 1):
        exec(compile(code, f"how-to.md, block {i}", "exec", dont_inherit=True), names)
    printed = capsys.readouterr().out
    for expected in (
        "This model can be studied.",
        "Model('tiny-llama'",
        "computed: means, accuracy, localize, circuit)",
        "torch.Size([512, 50])",
    ):
        assert expected in printed
    assert names["prompted"].encoder.length > names["model"].encoder.length
    assert (names["lab"].accuracy.prompts.op1 % 10 + names["lab"].accuracy.prompts.op2 % 10).min() == 10
    assert names["neuron"].activation_map is not None
    assert (tmp_path / "neuron.png").stat().st_size > 10_000
    assert (names["explanation"].right, names["both"].runs) == (34, ["tiny-llama", "other-seed"])
    assert len(names["matches"]) == names["run"].classify.matches.calibrated.sum() > 0
    assert len(names["activations"]) == len(names["neurons"]) > 0


def test_the_page_about_several_tokens_runs(
    small_layouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All blocks in order, as one program."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_layouts, tmp_path / "runs" / "tiny-digits-add-sub-operands10-59")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/several-tokens.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 8
    names: dict[str, Any] = {}
    for i, code in enumerate(blocks, 1):
        exec(compile(code, f"several-tokens.md, block {i}", "exec", dont_inherit=True), names)
    printed = capsys.readouterr().out
    for expected in ("1 is asked for in all prompts", "tens ", "1 45+38= 8 ", "2 45+38=8 3 "):
        assert expected in printed
    assert list(names["runs"]) == ["2-2-2"]
    assert names["runs"]["2-2-2"].stages == ["whole_answers"]
    assert [*names["explanations"]] == [1, 2]
    assert names["lab"].stratum == names["tens"].stratum


class ThisPython(KernelSpecManager):
    """Starts kernels with the interpreter that runs the tests, whatever kernels are installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)  # nothing stale is shown
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
    client = NotebookClient(notebook, km=manager, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(cleanup_kc=True)  # raises if a cell does
    shown = "".join(_text(output) for cell in code for output in cell.outputs)
    for expected in ("tiny-llama", "faithfulness", "Neuron(L", "Explanation(", "calibrated", "p_answer"):
        assert expected in shown, expected
    [ablated] = [cell.outputs[0]["data"]["text/plain"] for cell in code if "without=own" in cell.source]
    answers = [line.split()[-3:-1] for line in ablated.splitlines()[1:]]  # predicted, correct
    assert answers == [["411", "True"], ["311", "False"], ["411", "True"]]  # as the text says
    images = [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(images) >= 3


def _text(output: Any) -> str:
    return output.get("text", "") + "".join(str(x) for kind, x in output.get("data", {}).items() if "text" in kind)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_point_to_existing_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_reference_tables_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs_tables.main(["--check"]) == 0, f"{capsys.readouterr().out}; run: python -m tools.docs_tables"


def test_reference_tables_list_every_column() -> None:
    page = (ROOT / "docs/reference/results.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\w+: \w+)\n(.*?)(?=^#|^<!--)", page, re.S | re.M))
    for each in all_stages():
        for name, declared in each.result.schema().items():
            if isinstance(declared, schema.Table):
                columns = re.findall(r"^\| `(\w+)` \|", sections[f"{each.name}: {name}"], re.M)
                assert columns == declared.names


@dataclass(frozen=True, repr=False)
class Parity(Result):
    """Even and odd answers."""

    table: Any = schema.table(
        "Accuracy by parity.", schema.OPERATOR, schema.boolean("odd", "whether a | b is odd"), *schema.MEAN_COLUMNS
    )
    map: Any = schema.array("one map", "float32", "op1, op2")
    largest: int = schema.value("largest answer")


@pytest.fixture
def plug_in_stage() -> Iterator[Stage]:
    @stage(needs=(Accuracy,), reads=("seed", "effect"), on_request=True, paper="App. Z")
    def parity(ctx: Context) -> Parity:
        """Accuracy on even and odd answers."""
        raise NotImplementedError

    yield next(each for each in all_stages() if each.name == "parity")
    unregister("parity")


def test_reference_tables_include_plug_ins(plug_in_stage: Stage) -> None:
    [row] = [line for line in docs_tables.stages_table(all_stages()).splitlines() if "parity" in line]
    assert row == (
        "| [parity](results.md#parity) *(on request)* | Accuracy on even and odd answers. | App. Z | accuracy | "
        "`seed`, `effect` |"
    )
    page = docs_tables.with_tables(
        "<!-- generated: results -->\nold\n<!-- end of generated text -->\n", [plug_in_stage]
    )
    assert "old" not in page
    for expected in (
        "## parity\n\n`Parity`: Even and odd answers.\n",
        "### parity: table\n\nAccuracy by parity. File: `parity/table.parquet`.\n",
        "| `operator` | text | yes | one of `+ - * /` |\n| `odd` | boolean |  | whether a \\| b is odd |\n",
        "| `parity/map.npy` | float32 | op1, op2 | one map |",
        "| `largest` | `int` | largest answer |",
    ):
        assert expected in page


def test_the_documented_samples_are_those_of_the_presets() -> None:
    """Single neurons are patched on at most the discovery prompts."""
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    rows = {
        "discovery prompts per operator": [sizes.discovery for sizes in PRESETS.values()],
        "selection prompts per operator": [sizes.selection for sizes in PRESETS.values()],
        "evaluation prompts per operator": [sizes.evaluation for sizes in PRESETS.values()],
        "discovery prompts on which single neurons of the answer layers are patched": [
            min(sizes.neurons, sizes.discovery) for sizes in PRESETS.values()
        ],
    }
    for name, values in rows.items():
        assert f"| {name} | {' | '.join(map(str, values))} |" in text


def test_the_papers_example_of_a_range_is_not_in_the_catalogue() -> None:
    """Ranges of 100 start at 0, 33, 66, 99, …, so [100, 200], which the paper names, is none of them."""
    starts = [rule.low for rule in ranges("op1", (100,), 300)]
    assert starts[:4] == [0, 33, 66, 99]
    assert 100 not in starts
    assert "By its own formula that range is not in the catalogue" in (ROOT / "docs/heuristics.md").read_text("utf-8")


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.M) == [arithscope.__version__]


def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly: no broken link or anchor, and nothing is loaded from another host."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {p.relative_to(tmp_path).as_posix(): p.read_text(encoding="utf-8") for p in tmp_path.rglob("*.html")}
    for page in (
        "index",
        "tutorial",
        "extending",
        "reference/api",
        "repository/src/arithscope/experiments/localize.py",
    ):
        assert f"{page}.html" in pages
    assert 'id="classify-matches"' in pages["reference/results.html"]
    assert 'id="arithscope.load"' in pages["reference/api.html"]
    for name, text in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"?(https?:)?//", text)
        loaded += re.findall(r"<link[^>]* rel=\"?(?:stylesheet|preconnect|icon)\"?[^>]* href=\"?(https?:)?//", text)
        assert not loaded, name
