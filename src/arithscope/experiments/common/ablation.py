"""Circuits under mean ablation: everything outside a circuit is set to its mean activation (Section 2.1, Appendix A).

1. `mean_ablation` turns circuits (sets of kept heads and neurons) into edits with one variant per circuit.
2. One replay scores all variants of a batch of prompts: normalised logit, correctness, probability of the answer.
3. A `Baseline` (the empty circuit and the whole model on the same prompts) turns scores into faithfulness.
4. `growth_curve` evaluates nested circuits of growing size, and random ones. A size is chosen by `smallest_on_plateau` on a
   curve over selection prompts, and what it achieves is read off another one, over evaluation prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common import schema
from arithscope.experiments.common.result import mean_entry, mean_rows
from arithscope.experiments.common.samples import batches
from arithscope.experiments.common.stage import Context
from arithscope.experiments.means import MeanActivations
from arithscope.models.engine.replay import Reduce
from arithscope.models.engine.sweep import Means
from arithscope.models.hooks import Edit, edit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts
from arithscope.settings import ACCURACY, FAITHFULNESS
from arithscope.stats.effects import log_probability
from arithscope.stats.faithfulness import SMALLEST_SPAN, faithfulness, faithfulness_by_prompt, normalized_logit
from arithscope.stats.intervals import Floats, Mean, paired_difference, unit_means
from arithscope.utils.executor import Function, split_evenly
from arithscope.utils.progress import Advance

MEASURES = ("faithfulness", "accuracy", "p_answer")  # of a circuit
TOLERANCE = 0.02  # a circuit is on the plateau if its faithfulness comes within this of the best
TOLERANCES = {FAITHFULNESS: TOLERANCE, ACCURACY: 0.1}  # one prompt more or less must not decide
FOUND, RANDOM = "found", "random"
PROMPTS_IN_UNIT = 50
VERIFIED_SIZES = 4  # circuit sizes of each operator that `verify` evaluates again

# Columns of a curve over circuits of growing size.
CURVE = (
    schema.OPERATOR,
    schema.text(
        "circuit",
        "`found`: the best-ranked components; `random`: as many random ones, over draws; `by_…`: the best by another ranking",
        key=True,
    ),
    schema.number("size", "number of components kept", key=True),
    *schema.MEASURED,
)

Task = tuple[tuple[Any, ...], Prompts]  # arguments of a unit function, and the prompts to score with them
HeadMasks = Bool[np.ndarray, "variants layers heads"]


def mean_ablation(
    model: Model,
    means: Means,
    heads: Bool[Tensor, "variants layers heads"],
    neurons: Mapping[int, Bool[Tensor, "variants neurons"]] | None = None,
    neurons_from: Mapping[int, int] | int | None = None,
) -> list[Edit]:
    """Edits that mean-ablate everything outside each circuit, at every position from op1 on.

    Args:
        model: The model.
        means: Mean activation of every component at every position.
        heads: Heads that each circuit keeps.
        neurons: By layer, the neurons that each circuit keeps; other layers keep their whole MLP.
        neurons_from: First position at which neurons are ablated, for all layers or by layer; by default op1.

    Returns:
        One edit per layer and site, with one variant per circuit.
    """
    op1 = model.positions.op1
    starts = neurons_from if isinstance(neurons_from, Mapping) else dict.fromkeys(neurons or {}, neurons_from)

    def ablate(site: Site, layer: int, keep: Tensor, values: Tensor, first: int) -> Edit:
        positions = range(first, model.encoder.length)
        return edit(model, site, layer, ~keep, positions=positions, values=values[layer][None, first:])

    edits = [ablate(Site.HEADS, i, heads[:, i], means.heads, op1) for i in range(model.sizes.layers)]
    for i, keep in (neurons or {}).items():
        start = starts[i]
        edits.append(ablate(Site.NEURONS, i, keep, means.neurons, op1 if start is None else start))
    return edits


def ablated_scores(model: Model, prompts: Prompts, edits: Sequence[Edit], advance: Advance = lambda n: None) -> Floats:
    """Normalised logit, correctness and P(answer) of every prompt under every variant: [variants, prompts, scores]."""
    # Edits that are the same in all variants are applied once, when the prompts are recorded.
    differing = [e for e in edits if e.variants > 1] or edits
    common = [e for e in edits if e not in differing]
    first = min(min(e.positions) for e in differing)
    scores = []
    for rows, batch in batches(model, prompts, model.positions.op1):
        reduce = score_reducer(model, batch, advance)
        tape = model.engine.record(model, model.encode(batch), first, edits=[e.for_prompts(rows) for e in common])
        scores.append(model.engine.replay(tape, [e.for_prompts(rows) for e in differing], reduce).cpu())
    return torch.cat(scores, dim=1).double().numpy()


def score_reducer(model: Model, prompts: Prompts, advance: Advance) -> Reduce:
    """Reduces logits to [variants, prompts, scores]."""
    answer = model.answers(prompts)

    def reduce(clean: Tensor, edited: Tensor) -> Tensor:
        advance(edited.shape[0] * edited.shape[1])
        correct = (edited.argmax(-1) == answer).to(edited.dtype)
        return torch.stack([normalized_logit(edited, answer), correct, log_probability(edited, answer).exp()], dim=-1)

    return reduce


def circuit_scores(
    model: Model,
    means: MeanActivations,
    heads: HeadMasks,
    neurons: Mapping[int, Bool[np.ndarray, "variants neurons"]],  # by layer
    neurons_from: Mapping[int, int] | int | None,
    prompts: Prompts,
    *,
    advance: Advance,
) -> Floats:
    """Unit of work: scores of some prompts in circuits that keep these heads and neurons."""
    masks = {layer: torch.from_numpy(keep) for layer, keep in neurons.items()}
    edits = mean_ablation(model, means.on(model.device), torch.from_numpy(heads), masks, neurons_from)
    return ablated_scores(model, prompts, edits, advance)


def nested_circuit_scores(
    model: Model,
    means: MeanActivations,
    heads: HeadMasks,
    orders: Mapping[int, Int[np.ndarray, "orders neurons"]],  # by layer
    counts: Sequence[int],
    neurons_from: int | None,
    prompts: Prompts,
    *,
    advance: Advance,
) -> Floats:
    """Unit of work: scores in circuits that keep the first n neurons of each order, for each n. (Sets are larger to send.)"""
    kept = {layer: nested_sets(own, counts).numpy() for layer, own in orders.items()}
    return circuit_scores(model, means, heads, kept, neurons_from, prompts, advance=advance)


def scores_of_tasks(ctx: Context, unit: Function, tasks: list[Task], advance: Advance = lambda n: None) -> list[Floats]:
    """Scores [variants, prompts, …] of each task; a unit of work has a chunk of a task's prompts."""
    chunks = [split_evenly(len(prompts), PROMPTS_IN_UNIT) for _, prompts in tasks]
    groups = [[(*args, prompts[c]) for c in own] for (args, prompts), own in zip(tasks, chunks, strict=True)]
    return [np.concatenate(parts, axis=1) for parts in ctx.map_groups(unit, groups, advance)]


