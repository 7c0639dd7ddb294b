"""What a circuit alone can do: everything outside it is set to its mean activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.experiments.common.samples import batches
from arithscope.experiments.means import MeanActivations
from arithscope.models.engine.replay import Reduce, record, replay
from arithscope.models.engine.sweep import Means
from arithscope.models.hooks import Edit, edit
from arithscope.models.model import Model, Site
from arithscope.prompts import Prompts
from arithscope.stats.measures import Mean, bootstrap_means, faithfulness, log_probability, normalized_logit
from arithscope.utils.executor import Executor, Function, split_evenly
from arithscope.utils.progress import Advance

MEASURES = ("faithfulness", "accuracy", "p_answer")  # what is said of a circuit
TOLERANCE = 0.02  # a circuit is as good as the plateau if its faithfulness comes within this
FOUND, RANDOM = "found", "random"
PROMPTS_IN_UNIT = 50

Asked = tuple[tuple[Any, ...], Prompts]  # arguments of a unit, and all the prompts for which they are the same


@dataclass(frozen=True)
class Judging:
    """How NL and faithfulness are taken: from centred logits, and as a mean of the prompts' ratios, unless said otherwise."""

    centre: bool = True
    ratio_of_means: bool = False


def mean_ablation(
    model: Model,
    means: Means,
    heads: Bool[Tensor, "variants layers heads"],
    neurons: Mapping[int, Bool[Tensor, "variants neurons"]] | None = None,
    neurons_from: int | None = None,
) -> list[Edit]:
    """Edits that keep, in each variant, the heads marked True, and by layer the neurons marked True (unnamed layers keep
    their whole MLP). All else is set to its mean, at every position that depends on the prompt: from op1 on. Neurons can be
    left alone up to a later position `neurons_from`."""
    first = model.positions.op1

    def at(site: Site, layer: int, keep: Tensor, values: Tensor, first: int) -> Edit:
        positions = range(first, model.encoder.length)
        return edit(model, site, layer, ~keep, positions=positions, values=values[layer][None, first:])

    edits = [at(Site.HEADS, i, heads[:, i], means.heads, first) for i in range(model.sizes.layers)]
    start = first if neurons_from is None else neurons_from
    return edits + [at(Site.NEURONS, i, keep, means.neurons, start) for i, keep in (neurons or {}).items()]


def ablated_scores(
    model: Model,
    prompts: Prompts,
    edits: Sequence[Edit],
    judging: Judging,
    advance: Callable[[int], None] = lambda n: None,
) -> NDArray[np.float64]:
    """NL, whether it is right, and P(answer), for every prompt under every variant: [variants, prompts, scores].

    What is the same in all variants is done once, in recording; replay begins where they first differ. An edit may be the same
    for all prompts, or tell them apart.
    """
    differing = [e for e in edits if e.variants > 1] or edits
    common = [e for e in edits if e not in differing]
    first, found = min(min(e.positions) for e in differing), []
    for rows, batch in batches(model, prompts, model.positions.op1):
        reduce = score_reducer(model, batch, judging, advance)
        tape = record(model, model.encode(batch), first, edits=[e.of_prompts(rows) for e in common])
        found.append(replay(tape, [e.of_prompts(rows) for e in differing], reduce).cpu())
    return torch.cat(found, dim=1).double().numpy()


def score_reducer(model: Model, prompts: Prompts, judging: Judging, advance: Callable[[int], None]) -> Reduce:
    """From logits to [variants, prompts, scores]."""
    answer = model.answers(prompts)

    def reduce(before: Tensor, after: Tensor) -> Tensor:
        advance(after.shape[0] * after.shape[1])
        right = (after.argmax(-1) == answer).to(after.dtype)
        nl = normalized_logit(after, answer, centre=judging.centre)
        return torch.stack([nl, right, log_probability(after, answer).exp()], dim=-1)

    return reduce


def kept_scores(
    model: Model,
    means: MeanActivations,
    heads: Bool[NDArray[Any], "variants layers heads"],
    neurons: Mapping[int, Bool[NDArray[Any], "variants neurons"]],
    neurons_from: int | None,
    judging: Judging,
    prompts: Prompts,
    *,
    advance: Advance,
) -> NDArray[np.float64]:
    """A unit: the scores of some prompts in circuits that keep these heads and neurons."""
    masks = {layer: torch.from_numpy(keep) for layer, keep in neurons.items()}
    edits = mean_ablation(model, means.on(model.device), torch.from_numpy(heads), masks, neurons_from)
    return ablated_scores(model, prompts, edits, judging, advance)


def nested_scores(
    model: Model,
    means: MeanActivations,
    heads: Bool[NDArray[Any], "variants layers heads"],
    orders: Mapping[int, Int[NDArray[Any], "orders neurons"]],
    counts: Sequence[int],
    neurons_from: int | None,
    judging: Judging,
    prompts: Prompts,
    *,
    advance: Advance,
) -> NDArray[np.float64]:
    """A unit: the scores of some prompts in circuits that keep, for each order of a layer's neurons, its first n, for each n.
    It is sent orders, as all the sets are many times as large."""
    kept = {layer: nested_sets(list(some), counts).numpy() for layer, some in orders.items()}
    return kept_scores(model, means, heads, kept, neurons_from, judging, prompts, advance=advance)


