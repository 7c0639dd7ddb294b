"""Results about made-up strata, for figures and findings that read only the stratum."""

from __future__ import annotations

import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.prompts import Layout, Stratum, whole_numbers

SUMS = Stratum((10, 99), (10, 99), (100, 198), Layout((1, 0), (1, 0), (2, 1, 0)))  # 45+78=123, a token a digit


def accuracy_of(stratum: Stratum) -> Accuracy:
    """An accuracy without prompts."""
    return Accuracy(pd.DataFrame(), pd.DataFrame(), stratum.as_json())


OF_WHOLE_NUMBERS = accuracy_of(whole_numbers(300, 1000))