@dataclass(frozen=True)
class Baseline:
    """Normalised logits of the empty circuit and of the whole model on some prompts: 0 and 1 on the faithfulness scale."""

    empty: Floats
    whole_model: Floats

    @property
    def smallest_span(self) -> float:
        """Smallest distance between the two among prompts that have a faithfulness."""
        span = np.abs(self.whole_model - self.empty)
        return max(float(np.min(span[span >= SMALLEST_SPAN], initial=1.0)), SMALLEST_SPAN)

    def measure(self, scores: Floats) -> list[dict[str, Mean]]:
        """Faithfulness, accuracy and mean probability of each circuit, from scores [circuits, prompts, scores]."""
        faithful = faithfulness(scores[..., 0], self.empty, self.whole_model)
        correct, probability = (unit_means(scores[..., i]) for i in (1, 2))
        return [dict(zip(MEASURES, row, strict=True)) for row in zip(faithful, correct, probability, strict=True)]

    def measure_draws(self, scores: Floats) -> list[dict[str, Mean]]:
        """The same for scores [draws, circuits, prompts, scores] of random circuits: mean, interval and n over draws."""
        draws = [self.measure(draw) for draw in scores]
        values = [np.array([[circuit[m].value for circuit in draw] for draw in draws]).T for m in MEASURES]
        means = [unit_means(x) for x in values]
        return [dict(zip(MEASURES, row, strict=True)) for row in zip(*means, strict=True)]

    def change(self, before: Floats, after: Floats) -> Mean:
        """Change of a circuit's faithfulness, prompt by prompt, between two sets of scores."""
        both = np.stack([after[..., 0], before[..., 0]])
        return paired_difference(*faithfulness_by_prompt(both, self.empty, self.whole_model))


