"""The wheel and the source archive: complete, and the wheel runs when installed in a separate environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import arithscope

pytest.importorskip("hatchling")
ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def ran(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(w) for w in words], cwd=folder, env=plain, capture_output=True, text=True, timeout=900)


def build(source: Path, out: Path, *targets: str) -> Path:
    """Build, and return the only file that was built."""
    done = ran(sys.executable, "-m", "hatchling", "build", "-d", out, *targets, folder=source)
    assert done.returncode == 0, done.stderr
    [path] = out.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "-t", "wheel")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, which sees all packages of this one but the editable install."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", wheel], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def names_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_below(folder: Path) -> set[str]:
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(folder.parent)) for p in found}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    package = {name for name in names_in(wheel) if ".dist-info/" not in name}
    assert package == files_below(ROOT / "src" / "arithscope")
    for needed in (
        "py.typed",
        "report/templates/report.css",
        "explorer/static/index.html",
    ):
        assert f"arithscope/{needed}" in package
    assert "arithscope/pretrained/tiny-pythia/checkpoints/step-00375/model.safetensors" in package


def test_the_metadata_of_the_wheel(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        [about] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(about).decode())
        licence = archive.read(about.replace("METADATA", "licenses/LICENSE")).decode()
    assert (metadata["Name"], metadata["Version"]) == ("arithscope", arithscope.__version__)
    assert wheel.name == f"arithscope-{arithscope.__version__}-py3-none-any.whl"
    assert (metadata["License-Expression"], licence) == ("MIT", (ROOT / "LICENSE").read_text(encoding="utf-8"))
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_messages_name_extras_that_install_the_missing_packages() -> None:
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src" / "arithscope").rglob("*.py"))
    named = re.findall(r"needs the packages? ([a-z ]+); run: pip install 'arithscope\[(\w+)\]'", source)
    assert len(named) == source.count("pip install 'arithscope[") >= 4
    for packages, extra in named:
        installed = {re.split(r"\W", need)[0] for need in PROJECT["optional-dependencies"][extra]}
        assert set(packages.split(" and ")) <= installed


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = build(ROOT, tmp_path / "sdist", "-t", "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [unpacked] = (tmp_path / "source").iterdir()
    for name in (
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "tests/test_wheel.py",
        "examples/new_stage.py",
        "docs/extending.md",
    ):
        assert (unpacked / name).is_file(), name
    again = build(unpacked, tmp_path / "wheel", "-t", "wheel")
    with ZipFile(wheel) as one, ZipFile(again) as other:
        assert {x.filename: x.CRC for x in one.infolist()} == {x.filename: x.CRC for x in other.infolist()}


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert versions[0] == arithscope.__version__
    assert versions == sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)


def test_the_installed_wheel_is_what_is_imported(environment: Path, tmp_path: Path) -> None:
    assert ran(environment / "arithscope", "--version", folder=tmp_path).stdout.split()[-1] == arithscope.__version__
    where = ran(environment / "python", "-c", "import arithscope; print(arithscope.__file__)", folder=tmp_path).stdout
    assert Path(where).is_relative_to(environment.parent)
    assert "tiny-llama" in ran(environment / "arithscope", "models", folder=tmp_path).stdout


@pytest.mark.slow
def test_the_installed_wheel_runs_a_study(environment: Path, tmp_path: Path) -> None:
    small = ("--operators", "+", "--max-operand", "20", "--topk", "8", "--neurons", "atp")
    done = ran(environment / "arithscope", "run", *small, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "tiny-llama-add-max20-atp-top8"
    stages = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["stages"]
    assert {entry["status"] for name, entry in stages.items() if name != "training"} == {"done"}
    assert (run / "report.html").stat().st_size > 100_000


USER = """
from pathlib import Path

import arithscope

model: arithscope.Model = arithscope.load("tiny-llama", options=arithscope.LoadOptions(device="cpu"))
right: int = int(arithscope.ask(model, ["1+1=", "2+2="]).correct.sum())
lab = arithscope.Lab(model, operators="+", max_operand=20)
answered: int = len(lab.accuracy.correct("+"))
neuron: arithscope.Neuron = arithscope.open(Path("runs/tiny-llama")).neuron(4, 17, "+")
name: str = arithscope.open("runs/tiny-llama").name
"""


@pytest.mark.slow
def test_type_checkers_use_the_types_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    """mypy --strict passes on a user's program and on the examples, and finds wrong types."""
    pytest.importorskip("mypy")
    python = environment / "python"
    checker = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        python,
        "--cache-dir",
        tmp_path / "cache",
    )
    (tmp_path / "user.py").write_text(USER)
    done = ran(*checker, tmp_path / "user.py", *(ROOT / "examples").glob("*.py"), folder=tmp_path)
    assert done.returncode == 0, done.stdout
    (tmp_path / "user.py").write_text(USER + "wrong: int = lab.limit.name\nworse: str = arithscope.load(3)\n")
    wrong = ran(*checker, tmp_path / "user.py", folder=tmp_path).stdout
    assert all(code in wrong for code in ("attr-defined", "arg-type", "assignment"))
