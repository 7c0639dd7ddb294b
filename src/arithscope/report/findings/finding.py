"""The form of a finding: what the numbers say, in words, and the numbers themselves by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arithscope.stats.intervals import Mean

Cell = Mean | float | int | str


@dataclass(frozen=True)
class Finding:
    """says: a sentence or a few. numbers: for a small table, by name and then by operator (`mean` is the average); lines
    without any are left out."""

    says: str
    numbers: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
