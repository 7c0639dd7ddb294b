"""Mutation testing: does any test notice if a line of the code that makes the numbers is changed?

Every mutant is one small change of one module's syntax tree: another comparison, operator, constant, function or argument, or
a statement or returned value left out. The tests that run the changed lines are run on it, the quickest first, until one
fails. Where none does, the mutant has survived: a test is missing, unless nothing that the module is for has changed. Those are
listed, with the reason, in tests/equivalent_mutants.toml.

    python -m benchmarks.mutation --out mutants.jsonl [--processes 16] [--seconds 540] [--only TEXT]
    python -m benchmarks.mutation --out mutants.jsonl --record mutation

What was found is appended to the file; mutants that it has already are not run again. Libraries are imported once, and every
mutant is a fork of that process. Left alone: annotations, docstrings, decorators, texts of errors.
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
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "arithscope"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
# By module, or folder of them: the test files that are about it.
TESTS = {
    "measures.py": ["tests/test_measures.py"],
    "heuristics": [
        *(f"tests/heuristics/test_{name}.py" for name in ("kinds", "tails", "variance", "matching", "calibration")),
        "tests/experiments/test_classify.py",
    ],
    "subject/replay.py": [f"tests/subject/test_{name}.py" for name in ("replay", "sweep", "devices")],
}
SAYS = 9  # the file descriptor at which a mutant says what killed it; pytest has its own use for the others
OURS = ("arithscope", "tests")
LONGEST = 20.0  # seconds of tests for one mutant, the quickest first; what slower ones would notice is not counted
MEMORY = 8 * 2**30  # bytes, of one mutant

SWAPS: dict[type, list[type]] = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In], ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Div], ast.Mod: [ast.FloorDiv], ast.Pow: [ast.Mult], ast.LShift: [ast.RShift],
    ast.RShift: [ast.LShift], ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd], ast.And: [ast.Or], ast.Or: [ast.And],
}  # fmt: skip
_PAIRS = (
    "min max", "any all", "sum mean", "amin amax", "minimum maximum", "argmin argmax", "zeros ones", "searchsorted digitize",
    "zeros_like ones_like", "low high", "op1 op2", "above below", "sorted list", "reversed list", "log log1p", "expm1 exp",
)  # fmt: skip
NAMES = {a: b for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1]) if a != "list"}


SYMMETRIC = {"min", "max", "minimum", "maximum", "hypot", "isinstance"}  # or such that the wrong order is no program


@dataclass(frozen=True)
class Mutant:
    id: str  # module, function, what is changed: does not depend on line numbers
    path: Path
    lines: range
    narrow: bool  # tests that run the lines suffice; not so at module level and where results are kept between tests
    change: Callable[[], None]  # of the module's tree, in place
    tree: ast.Module


def mutants(path: Path) -> list[Mutant]:
    """All of a module, in the order of its lines."""
    tree, found, seen = ast.parse(path.read_text(encoding="utf-8")), [], Counter[str]()
    name = path.relative_to(PACKAGE).as_posix()
    for above, field, index, node in _places((tree,)):
        around = [a for a in above if isinstance(a, ast.FunctionDef | ast.ClassDef)]
        statement: Any = next(a for a in reversed((*above, node)) if isinstance(a, ast.stmt))
        part: Any = next((a for a in (node, *above[::-1]) if hasattr(a, "lineno")), statement)
        part = part if hasattr(statement, "body") else statement  # an expression may run over several lines
        # What is shown is the smallest part, around the change, that says something.
        shown = next(a for a in reversed((*above, node)) if isinstance(a, ast.stmt) or len(_text(a)) >= 12)
        before, old = _text(shown), getattr(above[-1], field)
        for new in _variants(node, above):
            changed = new if index is None else [*old[:index], new, *old[index + 1 :]]
            setattr(above[-1], field, changed)
            after = _text(new if shown is node else shown)
            setattr(above[-1], field, old)
            if after == before:
                continue
            text = f"{name} {'.'.join(a.name for a in around) or 'module'}: {before} → {after}"
            seen[text] += 1
            number = f" #{seen[text]}" if seen[text] > 1 else ""
            kept = any("cache" in ast.unparse(d) for a in around for d in a.decorator_list)
            inside = bool(around) and isinstance(around[-1], ast.FunctionDef) and not kept
            lines = range(part.lineno, part.end_lineno + 1)
            found.append(Mutant(text + number, path, lines, inside, partial(setattr, above[-1], field, changed), tree))
    return found


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.operator | ast.boolop | ast.cmpop):
        return ""
    line = " ".join(ast.unparse(node).split())
    return line if len(line) <= 240 else f"{line[:120]}…{line[-119:]}"


def _places(above: tuple[ast.AST, ...]) -> Iterator[tuple[tuple[ast.AST, ...], str, int | None, ast.AST]]:
    """Every node that may change, behind the nodes it stands in and the field and index where."""
    for field, value in ast.iter_fields(above[-1]):
        if field in ("annotation", "returns", "decorator_list", "bases", "ctx", "exc", "targets", "names"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _left_alone(child):
                yield above, field, index, child
                yield from _places((*above, child))


def _left_alone(node: ast.AST) -> bool:
    """Docstrings, imports, aliases of types (named like classes), `__repr__`, and `strict=True` of zip, which no right program
    can be told by."""
    if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
        return target.id[0].isupper() and not target.id.isupper()
    return isinstance(node, ast.FunctionDef) and node.name == "__repr__"


def _variants(node: ast.AST, above: Sequence[ast.AST]) -> Iterator[Any]:
    """What may stand in its place, but for what could only raise a NameError or TypeError."""
    holder = above[-1]
    for other in SWAPS.get(type(node), ()):
        yield other()
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            if value == 1 and not isinstance(holder, ast.UnaryOp):
                yield ast.Constant(type(value)(0))
        case ast.Constant(value=str() as value):
            yield ast.Constant(f"{value}?")
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.BoolOp(values=values):
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.Name(id=name) if name in NAMES and isinstance(holder, ast.Call) and node is holder.func:
            yield ast.Name(NAMES[name], ast.Load())
        case ast.Attribute(value=value, attr=name, ctx=ast.Load()) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], ast.Load())
        case ast.keyword(arg="min" | "max" as name, value=value):
            yield ast.keyword(NAMES[name], value)
        case ast.Call(func=func, args=args, keywords=keywords):
            for i in range(len(args)):
                if isinstance(func, ast.Attribute):
                    yield ast.Call(func, args[:i] + args[i + 1 :], keywords)
                if i + 1 < len(args) and ast.unparse(func).split(".")[-1] not in SYMMETRIC:
                    yield ast.Call(func, [*args[:i], args[i + 1], args[i], *args[i + 2 :]], keywords)
            for i in (i for i, k in enumerate(keywords) if k.arg != "strict"):
                yield ast.Call(func, args, keywords[:i] + keywords[i + 1 :])
        case ast.Slice(lower=lower, upper=upper, step=step):
            for parts in ((None, upper, step), (lower, None, step), (lower, upper, None)):
                if parts != (lower, upper, step):
                    yield ast.Slice(*parts)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.comprehension(target=target, iter=source, ifs=[_, *_]):
            yield ast.comprehension(target, source, [], 0)
        case ast.If(test=test, body=body, orelse=orelse) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Assign(targets=[target]) if not _names(target) <= _bound(node, above):
            pass
        case ast.Assign() | ast.AugAssign() | ast.Expr() | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()


def _bound(node: ast.Assign, above: Sequence[ast.AST]) -> set[str]:
    """The names that have a value before this statement."""
    inside = [n for a in above if isinstance(a, ast.FunctionDef) for n in ast.walk(a)]
    earlier = (n.id for n in inside if isinstance(n, ast.Name) and n.lineno < node.lineno)
    return {*(n.arg for n in inside if isinstance(n, ast.arg)), *earlier}


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


class Lines:
    """A pytest plugin: how long each test takes and which lines of the modules it runs; while its file is collected counts for
    each of its tests."""

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
    """A pytest plugin that ends the process by a signal where a test takes far more time than it did, and where one fails."""

    def __init__(self, usual: dict[str, float]):
        self.usual = usual
        self.limit(10)

    def limit(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, 5 + 5 * seconds)  # of processor time, whatever else the machine does
        signal.setitimer(signal.ITIMER_REAL, 60 + 20 * seconds)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.limit(self.usual[nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            os.write(SAYS, f"{report.nodeid}: {report.longrepr.reprcrash.message.splitlines()[0][:200]}".encode())
            os._exit(1)


def run_tests(tests: Sequence[str], plugin: Any) -> int:
    import pytest
    from hypothesis import settings

    settings.register_profile("mutation", derandomize=True, max_examples=25, deadline=None, database=None)
    settings.load_profile("mutation")
    unused = ("cacheprovider", "xdist", "unraisableexception", "threadexception", "faulthandler")
    options = ["-x", "-q", "-s", "--assert=plain", *(f"-pno:{name}" for name in unused)]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def traced(file: str, paths: Sequence[Path], out: Path) -> int:
    """The tests of a file, with nothing changed."""
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
    """A pytest plugin that, once all tests are collected, does other work with them than to run them."""

    def __init__(self, work: Callable[[dict[str, Any]], None]):
        self.work = work

    def pytest_runtestloop(self, session: Any) -> bool:
        self.work({item.nodeid: item for item in session.items})
        return True


def mutated(mutant: Mutant, tests: Sequence[Any], usual: dict[str, float]) -> int:
    """Run collected tests, or, given their names only, import the package and collect them anew."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    mutant.change()
    ours = f"arithscope.{mutant.path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}"
    code = compile(ast.fix_missing_locations(mutant.tree), str(mutant.path), "exec")
    if isinstance(tests[0], str):
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        theirs = SourceFileLoader.get_code
        SourceFileLoader.get_code = lambda self, name: code if name == ours else theirs(self, name)  # type: ignore
        return run_tests(tests, Limits(usual))
    changed = ModuleType(ours)
    exec(code, vars(changed))
    put_in_place(sys.modules[ours], changed)
    config = tests[0].config
    config.pluginmanager.register(Limits(usual))
    for test, following in zip(tests, [*tests[1:], None], strict=True):
        config.hook.pytest_runtest_protocol(item=test, nextitem=following)
    return 0


