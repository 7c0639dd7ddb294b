"""Compares stored numbers with recomputed ones: how far apart they are, how far they may be, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from arithscope.experiments.common.result import Result
from arithscope.pipeline.store import plain

Column: TypeAlias = "pd.Series[Any]"
Name = Callable[[int], str]  # names the i-th number or row


@dataclass(frozen=True)
class Noise:
    """How far two computations of the same number may be apart: relative · |number| + absolute + extra."""

    name: str  # shown in a verdict
    relative: float
    absolute: float
    tie: float = 0.0  # tokens may swap if their logits are closer than this share of (largest − mean logit)
    prompt: float = 0.0  # of an effect on one prompt, due to rounded activations; for a mean over n prompts, 1/√n of it
    extra: ArrayLike = 0.0  # of each number or row

    def times(self, factor: float) -> "Noise":
        return replace(self, relative=self.relative * factor, absolute=self.absolute * factor)


EXACT = Noise("rounding", 1e-9, 1e-12)
# In single precision logits agree to about 1e-6, and numbers computed from them (ratios of probabilities, shares of a span)
# to a hundred times that. In half precision every activation is rounded to two or three digits.
_NOISE = {
    "float64": Noise("float64 noise", 1e-6, 1e-8, 1e-9),
    "float32": Noise("float32 noise", 1e-3, 2e-5, 1e-4),
    "float16": Noise("float16 noise", 5e-2, 1e-2, 1e-2, 0.05),
    "bfloat16": Noise("bfloat16 noise", 1e-1, 3e-2, 5e-2, 0.4),
}


def noise_of(dtype: str) -> Noise:
    """Noise of a model that computes in this dtype."""
    return _NOISE.get(dtype, _NOISE["bfloat16"])


@dataclass
class Tally:
    """What was compared: how many numbers, the largest difference relative to what is allowed, and those beyond it."""

    noise: Noise
    numbers: int = 0
    recomputed: list[str] = field(default_factory=list)  # what was recomputed, in words
    differences: list[str] = field(default_factory=list)
    largest: float = 0.0
    allowed: float = EXACT.absolute
    reason: str = EXACT.name

    def same(self, what: str, stored: Any, now: Any) -> None:
        """Compare plain values (numbers, texts, lists and dicts), which must be equal; floats up to the last digits."""
        stored, now = plain(stored), plain(now)
        self.numbers += 1
        if not _alike(stored, now):
            self._differs(what, stored, now)

    def close(self, what: str, stored: ArrayLike, now: ArrayLike, noise: Noise, name: Name | None = None) -> None:
        """Compare arrays of numbers, which may differ by `noise`."""
        a, b = (np.asarray(x, dtype=np.float64) for x in (stored, now))
        if a.shape != b.shape:
            self._differs(f"the shape of {what}", a.shape, b.shape)
            return
        a, b, more = (x.ravel() for x in (a, b, np.broadcast_to(np.asarray(noise.extra, dtype=np.float64), a.shape)))
        self.numbers += len(a)
        if not len(a):
            return
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(alike, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
            allowed = noise.relative * np.nan_to_num(np.abs(a), posinf=0.0) + noise.absolute + more
            ratio = np.where(apart == 0, 0.0, apart / np.maximum(allowed, 1e-300))
        i = int(ratio.argmax())
        if ratio[i] > self.largest / self.allowed or self.largest == 0:
            self.largest, self.allowed, self.reason = float(apart[i]), float(allowed[i]), noise.name
        if ratio[i] > 1:
            self._differs(what + (f" of {name(i)}" if name else ""), a[i], b[i], int((ratio > 1).sum()) - 1)

    def rows(self, what: str, stored: pd.DataFrame, now: pd.DataFrame, by: Sequence[str], noise: Noise) -> None:
        """Compare recomputed rows with the stored rows of the same keys, the columns `by`."""
        keys, now = list(by), now.reset_index(drop=True)

        def name(row: int) -> str:
            return ", ".join(f"{key} {now[key].iloc[row]}" for key in keys)

        matching = now[keys].merge(stored.drop_duplicates(keys), how="left", on=keys, indicator="_merge")
        if len(missing := np.flatnonzero(matching["_merge"] != "both")):
            self._differs(f"{what} of {name(int(missing[0]))}", "no such row", "a row")
            return
        for column in (c for c in now.columns if c not in keys):
            self._column(f"{what}, {column}", matching[column], now[column], noise, name)

    def table(self, what: str, stored: pd.DataFrame, now: pd.DataFrame, noise: Noise = EXACT) -> None:
        """Compare a table that was recomputed completely: the same rows in the same order."""
        stored, now = stored.reset_index(drop=True), now.reset_index(drop=True)
        self.same(f"the columns of {what}", list(stored.columns), list(now.columns))
        if len(stored) != len(now):
            self._differs(f"the number of rows of {what}", len(stored), len(now))
            return
        for column in (c for c in now.columns if c in stored):
            self._column(f"{what}, {column}", stored[column], now[column], noise, lambda i: f"row {i}")

    def result(self, stored: Result, now: Result, noise: Noise = EXACT) -> None:
        """Compare the derived fields of a result. Fields that `confirmed` has compared are the stored objects themselves."""
        for name in stored.schema():
            a, b = getattr(stored, name), getattr(now, name)
            if isinstance(a, np.ndarray):
                if not np.may_share_memory(a, b):
                    self.close(name, a, b, noise)
            elif isinstance(a, pd.DataFrame):
                if a is not b:
                    self.table(name, a, b, noise)
            else:
                self.same(name, a, b)

    def _column(self, what: str, stored: Column, now: Column, noise: Noise, name: Name) -> None:
        if not len(now):
            return
        if now.dtype.kind == "f":
            self.close(what, pd.to_numeric(stored, errors="coerce"), now, noise, name)
            return
        pairs = list(zip(_items(stored), _items(now), strict=True))
        self.numbers += len(pairs)
        if wrong := [i for i, (a, b) in enumerate(pairs) if not _alike(a, b)]:
            self._differs(f"{what} of {name(wrong[0])}", *pairs[wrong[0]], len(wrong) - 1)

    def _differs(self, what: str, stored: Any, now: Any, others: int = 0) -> None:
        more = f", and {others} more" if others else ""
        self.differences.append(f"{what} (stored {_shown(stored)}, now {_shown(now)}{more})")


def counted(n: int, what: str) -> str:
    """`1 row`, `1,200 rows`."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _items(column: Column) -> list[Any]:
    return [x.tolist() if isinstance(x, np.ndarray | np.generic) else x for x in column]


def _alike(a: Any, b: Any) -> bool:
    """Whether values are equal, floats up to the last digits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.isclose(a, b, EXACT.relative, EXACT.absolute, equal_nan=True))
    return bool(a == b)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"