def scores_by_prompts(
    executor: Executor,
    function: Function,
    model: Model,
    asked: Sequence[Asked],
    advance: Advance = lambda n: None,
) -> list[NDArray[np.float64]]:
    """For each pair of arguments and prompts the scores [variants, prompts, …] that a function gives; a unit has a few of the
    prompts: `function(subject, *arguments, prompts, advance=advance)`."""
    some = [split_evenly(len(prompts), PROMPTS_IN_UNIT) for _, prompts in asked]
    units = [(*arguments, prompts[b]) for (arguments, prompts), mine in zip(asked, some, strict=True) for b in mine]
    parts = iter(executor.map(function, model, units, advance))
    return [np.concatenate([next(parts) for _ in mine], axis=1) for mine in some]


@dataclass(frozen=True)
class Baseline:
    """The two ends of the scale on some prompts: NL of the empty circuit and of the whole model."""

    empty: NDArray[np.float64]
    whole_model: NDArray[np.float64]
    judging: Judging

    def measure(self, scores: NDArray[np.float64], random: np.random.Generator) -> list[dict[str, Mean]]:
        """For each circuit of [circuits, prompts, scores] its faithfulness, accuracy and mean probability."""
        faithful = faithfulness(
            scores[..., 0], self.empty, self.whole_model, random, ratio_of_means=self.judging.ratio_of_means
        )
        right, p = (bootstrap_means(scores[..., i], random) for i in (1, 2))
        return [dict(zip(MEASURES, row, strict=True)) for row in zip(faithful, right, p, strict=True)]

    def change(self, before: NDArray[np.float64], after: NDArray[np.float64], random: np.random.Generator) -> Mean:
        """By how much the faithfulness of a circuit changes, prompt by prompt, from scores before to scores after."""
        moved = self.empty + after[..., 0] - before[..., 0]
        ratio_of_means = self.judging.ratio_of_means
        return faithfulness(moved[None], self.empty, self.whole_model, random, ratio_of_means=ratio_of_means)[0]

    def measure_draws(self, scores: NDArray[np.float64], random: np.random.Generator) -> list[dict[str, Mean]]:
        """The same for [draws, circuits, prompts, scores] of random circuits, averaged over draws; intervals and n are
        over draws."""
        draws = [self.measure(draw, random) for draw in scores]
        values = [np.array([[circuit[m].value for circuit in draw] for draw in draws]).T for m in MEASURES]
        means = zip(*(bootstrap_means(x, random) for x in values), strict=True)
        return [dict(zip(MEASURES, row, strict=True)) for row in means]


def baselines(
    executor: Executor, model: Model, means: MeanActivations, samples: Sequence[Prompts], judging: Judging
) -> list[Baseline]:
    """Run the prompts of each sample with everything ablated, and with nothing."""
    s = model.sizes
    keep = np.array([[False], [True]])
    heads = np.broadcast_to(keep[:, :, None], (2, s.layers, s.heads)).copy()
    neurons = dict.fromkeys(range(s.layers), np.repeat(keep, s.neurons, axis=1))
    asked: list[Asked] = [((means, heads, neurons, None, judging), prompts) for prompts in samples]
    found = scores_by_prompts(executor, kept_scores, model, asked)
    return [Baseline(empty, whole_model, judging) for empty, whole_model in (scores[..., 0] for scores in found)]


def beside_draws(
    scale: Baseline, scores: NDArray[np.float64], draws: int, random: np.random.Generator
) -> tuple[list[dict[str, Mean]], list[dict[str, Mean]]]:
    """Measures of growing circuits, and of random ones as large, from their scores [variants, prompts, scores]. Variants are
    the circuits in the order of their size, behind them as many for the first random draw, and so on."""
    scores = scores.reshape(1 + draws, -1, *scores.shape[1:])
    return scale.measure(scores[0], random), scale.measure_draws(scores[1:], random)


def nested_sets(orders: Sequence[NDArray[np.int64]], counts: Sequence[int]) -> Bool[Tensor, "variants components"]:
    """For each order of the components, its first n of them, for each n."""
    rank = torch.from_numpy(np.stack([np.argsort(order) for order in orders]))
    return (rank[:, None, :] < torch.tensor(counts)[None, :, None]).flatten(0, 1)


def curve_table(
    operator: str, sizes: Sequence[int], found: list[dict[str, Mean]], random: list[dict[str, Mean]]
) -> pd.DataFrame:
    """Both curves with the columns operator, circuit, size, measure, value, low, high, n."""
    rows = [
        {"operator": operator, "circuit": circuit, "size": size, "measure": m, **asdict(means[m])}
        for circuit, curve in ((FOUND, found), (RANDOM, random))
        for size, means in zip(sizes, curve, strict=True)
        for m in MEASURES
    ]
    return pd.DataFrame(rows)


def beside_random(found: Mapping[str, Mean], random: Mapping[str, Mean]) -> dict[str, Mean]:
    """The measures of a circuit, and under `random_…` those of random ones as large."""
    return {**found, **{f"random_{m}": mean for m, mean in random.items()}}


def smallest_on_plateau(curve: list[dict[str, Mean]]) -> int:
    """The first circuit whose faithfulness is within TOLERANCE of the best one's. Where there is no faithfulness (the empty
    circuit already does as well as the model), the first there is."""
    values = np.nan_to_num([means["faithfulness"].value for means in curve], nan=-np.inf)
    return int(np.argmax(values >= values.max() - TOLERANCE))
