"""Mutants of a module: small changes of its syntax tree.

A mutant replaces a comparison, operator, constant, function or argument, or removes a statement, argument or returned value.
Annotations, docstrings, decorators and error messages are never changed. `tools/mutation.py` runs the tests on every mutant.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "arithscope"

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
SYMMETRIC = {"min", "max", "minimum", "maximum", "hypot", "isinstance"}  # the last one raises if arguments are swapped


@dataclass(frozen=True)
class Mutant:
    id: str  # module, function, what is changed: does not depend on line numbers
    path: Path
    lines: range
    narrow: bool  # whether tests that run the lines suffice: not at module level, nor where results are cached between tests
    change: Callable[[], None]  # changes the module's tree in place
    tree: ast.Module


def mutants(path: Path) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(PACKAGE).as_posix()
    found, seen = [], Counter[str]()
    for above, field, index, node in _places((tree,)):
        around = [a for a in above if isinstance(a, ast.FunctionDef | ast.ClassDef)]
        statement: Any = next(a for a in reversed((*above, node)) if isinstance(a, ast.stmt))
        part: Any = next((a for a in (node, *above[::-1]) if hasattr(a, "lineno")), statement)
        part = part if hasattr(statement, "body") else statement  # an expression may run over several lines
        # The id shows the smallest node around the change whose text is long enough to mean something.
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
            cached = any("cache" in ast.unparse(d) for a in around for d in a.decorator_list)
            narrow = bool(around) and isinstance(around[-1], ast.FunctionDef) and not cached
            lines = range(part.lineno, part.end_lineno + 1)
            found.append(Mutant(text + number, path, lines, narrow, partial(setattr, above[-1], field, changed), tree))
    return found


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.operator | ast.boolop | ast.cmpop):
        return ""
    line = " ".join(ast.unparse(node).split())
    return line if len(line) <= 240 else f"{line[:120]}…{line[-119:]}"


def _places(above: tuple[ast.AST, ...]) -> Iterator[tuple[tuple[ast.AST, ...], str, int | None, ast.AST]]:
    """Every node that may change, after its ancestors and the field and index at which its parent holds it."""
    for field, value in ast.iter_fields(above[-1]):
        if field in ("annotation", "returns", "decorator_list", "bases", "ctx", "exc", "targets", "names"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_excluded(child):
                yield above, field, index, child
                yield from _places((*above, child))


def _is_excluded(node: ast.AST) -> bool:
    """Docstrings, imports, type aliases (named like classes), `__repr__`, and zip's `strict=True`, which makes no difference
    to a correct program."""
    if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
        return target.id[0].isupper() and not target.id.isupper()
    return isinstance(node, ast.FunctionDef) and node.name == "__repr__"


def _variants(node: ast.AST, above: Sequence[ast.AST]) -> Iterator[Any]:
    """Replacements of a node, except those that could only raise a NameError or TypeError."""
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
