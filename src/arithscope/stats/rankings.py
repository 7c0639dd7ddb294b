"""Rankings of neurons, and how well two of them agree."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.stats.intervals import Floats


def rank_agreement(a: Floats, b: Floats, percents: Sequence[float]) -> tuple[float, list[float]]:
    """Spearman's rank correlation of two rankings, each given by values [layers, neurons], and for each percentage the share of
    each layer's top neurons by `a` that are also among its top neurons by `b`."""
    ranks = [pd.Series(x.ravel()).rank() for x in (a, b)]
    places = [best_first(x).argsort(1) for x in (a, b)]  # rank of each neuron in its layer
    sizes = [share_of(a.shape[1], percent) for percent in percents]
    shared = [float(((places[0] < k) & (places[1] < k)).sum(1).mean() / k) for k in sizes]
    return float(ranks[0].corr(ranks[1])), shared


def share_of(size: int, percent: float) -> int:
    """Number of neurons in a share of a layer, at least one."""
    return max(1, round(size * percent / 100))


def best_first(values: Floats) -> NDArray[np.int64]:
    """Neurons of each layer of [layers, neurons] by falling value; ties in the order of neurons."""
    return np.argsort(-values, axis=1, kind="stable")
