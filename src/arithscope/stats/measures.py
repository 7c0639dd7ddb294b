"""Measures: pure functions of tensors and arrays, with no model behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from arithscope.utils.gpu import runs_kernels
from arithscope.utils.threads import workers


def log_probability(
    logits: Float[Tensor, "*variants batch vocabulary"], tokens: Int[Tensor, " batch"]
) -> Float[Tensor, "*variants batch"]:
    """Log-probability of one token per prompt. At most 0; invariant to adding a constant to all logits."""
    sums = _fused_sums(logits)
    return _at(logits.log_softmax(-1), tokens) if sums is None else _at(logits, tokens) - sums[0]


def _fused_sums(logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "2 *rows"] | None:
    """logsumexp and mean over the vocabulary, in one pass over it, where there is a kernel for that."""
    if logits.dtype != torch.float32 or logits.requires_grad or not runs_kernels(logits.device):
        return None
    from arithscope.stats.triton_sums import sums

    return sums(logits)


def _at(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.gather(-1, tokens.expand(logits.shape[:-1])[..., None])[..., 0]


EFFECTS = ("probability", "log_ratio", "logit")
LARGEST = 80.0  # of a log-ratio whose exponential is taken: e⁸⁰ and a sum of many such still fit into float32


def effects(
    before: Float[Tensor, "batch vocabulary"],
    after: Float[Tensor, "*variants batch vocabulary"],
    answer: Int[Tensor, " batch"],
    counterfactual: Int[Tensor, " batch"],
) -> dict[str, Float[Tensor, "*variants batch"]]:
    """How far an intervention moves the model from its answer r to the counterfactual's answer r′, in three ways.

    probability: half of the relative gain of r′ plus half of the relative loss of r, with P before and P* after,

        ½ · [ (P*(r′) − P(r′)) / P(r′)  +  (P(r) − P*(r)) / P*(r) ]

    At least −1, and unbounded above. Computed from log-probabilities, so that it stays finite where a probability
    underflows: P*/P = exp(log P* − log P), cut off at e⁸⁰.

    log_ratio: the same question on a scale that no single prompt can dominate,

        ½ · [ log P*(r′)/P(r′)  +  log P(r)/P*(r) ]

    Unbounded on both sides; changes its sign when before and after are swapped. Near 0 it equals the former.

    logit: the first formula on logits z, centred over the vocabulary, instead of probabilities. A logit may be negative,
    so it is divided by its size, and a rise of r′ counts as a rise:

        ½ · [ (z*(r′) − z(r′)) / |z(r′)|  +  (z(r) − z*(r)) / |z*(r)| ]

    All are 0 where nothing changes, and invariant to adding constants to the logits.
    """
    return effects_between(*(landmarks(logits, answer, counterfactual) for logits in (before, after)))


def landmarks(
    logits: Float[Tensor, "*variants batch vocabulary"],
    answer: Int[Tensor, " batch"],
    counterfactual: Int[Tensor, " batch"],
) -> Float[Tensor, "3 *variants batch"]:
    """The three numbers that every effect is made of: the logits of r and of r′, and the logsumexp of all, centred over the
    vocabulary. Invariant to adding a constant to the logits."""
    r, r2, sums = _at(logits, answer), _at(logits, counterfactual), _fused_sums(logits)
    # Without a kernel: z − log P is the logsumexp, and log_softmax is fewer passes over the vocabulary.
    norm, mean = (r - log_probability(logits, answer), logits.mean(-1)) if sums is None else sums
    return torch.stack([r, r2, norm]) - mean


def effects_between(
    before: Float[Tensor, "3 batch"], after: Float[Tensor, "3 *variants batch"]
) -> dict[str, Float[Tensor, "*variants batch"]]:
    """`effects` from landmarks: those of logits, or estimates of them."""
    (r, r2, norm), (r_after, r2_after, norm_after) = before, after
    rise, fall, swell = r2_after - r2, r - r_after, norm_after - norm
    gain, loss = rise - swell, fall + swell  # of log-probability
    return {
        "probability": 0.5 * (torch.expm1(gain.clamp(max=LARGEST)) + torch.expm1(loss.clamp(max=LARGEST))),
        "log_ratio": 0.5 * (gain + loss),
        "logit": 0.5 * (rise / r2.abs() + fall / r_after.abs()),
    }


def effect(
    before: Float[Tensor, "batch vocabulary"],
    after: Float[Tensor, "*variants batch vocabulary"],
    answer: Int[Tensor, " batch"],
    counterfactual: Int[Tensor, " batch"],
) -> Float[Tensor, "*variants batch"]:
    """The paper's effect, Eq. 1: `effects` by probability."""
    return effects(before, after, answer, counterfactual)["probability"]


