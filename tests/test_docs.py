"""The Python in README and docs runs, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arithscope.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "src/arithscope/subjects/README.md"]


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert "torch.Size([512, 50])" in capsys.readouterr().out


def test_the_run_folder_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["run", "--max-operand", "20", "--operators", "+"])
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/run-folder.md").read_text(encoding="utf-8"), re.S)
    exec(compile(code, "run-folder.md", "exec"), {})
    assert "operator" in capsys.readouterr().out
    assert (tmp_path / "runs" / "tiny-llama" / "summary.json").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
