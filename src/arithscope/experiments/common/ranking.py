"""Rankings of components by their effects: by which statistic, with which order among equals, and how well two agree."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from arithscope.settings import MEAN, MEAN_ABS
from arithscope.stats.intervals import Floats

RECALLED = (1, 2, 5, 10, 20)  # percent of each layer's neurons, for the recall of the top neurons
AGREEMENT = ("rank_correlation", *(f"recall_{percent}" for percent in RECALLED))  # what `rank_agreement` returns


def rounded(values: "pd.Series[float]") -> "pd.Series[float]":
    """Values to rank by, without differences that may be rounding: in steps of a millionth of the largest.

    Components of no effect at all thus tie on every machine, and their order is decided by a fixed rule.
    """
    step = 1e-6 * float(values.abs().max())
    return (values / step).round() if step > 0 else values


def rank_statistic(effects: Float[np.ndarray, "*neurons prompts"], ranking: str) -> Float[np.ndarray, "*neurons"]:
    """The statistic of effects over prompts by which neurons are ranked.

    Idea: a neuron matters if its effects are far from zero, on whichever prompts and with whichever sign.

        mean        mean of the effects, the paper's: effects of opposite signs cancel
        mean_abs    mean of their absolute values: at least |mean|
        mean+std    mean plus standard deviation
    """
    if ranking == MEAN_ABS:
        return np.abs(effects).mean(-1, dtype=np.float64)
    mean = effects.mean(-1, dtype=np.float64)
    return mean if ranking == MEAN else mean + effects.std(-1, dtype=np.float64)


def rank_agreement(a: Floats, b: Floats, percents: Sequence[float] = RECALLED) -> list[float]:
    """Agreement of two rankings, given by values [layers, neurons]: Spearman's rank correlation, then the recalls.

    The recall at a percentage is the share of each layer's top neurons by `a` that are also among its top neurons by `b`.
    """
    ranks = [pd.Series(x.ravel()).rank() for x in (a, b)]
    places = [best_first(x).argsort(1) for x in (a, b)]  # rank of each neuron in its layer
    sizes = [percent_of(a.shape[1], percent) for percent in percents]
    shared = [float(((places[0] < k) & (places[1] < k)).sum(1).mean() / k) for k in sizes]
    return [float(ranks[0].corr(ranks[1])), *shared]


def percent_of(size: int, percent: float) -> int:
    """Number of neurons in `percent` of a layer, at least one."""
    return max(1, round(size * percent / 100))


def best_first(values: Floats) -> NDArray[np.int64]:
    """Neurons of each layer by descending value [layers, neurons]; ties in the order of neurons."""
    return np.argsort(-values, axis=1, kind="stable")
