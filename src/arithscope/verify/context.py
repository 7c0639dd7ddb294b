"""The context in which `verify` runs a stage again: a sample of its pieces, with full passes, compared on the way."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.common.result import Result
from arithscope.experiments.common.schema import Table
from arithscope.experiments.common.stage import Context
from arithscope.models.engine.full_pass import FullPass
from arithscope.prompts import random_source
from arithscope.verify.compare import Tally
from arithscope.verify.tolerances import Situation, array_extra, parts_of

V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class VerifyContext(Context):
    """A stage's context under verification.

    Attributes:
        stored: The stored result.
        tally: Where comparisons are counted.
        engine: The engine of full passes that the model uses.
        sample_seed: Seed that chooses what is recomputed.
    """

    stored: Result
    tally: Tally
    engine: FullPass
    sample_seed: int = 0

    @property
    def complete(self) -> bool:
        return False

    def sample(self, n: int, size: int, *names: str | int) -> NDArray[np.int64]:
        return np.sort(random_source(self.sample_seed, "verify", *names).permutation(n)[:size])

    def confirmed(self, name: str, measured: V, rows: Any = ..., **hints: Any) -> V:
        stored, kind = getattr(self.stored, name), type(self.stored)
        if isinstance(measured, pd.DataFrame):
            declared = kind.schema()[name]
            assert isinstance(declared, Table)
            if len(measured):
                given = Situation(self.tally.noise, self.engine.close_calls, hints)
                for part in parts_of(kind, name, measured, given):
                    self.tally.rows(name, stored, part.rows, declared.keys, part.noise, part.extra)
                self.tally.recomputed.append(f"{len(measured):,} of {len(stored):,} rows of {name}")
        else:
            now, whole = np.asarray(measured), np.asarray(stored)
            noise = self.tally.noise
            self.tally.close(name, whole[rows], now, noise, extra=array_extra(kind, name, now, noise))
            self.tally.recomputed.append(f"{now.size:,} of {whole.size:,} numbers of {name}")
        return stored
