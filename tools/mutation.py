"""Mutation testing: does a test fail if a line of the numeric code is changed?

Every mutant (see `tools/mutants.py`) is one small change of one module. The tests that run the changed lines are run on
it, the quickest first, until one fails. If none fails, the mutant has survived: a test is missing, unless the mutant is
equivalent (it computes the same), or differs only on a GPU. Such mutants are listed, with the reason, in
tools/equivalent_mutants.toml.

    python -m tools.mutation --out mutants.jsonl [--processes 2] [--seconds 600] [--only TEXT]
    python -m tools.mutation --out mutants.jsonl --record mutation

Results are appended to the file; mutants that it already has are not run again. Tests are collected once, and every mutant
runs in a fork of the process that collected them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import inspect
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tools.mutants import PACKAGE, Mutant, mutants

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
ROOT = Path(__file__).resolve().parent.parent
LISTED = ROOT / "tools" / "equivalent_mutants.toml"
# The test files of each module, or folder of modules.
TESTS = {
    "stats": [file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "tests" / "stats").glob("test_*.py"))],
    "heuristics": [
        *(file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "tests" / "heuristics").glob("test_*.py"))),
        "tests/experiments/test_classify.py",
    ],
    "models/engine/replay.py": [
        f"tests/models/{name}.py" for name in ("engine/test_replay", "engine/test_sweep", "test_devices")
    ],
}
REPORT_FD = 9  # file descriptor to which a mutant writes what killed it; pytest uses the others
OURS = ("arithscope", "tests")
TEST_SECONDS = 8.0  # of tests for one mutant, the quickest first; what slower tests would notice does not count
MEMORY = 8 * 2**30  # bytes for one mutant


class Lines:
    """A pytest plugin that records how long each test takes and which lines of the modules it runs. Lines that run while a file
    is collected count for each of its tests."""

    def __init__(self, paths: Sequence[Path]):
        self.files = {str(p): p.relative_to(PACKAGE).as_posix() for p in paths}
        self.now: set[tuple[str, int]] = set()
        self.collected: set[tuple[str, int]] = set()
        self.tests: dict[str, tuple[float, list[tuple[str, int]]]] = {}

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        name = self.files.get(frame.f_code.co_filename)
        if name is None:
            return None
        if event != "return":
            self.now.add((name, frame.f_lineno))
        return self.trace

    def pytest_collection_finish(self) -> None:
        self.collected, self.now = self.now, set()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.tests[nodeid] = (time.process_time() - self.began, sorted(self.now | self.collected))

    def pytest_runtest_logstart(self) -> None:
        self.now.clear()
        self.began = time.process_time()


class Limits:
    """A pytest plugin that ends the process if a test fails or, by a signal, if it takes far longer than usual."""

    def __init__(self, usual: dict[str, float]):
        self.usual = usual
        self.limit(10)

    def limit(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, 5 + 5 * seconds)  # processor time, whatever the machine's load
        signal.setitimer(signal.ITIMER_REAL, 60 + 20 * seconds)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.limit(self.usual[nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            os.write(REPORT_FD, f"{report.nodeid}: {str(report.longrepr)[-200:]}".encode())
            os._exit(1)

    pytest_collectreport = pytest_runtest_logreport


def run_tests(tests: Sequence[str], plugin: Any) -> int:
    import pytest
    from hypothesis import settings

    settings.register_profile("mutation", derandomize=True, max_examples=25, deadline=None, database=None)
    settings.load_profile("mutation")
    unused = ("cacheprovider", "xdist", "unraisableexception", "threadexception", "faulthandler")
    options = ["-x", "-q", "-s", "--assert=plain", *(f"-pno:{name}" for name in unused)]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def traced(file: str, paths: Sequence[Path], out: Path) -> int:
    """Run the tests of a file on the unchanged code, and write their times and lines to `out`."""
    lines = Lines(paths)
    threading.settrace(lines.trace)
    sys.settrace(lines.trace)
    code = run_tests([file], lines)
    sys.settrace(None)
    libraries = [name for name in sys.modules if name.split(".")[0] not in (*OURS, "benchmarks", "__main__")]
    report = {"tests": lines.tests, "collected": sorted(lines.collected), "libraries": libraries}
    out.write_text(json.dumps(report))
    return code


class Session:
    """A pytest plugin that passes the collected tests to `work` instead of running them."""

    def __init__(self, work: Callable[[dict[str, Any]], None]):
        self.work = work

    def pytest_runtestloop(self, session: Any) -> bool:
        self.work({item.nodeid: item for item in session.items})
        return True


def mutated(mutant: Mutant, tests: Sequence[str], items: dict[str, Any] | None, usual: dict[str, float]) -> int:
    """Run tests on a mutant: the collected ones (`items`) with its code swapped in or, if that is impossible, the same tests
    after importing the package and collecting them again."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    mutant.change()
    ours = f"arithscope.{mutant.path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}"
    code = compile(ast.fix_missing_locations(mutant.tree), str(mutant.path), "exec")
    if items is not None:
        changed = ModuleType(ours)
        exec(code, vars(changed))
        with contextlib.suppress(ValueError):  # raised if a function has other closure variables than before
            swap_code(sys.modules[ours], changed)
            chosen = [items[test] for test in tests]
            chosen[0].config.pluginmanager.register(Limits(usual))
            for item, following in zip(chosen, [*chosen[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            return 0
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]
    get_code = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: code if name == ours else get_code(self, name)  # type: ignore
    try:
        importlib.import_module("tests.conftest")  # which needs the whole package
    except Exception as error:
        os.write(REPORT_FD, f"{type(error).__name__}: {error}".encode())
        return 1
    return run_tests(tests, Limits(usual))


def swap_code(old: Any, new: Any) -> None:
    """Give the functions of a module or class the code of another's, so that existing references run the new code."""
    for name, theirs in vars(new).items():
        ours = vars(old).get(name)
        if isinstance(theirs, type) and theirs.__module__ == new.__name__ and isinstance(new, ModuleType):
            swap_code(ours, theirs)
            continue
        a, b = (inspect.unwrap(getattr(x, "__func__", None) or getattr(x, "fget", None) or x) for x in (ours, theirs))
        if isinstance(b, FunctionType) and a is not b and isinstance(a, FunctionType):
            a.__code__, a.__defaults__, a.__kwdefaults__ = b.__code__, b.__defaults__, b.__kwdefaults__


def forked(work: Callable[[], int], log: Path) -> int:
    """Fork a process that does this work, with its output in a log file; returns its id."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 3
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.dup2(file.fileno(), REPORT_FD)
        code = work()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def run_parallel(
    jobs: Iterator[tuple[Any, Callable[[], int]]], processes: int, folder: Path
) -> Iterator[tuple[Any, int, str]]:
    """Run jobs, at most `processes` at a time, and yield the key, wait status and output of each as it ends."""
    running: dict[int, tuple[Any, Path]] = {}
    number = 0
    while True:
        while len(running) < processes and (job := next(jobs, None)) is not None:
            number += 1
            log = folder / str(number)
            running[forked(job[1], log)] = job[0], log
        if not running:
            return
        pid, status = os.wait()
        key, log = running.pop(pid)
        yield key, status, log.read_text(errors="replace")
        log.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of results, one mutant a line")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no mutant after this time")
    parser.add_argument("--only", default="", help="mutants whose text contains this")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument(
        "--record", metavar="NAME", help="run nothing; write the scores to benchmarks/results/NAME.json"
    )
    options = parser.parse_args()
    began = time.monotonic()
    by_module = {module: mutants_of(PACKAGE / module) for module in TESTS}
    chosen = [(module, m) for module, some in by_module.items() for m in some if options.only in m.id]
    if options.list:
        for _, m in chosen:
            print(f"{m.lines.start:5} {m.id}")
        return
    known = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    if options.record:
        record_scores(by_module, {r["id"]: r["end"] for r in known}, options.record)
        return
    done = {r["id"] for r in known}
    todo = [(module, m) for module, m in chosen if m.id not in done]
    random.Random(0).shuffle(todo)  # so that those run in a limited time are a fair sample
    with tempfile.TemporaryDirectory() as name:
        run(todo, options.processes, began + options.seconds, Path(name), options.out)


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a module, or of the modules of a folder."""
    modules = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return [m for module in modules for m in mutants(module)]


def run(todo: list[tuple[str, Mutant]], processes: int, until: float, folder: Path, out: Path) -> None:
    files = {file for module, _ in todo for file in TESTS[module]}
    paths = sorted({m.path for _, m in todo})
    usual: dict[str, float] = {}
    ran: dict[tuple[str, int], set[str]] = {}
    collecting: set[tuple[str, int]] = set()
    reports = {file: folder / f"{i}.json" for i, file in enumerate(files)}
    tests = ((file, partial(traced, file, paths, report)) for file, report in reports.items())
    for file, status, output in run_parallel(tests, processes, folder):
        if status != 0:
            sys.exit(f"{file} does not pass by itself:\n{output}")
        report = json.loads(reports[file].read_text())
        for test, (seconds, lines) in report["tests"].items():
            usual[test] = seconds
            for name, line in lines:
                ran.setdefault((name, line), set()).add(test)
        collecting |= {(name, line) for name, line in report["collected"]}
        for library in report["libraries"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(library)
    if threading.active_count() > 1:
        sys.exit("a library has started a thread, so this process cannot be forked")
    print(f"{len(todo)} mutants, {len(usual)} tests", flush=True)

    def jobs(items: dict[str, Any]) -> Iterator[tuple[Mutant, Callable[[], int]]]:
        for module, m in todo:
            if time.monotonic() > until:
                return
            name = m.path.relative_to(PACKAGE).as_posix()
            chosen = {test for line in m.lines for test in ran.get((name, line), ())}
            if not m.narrow:
                chosen = {test for test in usual if test.split("::")[0] in TESTS[module]}
            quickest = sorted(chosen, key=lambda test: usual[test])
            within = [
                test
                for test, so_far in zip(quickest, accumulate(usual[test] for test in quickest), strict=True)
                if so_far <= TEST_SECONDS
            ]
            in_place = m.narrow and not any((name, line) in collecting for line in m.lines)
            job = partial(mutated, m, within or quickest[:1], items if in_place else None, usual)
            yield m, job if chosen else lambda: 0

    def work(items: dict[str, Any]) -> None:
        gc.freeze()
        with out.open("a") as file:
            for m, status, output in run_parallel(jobs(items), processes, folder):
                late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
                if os.WIFEXITED(status) and os.WEXITSTATUS(status) > 2:
                    sys.exit(f"The mutant could not be run: {m.id}\n{output}")
                end = "survived" if status == 0 else "timed out" if late else "killed"
                row = {"id": m.id, "line": m.lines.start, "end": end, "by": output[-300:] if end == "killed" else ""}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()

    run_tests(sorted(files), Session(work))


def record_scores(by_module: dict[str, list[Mutant]], ends: dict[str, str], name: str) -> None:
    """Record the score of each module: of the mutants that were run and are not listed, the share that a test noticed."""
    from benchmarks.record import Table, record

    read = tomllib.loads(LISTED.read_text(encoding="utf-8"))
    listed = {text: kind for kind, groups in read.items() for group in groups for text in group["mutants"]}
    wrong = {*listed} - {m.id for some in by_module.values() for m in some if ends.get(m.id, "survived") == "survived"}
    if wrong:
        sys.exit(f"{LISTED.name} lists mutants that do not exist or that a test notices: {sorted(wrong)}")
    rows, survived = [], []
    for module, some in by_module.items():
        count = Counter(listed.get(m.id, ends[m.id]) for m in some if m.id in ends)
        noticed, tried = count["killed"] + count["timed out"], count.total()
        score = f"{noticed / (noticed + count['survived']):.1%}"
        rows.append(
            [module, len(some), tried, noticed, *(count[x] for x in ("timed out", "same", "gpu", "survived")), score]
        )
        survived += [[m.id] for m in some if ends.get(m.id) == "survived" and m.id not in listed]
    columns = [
        "module",
        "mutants",
        "run",
        "noticed",
        "of them too slow",
        "equivalent",
        "only with a GPU",
        "survived",
        "score",
    ]
    notes = [f"tests of at most {TEST_SECONDS:.0f} seconds for a mutant", "where not all were run, a random sample"]
    tables = {"scores": Table(columns, rows)} | ({"survived": Table(["mutant"], survived)} if survived else {})
    record(name, tables, notes)


if __name__ == "__main__":
    main()
