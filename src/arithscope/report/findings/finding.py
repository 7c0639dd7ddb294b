"""Findings, and their registry. The function that composes one registers itself for a figure, with the results it needs:

@finding("probe-accuracy", Probe)
def probe_accuracy(probe: Probe) -> Finding: ...
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TypeVar

import pandas as pd

from arithscope.figures.words import WHOLE_NUMBERS, Words
from arithscope.report import findings, formatting
from arithscope.stats.intervals import Mean

Value = Mean | float | int | str
Numbers = Mapping[str, Mapping[str, Value]]
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """Sentences, and the numbers behind them: by name, then by operator (`mean` is the average).

    Attributes:
        wording: The sentences as composed, which may have words of `Words` in braces.
        named: The numbers as composed; their names may have such words, too.
        words: The words of the run.
    """

    wording: str
    named: Numbers = field(default_factory=dict)
    words: Words = WHOLE_NUMBERS

    @property
    def text(self) -> str:
        return self.words.fill(self.wording)

    @property
    def numbers(self) -> Numbers:
        return {self.words.fill(name): values for name, values in self.named.items()}

    def in_words(self, words: Words) -> "Finding":
        return replace(self, words=words)


Compose = TypeVar("Compose", bound=Callable[..., Finding])
_FINDINGS: dict[str, tuple[tuple[type, ...], Callable[..., Finding]]] = {}


def finding(figure: str, *results: type) -> Callable[[Compose], Compose]:
    """Register the decorated function for a figure; it takes one result of each class, in this order."""

    def register(compose: Compose) -> Compose:
        _FINDINGS[figure] = results, compose
        return compose

    return register


def all_findings() -> dict[str, tuple[tuple[type, ...], Callable[..., Finding]]]:
    """For each figure with a finding, by name: the result classes needed, and the function that composes it."""
    for module in pkgutil.iter_modules(findings.__path__):
        import_module(f"{findings.__name__}.{module.name}")
    return dict(_FINDINGS)


def worded(name: str, numbers: Numbers | None = None, /, **values: Any) -> Finding:
    """A finding in the words of templates/findings.txt."""
    return Finding(formatting.worded("findings", name, **values), numbers or {})


def per_operator(table: pd.DataFrame, value: Callable[[Any], T]) -> dict[str, T]:
    """A value computed from the rows of each operator."""
    return {str(operator): value(rows) for operator, rows in table.groupby("operator", sort=False)}
