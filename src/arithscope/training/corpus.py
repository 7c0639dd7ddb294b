"""Tasks about numbers beside arithmetic: texts from which a model learns what digits, order and parity are.

A task is a function that draws texts. A text is a list of parts: words that are the same in every text, drawn words, and
drawn numbers. To add a task, write such a function and add it to TASKS.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = ("ones", "tens", "hundreds")
STEPS = (1, 2, 3, 5, 10, 20, 50, 100)  # of counting
NEAR = 30  # half of the numbers to compare are at most this far apart
DIVISORS = 10  # the largest of `remainder`


class Drawn(NamedTuple):
    """Drawn words: `words[which]` for each text."""

    words: tuple[str, ...]
    which: Tensor


Part = str | Drawn | Tensor  # a fixed word, drawn words, or drawn numbers


class Texts(NamedTuple):
    """Texts of one kind. A model learns to complete them from part `first` on."""

    parts: list[Part]
    first: int


class Draw:
    """Draws for `size` texts about the numbers 0…limit−1, of at most three digits; the same generator state gives the same
    texts."""

    def __init__(self, size: int, limit: int, random: torch.Generator):
        self.size, self.limit, self._random = size, min(limit, 10 ** len(PLACES)), random

    def integers(self, low: int, high: int) -> Tensor:
        """One integer of low…high−1 for each text."""
        return torch.randint(low, high, (self.size,), generator=self._random, device=self._random.device)

    def number(self) -> Tensor:
        return self.integers(0, self.limit)

    def below(self, bound: Tensor) -> Tensor:
        """One integer of 0…bound−1 for each text, with a bound of its own."""
        return (self._uniform().double() * bound).long()

    def choice(self, values: tuple[int, ...]) -> Tensor:
        """One of the values for each text. A look-up table would be copied to the device anew for every batch."""
        chosen = self.integers(0, len(values))
        return torch.stack([(chosen == i) * value for i, value in enumerate(values)]).sum(0)

    def share(self, share: float) -> Tensor:
        """True for this share of the texts."""
        return self._uniform() < share

    def _uniform(self) -> Tensor:
        return torch.rand(self.size, generator=self._random, device=self._random.device)

    @property
    def places(self) -> int:
        """Digits of the largest number."""
        return len(str(self.limit - 1))


def _digit(numbers: Tensor, place: int | Tensor) -> Drawn:
    """A digit as a word; place 0 is the ones."""
    return Drawn(DIGITS, numbers // 10**place % 10)


def spell(draw: Draw) -> Texts:
    """spell 472 : four seven two"""
    x = draw.number()
    return Texts(["spell", x, ":", *(_digit(x, place) for place in reversed(range(draw.places)))], 3)


def read(draw: Draw) -> Texts:
    """read four seven two : 472"""
    x = draw.number()
    return Texts(["read", *(_digit(x, place) for place in reversed(range(draw.places))), ":", x], draw.places + 2)


def count(draw: Draw) -> Texts:
    """count 15 18 21 24 27, or downwards"""
    steps = tuple(step for step in STEPS if 4 * step < draw.limit)
    step = draw.choice(steps)
    low = draw.below(draw.limit - 4 * step)
    down = draw.share(0.5)
    return Texts(["count", *(low + torch.where(down, 4 - i, i) * step for i in range(5))], 3)


def compare(draw: Draw) -> Texts:
    """compare 472 468 : more"""
    x, near = draw.number(), draw.share(0.5)
    y = torch.where(near, (x + draw.integers(-NEAR, NEAR + 1)).clamp(0, draw.limit - 1), draw.number())
    return Texts(["compare", x, y, ":", Drawn(("less", "same", "more"), torch.sign(x - y) + 1)], 4)


def parity(draw: Draw) -> Texts:
    """parity 472 : even"""
    x = draw.number()
    return Texts(["parity", x, ":", Drawn(("even", "odd"), x % 2)], 3)


def rounding(draw: Draw) -> Texts:
    """round 472 tens : 470"""
    place = draw.integers(1, draw.places)
    unit = 10**place
    x = draw.number()
    rounded = (x + unit // 2) // unit * unit
    rounded = torch.where(rounded < draw.limit, rounded, rounded - unit)  # down, where there is no number above
    return Texts(["round", x, Drawn(PLACES, place), ":", rounded], 4)


def place(draw: Draw) -> Texts:
    """place 472 tens : seven"""
    x, at = draw.number(), draw.integers(0, draw.places)
    return Texts(["place", x, Drawn(PLACES, at), ":", _digit(x, at)], 4)


def remainder(draw: Draw) -> Texts:
    """remainder 472 5 : two"""
    x, divisor = draw.number(), draw.integers(2, DIVISORS + 1)
    return Texts(["remainder", x, divisor, ":", Drawn(DIGITS, x % divisor)], 4)


TASKS: dict[str, Callable[[Draw], Texts]] = {
    "spell": spell,
    "read": read,
    "count": count,
    "compare": compare,
    "parity": parity,
    "round": rounding,
    "place": place,
    "remainder": remainder,
}
WORDS = (*TASKS, ":", *DIGITS, *PLACES, "less", "same", "more", "even", "odd")