def normalized_logit(
    logits: Float[Tensor, "*variants batch vocabulary"], answer: Int[Tensor, " batch"], *, centre: bool = True
) -> Float[Tensor, "*variants batch"]:
    """NL, a lenient stand-in for accuracy: the answer's logit as a share of the largest one.

        z(r) / max z

    1 exactly where the answer is the model's choice, else below 1. The ratio is not invariant to adding a constant to
    all logits, so they are centred over the vocabulary first, which also makes the largest one positive; `centre=False`
    takes them as they come. Invariant to scaling.
    """
    mean = logits.mean(-1) if centre else 0.0
    return (_at(logits, answer) - mean) / (logits.amax(-1) - mean)


SMALLEST_SPAN = 1e-3  # of NL between the empty circuit and the model; with less there is nothing to explain


def faithfulness(
    circuit: NDArray[np.float64],
    empty: NDArray[np.float64],
    model: NDArray[np.float64],
    random: np.random.Generator,
    *,
    ratio_of_means: bool = False,
) -> list[Mean]:
    """How much of the way from nothing to the whole model a circuit goes, in terms of NL.

        (NL(c) − NL(∅)) / (NL(M) − NL(∅))

    for circuits [circuits, prompts] that are compared on the same prompts, with NL(∅) and NL(M) [prompts]. Per prompt,
    then averaged; prompts where the denominator is below SMALLEST_SPAN are left out, and `n` counts the others. With
    `ratio_of_means` the averages are taken first, over all prompts. 0 for the empty circuit and 1 for the whole model;
    at most 1 on prompts that the model gets right, as NL(M) is the largest possible there. Negative for a circuit worse
    than none. Invariant to shifting and scaling NL.
    """
    part, whole = circuit - empty, model - empty
    if ratio_of_means:
        return bootstrap_ratios(part, np.broadcast_to(whole, part.shape), random)
    kept = np.abs(whole) >= SMALLEST_SPAN
    ratios = part[:, kept] / whole[kept]
    return bootstrap_means(ratios, random)


@dataclass(frozen=True)
class Mean:
    """A mean with its bootstrap interval and the number of values behind it; NaN where there are none."""

    value: float
    low: float
    high: float
    n: int


RESAMPLES = 1000
BOOTSTRAP_ROWS = 1024  # that are resampled together
LARGE = 8192  # values
LEVEL = 0.95


