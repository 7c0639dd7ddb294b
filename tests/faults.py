"""Fault injection at every point where a command changes something on disk.

1. The command runs in a process in which the n-th such point fails: the process dies there without any clean-up, gets a
   signal, or the system call returns an error.
2. The state on disk is examined, and the same command runs again without a fault.
3. The same for n + 1, until there is no such point.

Each process is a fork of one that has imported everything and loaded the model, because that takes far longer than the rest.

    python -m tests.faults SPECIFICATION.json      prints a line of JSON for each case
"""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

KILL = "killed"
# A full disk stays full, but calls that need no room succeed. In a read-only folder all calls fail from then on. A device
# error occurs once.
REFUSALS = {"disk full": errno.ENOSPC, "read-only": errno.EROFS, "input/output error": errno.EIO}
SIGNALS = {
    "Ctrl-C": signal.SIGINT,
    "two Ctrl-C": signal.SIGINT,  # the second at the next point
    "SIGTERM": signal.SIGTERM,
}
FAULTS = (KILL, *REFUSALS, *SIGNALS)
NEEDS_ROOM = ("open", "close", "mkdir", "safetensors")
DIED = 9


@dataclass(frozen=True)
class Case:
    """One fault: where it struck, how the command ended, and whether the next run of the command recovered."""

    fault: str
    number: int
    point: str
    code: int
    stderr: str
    whole: bool  # every stage in place was complete
    leftovers: list[str]
    code_after: int
    stderr_after: str
    same_after: bool  # the next run left the same files as a run without faults
    kept: bool  # the next run did not compute complete stages again

    @property
    def reason(self) -> str:
        return os.strerror(REFUSALS[self.fault])

    @property
    def refused_with_a_sentence(self) -> bool:
        lines = [line for line in self.stderr.splitlines() if line.startswith("arithscope: ")]
        explained = (
            len(lines) == 1 and lines[0] == self.stderr.rstrip("\n").splitlines()[-1] and self.reason in lines[0]
        )
        return self.code == 2 and explained and "Traceback" not in self.stderr

    @property
    def stopped_with_a_sentence(self) -> bool:
        explained = self.stderr.endswith(("Stopped; run the same command again to continue.\n", "Stopped.\n"))
        return self.code == 128 + SIGNALS[self.fault] and explained and "Traceback" not in self.stderr

    @property
    def survived(self) -> bool:
        if self.fault == KILL:
            ended = self.code == DIED
        elif self.fault in SIGNALS:
            ended = self.stopped_with_a_sentence
        else:
            ended = self.code == 0 or self.refused_with_a_sentence
        return ended and self.whole and self.code_after == 0 and self.same_after and self.kept


class Points:
    """Counts the changes below a folder that this process makes, and injects a fault at the n-th."""

    def __init__(self, root: Path, at: int, fault: str, note: Path):
        self.root, self.at, self.fault, self.note = str(root), at, fault, note
        self.count = 0

    def strike(self, kind: str, path: Any, half: Callable[[], None] = lambda: None) -> None:
        """Called before each change; `half` makes half of it."""
        if not os.path.abspath(os.fsdecode(path)).startswith(self.root):
            return
        self.count += 1
        if self.count < self.at:
            return
        lasts = self.fault == "read-only" or (self.fault == "disk full" and kind in NEEDS_ROOM)
        again = self.fault == "two Ctrl-C" and self.count == self.at + 1
        if self.count > self.at and not lasts and not again:
            return
        if self.count == self.at:
            descriptor = os.open(self.note, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, f"{kind} {os.path.relpath(os.fsdecode(path), self.root)}".encode())
            os.close(descriptor)
        half()
        if self.fault == KILL:
            os._exit(DIED)
        if self.fault in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.fault])
            return  # not reached, as the signal raises
        number = REFUSALS[self.fault]
        raise OSError(number, os.strerror(number), os.fsdecode(path))


class _File:
    """A file being written; if closing it fails, half of it is on disk."""

    def __init__(self, file: Any, path: Any, points: Points):
        self._file, self._path, self._points = file, path, points

    def __getattr__(self, name: str) -> Any:
        if name == "fileno":  # with it, some libraries would bypass this object
            raise AttributeError(name)
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._points.strike("close", self._path, lambda: halve(self._path))


