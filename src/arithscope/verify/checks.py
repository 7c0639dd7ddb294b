"""Checks that results register for themselves. A stage without one is recomputed on a sample (verify/verify.py).

@check(Commutes)
def in_range(ctx: VerifyContext, stored: Commutes) -> None:
    ctx.tally.same("shares outside [0, 1]", int(((stored.table.value < 0) | (stored.table.value > 1)).sum()), 0)
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.common.result import Result
from arithscope.experiments.common.samples import batches
from arithscope.experiments.means import Answers, MeanActivations
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Prompts, operand_grid
from arithscope.verify.compare import Noise
from arithscope.verify.context import VerifyContext

F = TypeVar("F", bound=Callable[[VerifyContext, Any], None])
PROMPTS = 200  # whose answers are computed again
WHOLE_GRID = 4000  # prompts: means over no more are computed again over all of them
STANDARD_ERRORS = 5.0  # that the mean over a sample may be away, over all components of a layer at a position


CHECKS: dict[type[Result], tuple[Callable[[VerifyContext, Any], None], bool]] = {}  # with `recompute`


def check(kind: type[Result], recompute: bool = True) -> Callable[[F], F]:
    """Register a check of a result class; it compares by means of `ctx.tally`.

    Args:
        kind: The result class.
        recompute: Whether the stage is recomputed on a sample as well.
    """

    def register(function: F) -> F:
        CHECKS[kind] = function, recompute
        return function

    return register


@check(MeanActivations, recompute=False)
@torch.no_grad()
def check_means(ctx: VerifyContext, stored: MeanActivations) -> None:
    """Answers to some prompts, and means: over all prompts where those are few, and at op1 and operator, where few different
    texts can have been read; elsewhere a sample's mean must be as near as its standard error allows."""
    model, noise, tally = ctx.model, ctx.tally.noise, ctx.tally
    prompts = operand_grid(stored.operators, stored.max_operand)
    tally.same("operators", stored.operators, list(model.encoder.operators))
    tally.same("max_operand", stored.max_operand, ctx.settings.max_operand)
    rows = ctx.sample(len(prompts), PROMPTS, "means")
    answers, sure = Answers(model, prompts[rows]), np.empty(len(rows), dtype=np.bool_)
    for some, batch in batches(model, prompts[rows], 0):
        logits = model.logits(model.encode(batch))
        answers.observe(some, logits)
        first, second = logits.topk(2, dim=-1).values.T  # another computation may swap two that are close
        sure[some] = ~(first - second < noise.tie * (first - logits.mean(-1))).cpu().numpy()
    tally.recomputed.append(f"the answers to {len(rows)} prompts")
    texts = prompts[rows].text(replace(model.encoder.template, prefix=""))
    tally.close("p_answer", stored.p_answer[rows], answers.p_answer, noise, lambda i: texts[i])
    before, now = (pd.DataFrame({"predicted": x[sure]}) for x in (stored.predicted[rows], answers.predicted))
    tally.table("answers", before, now)
    at, length = model.positions, model.encoder.length
    if len(prompts) <= WHOLE_GRID:
        tally.recomputed.append("the mean activations at all positions")
        _same_means(ctx, stored, prompts, range(at.op1, length))
        return
    tally.recomputed.append("the mean activations at op1 and operator, and those at later positions on a sample")
    _same_means(ctx, stored, prompts[prompts.op2 == 0], range(at.op1, at.op2))
    sampling = Noise("of a sample of prompts, in its standard errors", 0.0, STANDARD_ERRORS)
    for name, mean, variance in _moments(model, prompts[rows], range(at.op2, length)):
        kept, axes = getattr(stored, name)[:, at.op2 : length], tuple(range(2, mean.ndim))
        distance = np.square(kept - mean).sum(axes) / np.maximum(variance.sum(axes) / len(rows), 1e-30)
        tally.close(f"mean {name}", np.zeros_like(distance), np.sqrt(distance), sampling)


def _same_means(ctx: VerifyContext, stored: MeanActivations, prompts: Prompts, at: range) -> None:
    for name, mean, _ in _moments(ctx.model, prompts, at):
        for layer, (a, b) in enumerate(zip(getattr(stored, name)[:, at.start : at.stop], mean, strict=True)):
            scale = np.abs(b).mean() * ctx.tally.noise.relative
            ctx.tally.close(f"mean {name} of layer {layer}", a, b, ctx.tally.noise, extra=scale)


def _moments(model: Model, prompts: Prompts, at: range) -> list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Mean and variance of heads and neurons at some positions, [layers, positions, …] each, by plain passes."""
    layers = range(model.sizes.layers)

    def sums(x: torch.Tensor) -> torch.Tensor:
        kept = x[:, at.start : at.stop].double()
        return torch.stack([kept.sum(0), kept.square().sum(0)]).cpu()

    totals: dict[str, torch.Tensor] = {}
    for _, batch in batches(model, prompts, 0):
        with capturing(model, heads=layers, neurons=layers, keep=sums) as seen:
            model.logits(model.encode(batch))
        for name, by_layer in (("heads", seen.heads), ("neurons", seen.neurons)):
            stacked = torch.stack([by_layer[i] for i in layers], dim=1)
            totals[name] = totals[name] + stacked if name in totals else stacked
    means = {name: total / len(prompts) for name, total in totals.items()}
    return [(name, mean.numpy(), (of_squares - mean**2).numpy()) for name, (mean, of_squares) in means.items()]