def resampled_means(values: ArrayLike, random: np.random.Generator) -> NDArray[np.float64]:
    """Means of samples drawn, with replacement, from the values themselves.

    A resample is fully described by how often each distinct value occurs in it, which is multinomial: for values with
    few distinct ones (right or wrong, say) that is as exact as drawing them one by one and costs next to nothing. Very many
    values are first moved to the mean of their neighbours, which leaves their mean as it is and hardly narrows the spread.
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) > LARGE:
        groups = np.array_split(np.sort(x), LARGE // 8)
        x = np.repeat([group.mean() for group in groups], [len(group) for group in groups])
    distinct, counts = np.unique(x, return_counts=True)
    if len(distinct) * 8 <= len(x):
        return random.multinomial(len(x), counts / len(x), size=RESAMPLES) @ distinct / len(x)
    draws = (random.integers(0, len(x), len(x), dtype=np.uint32) for _ in range(RESAMPLES))
    return np.array([x[rows].mean() for rows in draws])


def bootstrap_mean(values: ArrayLike, random: np.random.Generator) -> Mean:
    """A mean and its percentile bootstrap interval."""
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) == 0:
        return Mean(np.nan, np.nan, np.nan, 0)
    low, high = np.quantile(resampled_means(x, random), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Mean(float(x.mean()), float(low), float(high), len(x))


def bootstrap_ratios(above: NDArray[np.float64], below: NDArray[np.float64], random: np.random.Generator) -> list[Mean]:
    """For each row of [rows, values], mean above ÷ mean below, with its percentile bootstrap interval.

    A resample is how often each value is drawn, and the same resamples serve all rows: they are measured on the same
    prompts, so their differences are not blurred.
    """
    return _as_means(bootstrap_intervals(above, random, below), above.shape[1])


def _as_means(intervals: NDArray[np.float64], n: int) -> list[Mean]:
    return [Mean(value, low, high, n) for value, low, high in intervals.T.tolist()]


def bootstrap_intervals(
    above: NDArray[np.floating[Any]], random: np.random.Generator, below: NDArray[np.floating[Any]] | None = None
) -> NDArray[np.float64]:
    """The same, for millions of rows, as an array [value, low and high; rows]; without `below`, of plain means."""
    rows, n = above.shape
    if n == 0:
        return np.full((3, rows), np.nan)
    counts = random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T.astype(np.float64)
    at = np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2]) * (RESAMPLES - 1)  # places in sorted order, with a fraction
    under = at.astype(np.int64)
    found = np.empty((3, rows))

    def some(start: int) -> None:  # a resample of every row at once would be large
        part = slice(start, start + BOOTSTRAP_ROWS)
        a = above[part].astype(np.float64)
        b = np.ones((1, n)) if below is None else below[part].astype(np.float64)
        drawn = (a @ counts) / (b @ counts)
        undefined = np.isnan(drawn).any(1)
        drawn.partition((*under, *(under + 1)), axis=1)
        drawn[undefined] = np.nan
        found[0, part] = a.mean(1) / b.mean(1)
        found[1:, part] = (drawn[:, under] + (at - under) * (drawn[:, under + 1] - drawn[:, under])).T

    with workers() as pool:
        list(pool.map(some, range(0, rows, BOOTSTRAP_ROWS)))
    return found


def bootstrap_means(values: NDArray[np.float64], random: np.random.Generator) -> list[Mean]:
    """The mean of each row of [rows, values] with its interval."""
    return _as_means(bootstrap_intervals(values, random), values.shape[1])


def average(means: Sequence[Mean]) -> Mean:
    """The mean of means of independent samples, each weighing the same; those without a value are left out.

    Distances to either end of the intervals add up like independent errors: as the root of the sum of squares.
    """
    kept = [m for m in means if not np.isnan(m.value)]
    if not kept:
        return Mean(np.nan, np.nan, np.nan, 0)
    value = float(np.mean([m.value for m in kept]))
    below, above = (
        float(np.sqrt(np.sum(np.square(d)))) / len(kept)
        for d in ([m.value - m.low for m in kept], [m.high - m.value for m in kept])
    )
    return Mean(value, value - below, value + above, sum(m.n for m in kept))


def difference(a: Mean, b: Mean) -> Mean:
    """a − b for means of independent samples; n is that of the smaller one.

    The distance from a to its lower end and that from b to its upper end make the lower end of the difference: as the root of
    the sum of squares, like independent errors.
    """
    value = a.value - b.value
    below, above = np.hypot(a.value - a.low, b.high - b.value), np.hypot(a.high - a.value, b.value - b.low)
    return Mean(value, value - float(below), value + float(above), min(a.n, b.n))


@dataclass(frozen=True)
class SignTest:
    """How many differences are above and below zero, and how probable a split at least as uneven is if either side is as
    likely."""

    above: int
    below: int
    p: float


def sign_test(differences: ArrayLike) -> SignTest:
    """The two-sided sign test; zeros are left out, and without any other difference p is 1."""
    x = np.asarray(differences, dtype=np.float64)
    above, below = int((x > 0).sum()), int((x < 0).sum())
    n = above + below
    tail = sum(comb(n, k) for k in range(min(above, below) + 1)) / 2**n
    return SignTest(above, below, min(1.0, 2 * tail))


RIDGE = 1e-2  # keeps coefficients finite where a feature tells everything
NEWTON_STEPS = 50


@dataclass(frozen=True)
class Logistic:
    """A model log P(1)/P(0) = intercept + Σ coefficient · standardised feature, with bootstrap intervals, and how well it
    sorts: auc is the probability that a 1 drawn at random gets a higher value than a 0."""

    intercept: Mean
    coefficients: list[Mean]
    auc: Mean


def logistic(features: NDArray[np.float64], outcome: NDArray[np.bool_], random: np.random.Generator) -> Logistic:
    """Logistic regression of an outcome [values] on features [values, features], each standardised first.

    Coefficients are log-odds per standard deviation, shrunk a little (ridge RIDGE; the intercept is free). A resample draws
    values with replacement, as counts that weigh them; those with one outcome only are left out. NaN without both outcomes.
    """
    n, width = features.shape
    y = np.asarray(outcome, dtype=np.float64)
    if not 0 < y.sum() < n:
        nothing = Mean(np.nan, np.nan, np.nan, n)
        return Logistic(nothing, [nothing] * width, nothing)
    x = np.column_stack([np.ones(n), standardised(features)])
    counts = random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)
    both = (counts @ y > 0) & (counts @ (1 - y) > 0)
    weights = np.concatenate([np.ones((1, n)), counts[both]])
    fitted = _newton(x, y, weights)
    auc = np.array([_auc(x @ b, y, w) for b, w in zip(fitted, weights, strict=True)])
    ends = np.quantile(np.column_stack([fitted, auc])[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    values = [*fitted[0], auc[0]]
    intercept, *coefficients, quality = (
        Mean(float(v), float(low), float(high), n) for v, low, high in zip(values, *ends, strict=True)
    )
    return Logistic(intercept, coefficients, quality)


def standardised(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns with mean 0 and standard deviation 1; constant ones become 0."""
    deviation = features.std(0)
    return (features - features.mean(0)) / np.where(deviation > 0, deviation, 1.0)


def _newton(x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients [weightings, columns] that maximise Σ w·log-likelihood − RIDGE/2 · n · |coefficients|²."""
    penalty = RIDGE * len(y) * np.diag([0.0, *np.ones(x.shape[1] - 1)])
    found = np.zeros((len(weights), x.shape[1]))
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(found @ x.T, -30, 30)))
        slope = (weights * (y - p)) @ x - found @ penalty
        curvature = np.einsum("bn,ni,nj->bij", weights * p * (1 - p), x, x) + penalty
        step = np.linalg.solve(curvature + 1e-9 * np.eye(x.shape[1]), slope[..., None])[..., 0]
        found += np.clip(step, -2, 2)  # far from the optimum a full step may overshoot
        if np.abs(step).max() < 1e-8:
            break
    return found


def _auc(values: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Of all pairs of a 1 and a 0, weighted, the share that is in order; ties count half."""
    which = np.unique(values, return_inverse=True)[1]
    ones, zeros = (np.bincount(which, weights * c) for c in (y, 1 - y))
    below = np.cumsum(zeros) - zeros
    return float((ones * (below + zeros / 2)).sum() / (ones.sum() * zeros.sum()))