def halve(path: Any) -> None:
    with real_open(path, "r+b") as file:
        file.truncate(os.fstat(file.fileno()).st_size // 2)


real_open = builtins.open


def install(points: Points) -> None:
    """Inject the fault in this process; there is no way back."""
    import safetensors.numpy
    import safetensors.torch

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return real_open(file, mode, *args, **kwargs)
        points.strike("open", file)
        found = real_open(file, mode, *args, **kwargs)
        ours = os.path.abspath(os.fsdecode(file)).startswith(points.root) and not str(file).endswith(".lock")
        return _File(found, file, points) if ours else found

    builtins.open = io.open = opened  # type: ignore[assignment]

    def watched(name: str, path_of: Callable[..., Any]) -> None:
        original = getattr(os, name)

        def function(*args: Any, **kwargs: Any) -> Any:
            points.strike(name, path_of(*args, **kwargs))
            return original(*args, **kwargs)

        setattr(os, name, function)

    def first(path: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> Any:
        return path if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))

    for name in ("mkdir", "unlink", "remove", "rmdir"):
        watched(name, first)
    for name in ("replace", "rename"):
        watched(name, lambda source, target, **_: target)
    watched("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))

    for module in (safetensors.numpy, safetensors.torch):
        real: Any = module.serialize_file

        def serialized(tensors: Any, path: Any, *args: Any, real: Any = real, **kwargs: Any) -> None:
            def half() -> None:
                real(tensors, path, *args, **kwargs)
                halve(path)

            try:
                points.strike("safetensors", path, half)
            except OSError as error:  # the library reports it like this
                raise safetensors.SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from None
            real(tensors, path, *args, **kwargs)

        module.serialize_file = serialized  # type: ignore[attr-defined]


def forked(arguments: Sequence[str], errors: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Run a command in a fork of this process. Returns its exit code; stderr goes to the file `errors`."""
    from arithscope.cli.app import main

    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        prepare()
        main(list(arguments))
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
    raise AssertionError


def cases(
    arguments: Sequence[str], scratch: Path, faults: Sequence[str], before: Path | None, every: int
) -> Iterator[Case]:
    """Try each fault at every point of a command, or at every `every`-th.

    OUT in the arguments stands for the folder in which changes are counted; it starts as a copy of `before`, if given.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    errors, note = scratch / "errors.txt", scratch / "struck.txt"

    def fresh(name: str) -> tuple[Path, list[str]]:
        folder = scratch / name / "out"
        folder.parent.mkdir()
        if before is not None:
            subprocess.run(["cp", "-a", str(before), str(folder)], check=True)
        return folder, [str(folder) if a == "OUT" else a for a in arguments]

    folder, command = fresh("without faults")
    if forked(command, errors) != 0:
        raise RuntimeError(f"the command fails without any fault: {errors.read_text()}")
    wanted = snapshot(folder)
    for fault in faults:
        for number in count(1, every):
            folder, command = fresh(f"{fault.replace('/', ' ')} {number}")
            points = Points(folder, number, fault, note)
            note.unlink(missing_ok=True)
            code = forked(command, errors, lambda points=points: install(points))  # type: ignore[misc]
            if not note.exists():
                if code != 0:
                    raise RuntimeError(f"the command fails, although no fault struck: {errors.read_text()}")
                break
            stderr, complete = errors.read_text(), records(folder)
            whole = all(is_complete(folder / name) for name in complete)
            left = sorted(p.name for p in folder.rglob(".*") if p.suffix in (".tmp", ".old")) if folder.exists() else []
            after = forked(command, errors)
            kept = {name: records(folder).get(name) for name in complete} == complete
            same = after == 0 and snapshot(folder) == wanted
            subprocess.run(["rm", "-rf", str(folder.parent)], check=True)
            yield Case(
                fault, number, note.read_text(), code, stderr, whole, left, after, errors.read_text(), same, kept
            )


def records(folder: Path) -> dict[str, bytes]:
    """The stage.json of every stage in place, by folder."""
    return {str(p.parent.relative_to(folder)): p.read_bytes() for p in folder.rglob("[!.]*/stage.json")}


def is_complete(stage: Path) -> bool:
    files = json.loads((stage / "stage.json").read_text())["files"]
    return all(hashlib.sha256((stage / name).read_bytes()).hexdigest() == digest for name, digest in files.items())


def snapshot(folder: Path) -> dict[str, Any]:
    """Every file below a folder, by name, without dates and durations."""
    return {str(p.relative_to(folder)): _content(p) for p in sorted(folder.rglob("*")) if not p.is_dir()}


def _content(path: Path) -> Any:
    if path.name in ("stage.json", "manifest.json"):
        return _without_times(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [_without_times(json.loads(line)) for line in path.read_text().splitlines()]
    return "there" if path.name == "report.html" else hashlib.sha256(path.read_bytes()).hexdigest()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        timed = ("created", "finished", "seconds", "checksum", "started")
        return {name: _without_times(x) for name, x in value.items() if name not in timed}
    return value


def stored(folder: Path) -> Any:
    """Checksums, summary and key of every stage, the statuses of all, and summary.json."""
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/stage.json"))}
    manifest = json.loads((folder / "manifest.json").read_text())
    status = {name: entry["status"] for name, entry in manifest["stages"].items()}
    summary = json.loads((folder / "summary.json").read_text())
    return {name: (r["files"], r["summary"], r["key"]) for name, r in found.items()}, status, summary


def at_every_point(
    arguments: Sequence[str | Path],
    scratch: Path,
    faults: Sequence[str] = FAULTS,
    models: Sequence[str | Path] = (),
    before: Path | None = None,
    every: int = 1,
) -> list[Case]:
    """All cases, tried by a separate process with one thread, which loads the models once."""
    scratch.mkdir(parents=True, exist_ok=True)
    content = {
        "arguments": [str(a) for a in arguments],
        "scratch": str(scratch / "cases"),
        "faults": list(faults),
        "models": [str(s) for s in models],
        "before": None if before is None else str(before),
        "every": every,
    }
    specification = scratch / "specification.json"
    specification.write_text(json.dumps(content))
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", str(specification)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [Case(**json.loads(line)) for line in done.stdout.splitlines()]


def main(specification: Path) -> None:
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama  # noqa: F401

    import arithscope.pipeline.study
    import arithscope.report.comparison
    import arithscope.report.figure_files
    import arithscope.report.page
    import arithscope.report.terminal
    import arithscope.training.loop  # noqa: F401
    from arithscope.models.load import load
    from arithscope.pipeline import ray_executor

    content = json.loads(specification.read_text())
    loaded = {name: load(name) for name in content["models"]}
    ray_executor.load = lambda name, *how: loaded.get(name) or load(name, *how)  # type: ignore[assignment]
    before = None if content["before"] is None else Path(content["before"])
    for case in cases(content["arguments"], Path(content["scratch"]), content["faults"], before, content["every"]):
        print(json.dumps(asdict(case)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