def baselines(ctx: Context, samples: Mapping[str, Prompts]) -> dict[str, Baseline]:
    """By operator, the baseline on its prompts: everything ablated, and nothing ablated."""
    s, keep = ctx.model.sizes, np.array([[False], [True]])
    heads = np.broadcast_to(keep[:, :, None], (2, s.layers, s.heads)).copy()
    neurons = dict.fromkeys(range(s.layers), np.repeat(keep, s.neurons, axis=1))
    ends = (ctx.results[MeanActivations], heads, neurons, None)
    scores = scores_of_tasks(ctx, circuit_scores, [(ends, prompts) for prompts in samples.values()])
    return {operator: Baseline(*each[..., 0]) for operator, each in zip(samples, scores, strict=True)}


def nested_sets(orders: NDArray[np.integer[Any]], counts: Sequence[int]) -> Bool[Tensor, "variants components"]:
    """For each order of the components [orders, components], the set of its first n, for each n."""
    rank = torch.from_numpy(np.argsort(orders, axis=1))
    return (rank[:, None, :] < torch.tensor(counts)[None, :, None]).flatten(0, 1)


def with_random_orders(
    orders: Int[np.ndarray, "orders components"], draws: int, random: Generator
) -> Int[np.ndarray, "all components"]:
    """Some orders of the components, then `draws` random ones."""
    return np.stack([*orders, *(random.permutation(orders.shape[1]) for _ in range(draws))])


def growth_curve(
    ctx: Context,
    field: str,
    function: Function,
    samples: Mapping[str, Prompts],
    counts: Sequence[int],
    arguments: Callable[[str, list[int], int], tuple[Any, ...]],
    draws: int,
    advance: Advance,
    circuits: Sequence[str] = (FOUND,),
) -> pd.DataFrame:
    """Measures of each operator's circuits of growing size, and of random circuits, with the columns `CURVE`.

    Args:
        ctx: The stage's context.
        field: Field of the stage's result that the curve is for.
        function: Unit of work that scores circuits.
        samples: Prompts by operator.
        counts: Sizes of the circuits.
        arguments: Maps an operator, sizes and a number of draws to the arguments of the unit function: all sizes of each named
            circuit, then of each draw of random ones.
        draws: Number of random circuits of each size.
        advance: Called with the number of passes done.
        circuits: Names of the circuits, for the column `circuit`.
    """
    sizes = {o: [counts[i] for i in ctx.sample(len(counts), VERIFIED_SIZES, field, o)] for o in samples}
    tasks = [(arguments(operator, sizes[operator], draws), prompts) for operator, prompts in samples.items()]
    scores = scores_of_tasks(ctx, function, tasks, advance)
    ends = baselines(ctx, samples)
    curves = [measured_curve(o, sizes[o], x, ends[o], circuits) for o, x in zip(samples, scores, strict=True)]
    spans = {operator: baseline.smallest_span for operator, baseline in ends.items()}
    return ctx.confirmed(field, pd.concat(curves, ignore_index=True), smallest_span=spans)


def measured_curve(
    operator: str, sizes: list[int], scores: Floats, ends: Baseline, circuits: Sequence[str] = (FOUND,)
) -> pd.DataFrame:
    """Measures of an operator's circuits, from scores [variants, prompts, scores] of the named ones, then of each draw."""
    by_circuit = scores.reshape(-1, len(sizes), *scores.shape[1:])
    curves = {name: ends.measure(own) for name, own in zip(circuits, by_circuit, strict=False)}
    if len(drawn := by_circuit[len(circuits) :]):
        curves[RANDOM] = ends.measure_draws(drawn)
    rows = []
    for circuit, curve in curves.items():
        for size, means in zip(sizes, curve, strict=True):
            rows += mean_rows(means, operator=operator, circuit=circuit, size=size)
    return pd.DataFrame(rows)


def curve_means(curve: pd.DataFrame, operator: str) -> dict[int, dict[str, Mean]]:
    """By size, the measures of an operator's circuit, and under `random_…` those of random circuits of that size."""
    means: dict[int, dict[str, Mean]] = {}
    named = {FOUND: "", RANDOM: f"{RANDOM}_"}
    for row in curve[(curve.operator == operator) & curve.circuit.isin(named)].to_dict("records"):
        means.setdefault(int(row["size"]), {})[named[row["circuit"]] + row["measure"]] = Mean(**mean_entry(row))
    return means


def smallest_on_plateau(
    curve: pd.DataFrame, operator: str, measures: Sequence[str] = (FAITHFULNESS,), circuit: str = FOUND
) -> int:
    """Smallest size that comes as close to the best as TOLERANCES says in the first measure and, among those, in the others.
    Sizes without a value come last."""
    rows = curve[(curve.operator == operator) & (curve.circuit == circuit)]
    values = rows.pivot(index="size", columns="measure", values="value").fillna(-np.inf)
    for measure in measures:
        values = values[values[measure] >= values[measure].max() - TOLERANCES[measure]]
    return int(values.index[0])