def put_in_place(old: Any, new: Any) -> None:
    """Gives the functions of a module or class the code of another's, so that whoever refers to them has the new ones."""
    for name, theirs in vars(new).items():
        ours = vars(old).get(name)
        if isinstance(theirs, type) and theirs.__module__ == new.__name__ and isinstance(new, ModuleType):
            put_in_place(ours, theirs)
            continue
        a, b = (inspect.unwrap(getattr(x, "__func__", None) or getattr(x, "fget", None) or x) for x in (ours, theirs))
        if isinstance(b, FunctionType) and a is not b and isinstance(a, FunctionType):
            a.__code__, a.__defaults__, a.__kwdefaults__ = b.__code__, b.__defaults__, b.__kwdefaults__


def forked(work: Callable[[], int], log: Path) -> int:
    """The id of a process that does this work, and says in a file what it says."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 3
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.dup2(file.fileno(), SAYS)
        code = work()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def side_by_side(
    jobs: Iterator[tuple[Any, Callable[[], int]]], processes: int, folder: Path
) -> Iterator[tuple[Any, int, str]]:
    """Runs jobs, so many at a time, and tells of each that has ended: its key, wait status and what it said."""
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
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--only", default="", help="mutants whose text contains this")
    parser.add_argument("--list", action="store_true", help="only tell the mutants")
    parser.add_argument(
        "--record", metavar="NAME", help="run nothing; write the scores to benchmarks/results/NAME.json"
    )
    asked = parser.parse_args()
    began = time.monotonic()
    every = {
        module: [
            m for path in sorted((PACKAGE / module).glob("*.py") or []) or [PACKAGE / module] for m in mutants(path)
        ]
        for module in TESTS
    }
    if asked.list:
        for m in (m for some in every.values() for m in some if asked.only in m.id):
            print(f"{m.lines.start:5} {m.id}")
        return
    known = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    if asked.record:
        tell(every, {r["id"]: r["end"] for r in known}, asked.record)
        return
    done = {r["id"] for r in known}
    todo = [(module, m) for module, some in every.items() for m in some if m.id not in done and asked.only in m.id]
    random.Random(0).shuffle(todo)  # so that those run in a limited time are a fair sample
    with tempfile.TemporaryDirectory() as name:
        run(todo, asked.processes, began + asked.seconds, Path(name), asked.out)


def run(todo: list[tuple[str, Mutant]], processes: int, until: float, folder: Path, out: Path) -> None:
    files = {file for module, _ in todo for file in TESTS[module]}
    paths = sorted({m.path for _, m in todo})
    usual: dict[str, float] = {}
    ran: dict[tuple[str, int], set[str]] = {}
    collecting: set[tuple[str, int]] = set()
    reports = {file: folder / f"{i}.json" for i, file in enumerate(files)}
    tests = ((file, partial(traced, file, paths, report)) for file, report in reports.items())
    for file, status, said in side_by_side(tests, processes, folder):
        if status != 0:
            sys.exit(f"{file} does not pass by itself:\n{said}")
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
                for test, so_far in zip(quickest, accumulate(map(usual.get, quickest)), strict=True)
                if so_far <= LONGEST
            ]
            tests: list[Any] = within or quickest[:1]
            if m.narrow and not any((name, line) in collecting for line in m.lines):
                tests = [items[test] for test in tests]
            yield m, partial(mutated, m, tests, usual) if chosen else lambda: 0

    def work(items: dict[str, Any]) -> None:
        gc.freeze()
        with out.open("a") as file:
            for m, status, said in side_by_side(jobs(items), processes, folder):
                late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
                if os.WIFEXITED(status) and os.WEXITSTATUS(status) > 2:
                    sys.exit(f"The mutant could not be run: {m.id}\n{said}")
                end = "survived" if status == 0 else "timed out" if late else "killed"
                row = {"id": m.id, "line": m.lines.start, "end": end, "by": said[-300:] if end == "killed" else ""}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()

    run_tests(sorted(files), Session(work))


def tell(every: dict[str, list[Mutant]], ends: dict[str, str], name: str) -> None:
    """Record the score of each module: of the mutants that were run and are not equivalent, the share that was noticed."""
    from benchmarks.record import Table, record

    listed = [text for group in tomllib.loads(EQUIVALENT.read_text())["same"] for text in group["mutants"]]
    wrong = {*listed} - {m.id for some in every.values() for m in some if ends.get(m.id, "survived") == "survived"}
    if wrong:
        sys.exit(f"{EQUIVALENT.name} lists mutants that do not exist or that a test notices: {sorted(wrong)}")
    rows, survived = [], []
    for module, some in every.items():
        count = Counter("equivalent" if m.id in listed else ends[m.id] for m in some if m.id in ends)
        noticed, tried = count["killed"] + count["timed out"], count.total()
        score = f"{noticed / (tried - count['equivalent']):.1%}"
        rows.append(
            [module, len(some), tried, noticed, count["timed out"], count["equivalent"], count["survived"], score]
        )
        survived += [[m.id] for m in some if ends.get(m.id) == "survived" and m.id not in listed]
    columns = ["module", "mutants", "run", "noticed", "of them too slow", "equivalent", "survived", "score"]
    notes = [f"tests of at most {LONGEST:.0f} seconds for a mutant", "where not all were run, a random sample"]
    record(name, {"scores": Table(columns, rows), "survived": Table(["mutant"], survived)}, notes)


if __name__ == "__main__":
    main()
