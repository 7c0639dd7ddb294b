"""Checks of what sweeps over all prompts found: answers are recomputed on a sample, and mean activations over all prompts if
these are few, since no sample has the same mean."""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.samples import batches
from arithscope.experiments.means import Answers, MeanActivations
from arithscope.experiments.whole_answers import (
    WholeAnswers,
    chains_of,
    forced_tokens,
    free_answers,
    measures_of,
    right_values,
    stops_after,
    written_numbers,
)
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import Ints, Prompts
from arithscope.stats.intervals import Floats
from arithscope.verify.checks import STANDARD_ERRORS, VerifyContext, check
from arithscope.verify.compare import counted

PROMPTS = 200  # whose answers are recomputed
WHOLE_GRID = 4000  # means over at most so many prompts are recomputed over all of them


@check(MeanActivations, recompute=False)
@torch.no_grad()
def check_means(ctx: VerifyContext, stored: MeanActivations) -> None:
    """Compare the answers to a sample of prompts, and the mean activations."""
    ctx.tally.same("operators", stored.operators, list(ctx.model.encoder.operators))
    ctx.tally.same("studied", stored.studied, ctx.stratum.as_json())
    rows = ctx.sample(len(stored.prompts), PROMPTS, "means")
    _same_answers(ctx, ctx.model, stored.prompts[rows], stored.predicted[rows], stored.p_answer[rows])
    right = stored.stratum.legal(stored.prompts) & (stored.predicted == stored.prompts.result)
    of_steps = stored.whole & right if stored.stratum.steps > 1 else right  # other steps are not in this run
    ctx.tally.table("whole", pd.DataFrame({"whole": stored.whole}), pd.DataFrame({"whole": of_steps}))
    ctx.tally.recomputed.append(f"the answers to {counted(len(rows), 'prompt')}")
    _same_mean_activations(ctx, stored, rows)


@check(WholeAnswers, recompute=False)
@torch.no_grad()
def check_whole_answers(ctx: VerifyContext, stored: WholeAnswers) -> None:
    """Compare the answers of every step, and those of free running, to a sample of prompts, and the mean activations."""
    stratum, tally = stored.stratum, ctx.tally
    tally.same("operators", stored.operators, list(ctx.model.encoder.operators))
    tally.same("studied", stored.studied, ctx.stratum.as_json())
    prompts = stratum.run(stored.operators)
    rows = ctx.sample(len(prompts), PROMPTS, "whole_answers")
    sure = np.ones(len(rows), dtype=np.bool_)
    for i, view in enumerate(ctx.model.every_step()):
        asked, p_answer = prompts[rows].asking(view.encoder.asked), np.exp(stored.log_p[i, rows])
        sure &= _same_answers(ctx, view, asked, stored.predicted[i, rows], p_answer)
    right = stored.predicted == right_values(stratum, prompts.answer)
    tally.table("correct", stored.prompts[["correct"]], pd.DataFrame({"correct": right.all(0)}))
    studied = stored.prompts[stored.prompts.operator.isin(ctx.settings.operators)]
    tally.table("table", stored.table, measures_of(studied, right))
    tally.table("chains", stored.chains, chains_of(studied, right))
    tally.close("log_p", stored.prompts.log_p.to_numpy(), stored.log_p.sum(0, dtype=np.float64), tally.noise)
    if ctx.model.full_precision:  # otherwise a token may differ further on, where nothing says how close the call was
        clear = rows[sure]
        tokens = forced_tokens(ctx.model, prompts[clear])
        free = free_answers(ctx.model, prompts[clear], tokens, advance=lambda n: None)
        agrees, stops = (stored.predicted[:, clear] == free).all(0), stops_after(ctx.model, tokens[-1])
        now = pd.DataFrame({"free": written_numbers(stratum, free), "agrees": agrees, "stops": stops})
        tally.table("free running", stored.prompts.iloc[clear][list(now)].reset_index(drop=True), now)
    tally.recomputed.append(f"the answers to {counted(len(rows), 'prompt')} at every step")
    _same_mean_activations(ctx, stored.means_at(stratum.steps), rows)


def _same_answers(
    ctx: VerifyContext, model: Model, prompts: Prompts, predicted: NDArray[np.int32], p_answer: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Compare stored answers with those of full passes, where no other token is almost as probable; returns where that is."""
    noise, answers, sure = ctx.tally.noise, Answers(model, prompts), np.empty(len(prompts), dtype=np.bool_)
    for some, batch in batches(model, prompts, 0):
        logits = model.logits(model.encode(batch))
        answers.observe(some, logits)
        first, second = logits.topk(2, dim=-1).values.T  # rounding may swap two that are close
        sure[some] = ~(first - second < noise.tie * (first - logits.mean(-1))).cpu().numpy()
    texts = model.encoder.shown(prompts)
    ctx.tally.close("p_answer", p_answer, answers.p_answer, noise, lambda i: texts[i])
    before, now = (pd.DataFrame({"predicted": x[sure]}) for x in (predicted, answers.predicted))
    ctx.tally.table("answers", before, now)
    return sure


def _same_mean_activations(ctx: VerifyContext, stored: MeanActivations, rows: Ints) -> None:
    """Compare means over all prompts if those are few. If not, of the operand grid only means at op1 and operator, where few
    distinct prefixes end, are compared exactly; elsewhere a sample's mean must be within its standard errors."""
    model, noise, tally, prompts = ctx.model, ctx.tally.noise, ctx.tally, stored.prompts
    at, length = model.positions, model.encoder.length
    if len(prompts) <= WHOLE_GRID:
        tally.recomputed.append("the mean activations at all positions")
        _same_means(ctx, stored, prompts, range(at.op1, length))
        return
    sampled = range(at.op1, length)
    if stored.stratum.whole:
        tally.recomputed.append("the mean activations at op1 and operator")
        _same_means(ctx, stored, prompts[prompts.op2 == 0], range(at.op1, at.op2))
        sampled = range(at.op2, length)
    tally.recomputed.append("mean activations on a sample")
    shares = _shares(prompts[rows])
    for name, mean, variance in _moments(model, prompts[rows], sampled):
        kept, axes = getattr(stored, name)[:, sampled.start : sampled.stop], tuple(range(2, mean.ndim))
        distance, norm = (np.sqrt(np.square(x).sum(axes)) for x in (kept - mean, mean))
        # With parallel attention and MLP, the first MLP sees only "=" at the last position: no variance, but rounding.
        deviation = np.sqrt(np.maximum(variance, 0.0).sum(axes) * np.square(shares).sum())
        allowed = replace(noise, name="a sample of prompts", extra=STANDARD_ERRORS * deviation + noise.relative * norm)
        tally.close(f"mean {name}", np.zeros_like(distance), distance, allowed)


def _same_means(ctx: VerifyContext, stored: MeanActivations, prompts: Prompts, at: range) -> None:
    for name, mean, _ in _moments(ctx.model, prompts, at):
        for layer, (a, b) in enumerate(zip(getattr(stored, name)[:, at.start : at.stop], mean, strict=True)):
            scale = np.abs(b).mean() * ctx.tally.noise.relative
            ctx.tally.close(f"mean {name} of layer {layer}", a, b, replace(ctx.tally.noise, extra=scale))


def _shares(prompts: Prompts) -> Floats:
    """Share of each prompt in a mean in which operators weigh the same."""
    _, operator, counts = np.unique(prompts.operator, return_inverse=True, return_counts=True)
    return 1 / (len(counts) * counts[operator])


def _moments(model: Model, prompts: Prompts, at: range) -> list[tuple[str, Floats, Floats]]:
    """Mean and variance of heads and neurons at the positions `at`, [layers, positions, …] each, by full passes. Operators
    weigh the same."""
    layers, shares = range(model.sizes.layers), torch.from_numpy(_shares(prompts))
    totals: dict[str, Tensor] = {}
    for rows, batch in batches(model, prompts, 0):
        own = shares[rows]

        def sums(x: Tensor, own: Tensor = own) -> Tensor:
            kept = x[:, at.start : at.stop].double()
            return torch.stack([torch.tensordot(own.to(x.device), y, dims=1) for y in (kept, kept.square())]).cpu()

        with capturing(model, heads=layers, neurons=layers, keep=sums) as seen:
            model.logits(model.encode(batch))
        for name, by_layer in (("heads", seen.heads), ("neurons", seen.neurons)):
            stacked = torch.stack([by_layer[i] for i in layers], dim=1)
            totals[name] = totals[name] + stacked if name in totals else stacked
    return [(name, mean.numpy(), (of_squares - mean**2).numpy()) for name, (mean, of_squares) in totals.items()]
