"""Effects of single components: some are patched again, each in a pass of its own through the whole model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from arithscope.experiments.common.attribution import ATTRIBUTION_METHODS, BEST, attributed_effects
from arithscope.experiments.common.samples import Split
from arithscope.experiments.localize import MLP, Localization, effect_statistics, prompt_table
from arithscope.experiments.neurons import (
    EXACT,
    PICKED,
    RECALLED,
    SCREEN,
    NeuronEffects,
    agreement_of_ranks,
    best_first,
    share_of,
)
from arithscope.models.model import Site
from arithscope.prompts import random_source
from arithscope.stats.measures import EFFECTS
from arithscope.verify.compare import Noise, Tally
from arithscope.verify.inputs import Inputs, some_of
from arithscope.verify.passes import Place, patched_effects

COMPONENTS = 12  # of each operator
LAYERS, NEURONS = 3, 16  # of each operator: so many layers, of each so many neurons


def check_localize(inputs: Inputs, stored: Localization, tally: Tally) -> None:
    model, seed = inputs.model, inputs.settings.seed
    samples, named = inputs.splits, model.positions.named()
    prompts = [prompt_table(o, split.discovery, split.counterfactuals) for o, split in samples.items()]
    tally.table("prompts", stored.prompts, pd.concat(prompts, ignore_index=True))
    total = 0
    for operator, split in samples.items():
        mine = stored.effects[(stored.effects.operator == operator) & (stored.effects.measure == EFFECTS[0])]
        chosen = mine.iloc[some_of(inputs.chooser("localize", operator), len(mine), COMPONENTS)]
        places = [
            Place(
                Site.NEURONS if head == MLP else Site.HEADS, int(layer), None if head == MLP else int(head), named[at]
            )
            for layer, head, at in zip(chosen.layer, chosen["head"], chosen.position, strict=True)
        ]
        found = patched_effects(model, split.discovery, split.counterfactuals, places)
        random = random_source(seed, "localize", operator)
        which = chosen[["operator", "position", "layer", "head"]].reset_index(drop=True)
        compare_effects(tally, stored.effects, which, found, random)
        total += len(places)
    tally.did(f"{total} heads and MLPs, each patched in whole passes")


def compare_effects(
    tally: Tally,
    stored: pd.DataFrame,
    which: pd.DataFrame,
    found: NDArray[Any],
    random: np.random.Generator,
    spread: bool = False,
) -> None:
    """Effects [components, prompts, measures], measure after measure, as statistics are made of them, against the stored ones.
    Resamples are the same for all components, so that those of some have the same intervals."""
    for i, measure in enumerate(EFFECTS):
        statistics = effect_statistics(found[..., i], random)
        if spread:
            statistics["std"] = found[..., i].std(1, dtype=np.float64)
        on = [*which.columns, "measure"]
        noise, now = _noise(tally.noise, measure), which.assign(measure=measure).join(statistics)
        now = now.assign(allowed=noise.prompt / found.shape[1] ** 0.5)
        tally.rows(f"effect by {measure}", stored, now, on, noise)


def _noise(noise: Noise, measure: str) -> Noise:
    """Some logits are nearly 0, and what is divided by them is noisier."""
    return noise.times(10) if measure == "logit" else noise


def check_neurons(inputs: Inputs, stored: NeuronEffects, tally: Tally) -> None:
    """Exact effects by whole passes, and estimates by gradients, of some neurons of some layers."""
    model, s = inputs.model, inputs.settings
    first = inputs["probe"].first_answer_layer
    tally.same("first_layer", stored.first_layer, first)
    total = 0
    for operator, split in inputs.splits.items():
        choose, random = inputs.chooser("neurons", operator), random_source(s.seed, "neurons", operator)
        split = _first(split, s.sizes.neurons)
        layers = (first + some_of(choose, model.sizes.layers - first, LAYERS)).tolist()
        mine = stored.effects[(stored.effects.operator == operator) & (stored.effects.measure == EFFECTS[0])]
        screen = {EXACT: None, SCREEN: BEST}.get(s.neurons, s.neurons)
        if screen is None:
            estimates = None
        else:
            estimates = attributed_effects(
                model, split.discovery, split.counterfactuals, layers, screen, lambda n: None
            )
        if s.neurons == SCREEN and estimates is not None:
            _same_picks(tally, mine, layers, estimates[..., EFFECTS.index(s.effect)].mean(2, dtype=np.float64))
        methods = {EXACT: [EXACT], SCREEN: [EXACT, BEST]}.get(s.neurons, [s.neurons])
        for method in methods:  # in the order in which resamples were drawn for them
            of_method = mine[(mine.method == method) & mine.layer.isin(layers)]
            of_layer = [rows.iloc[some_of(choose, len(rows), NEURONS)] for _, rows in of_method.groupby("layer")]
            which = pd.concat(of_layer)[["operator", "layer", "neuron", "method"]].reset_index(drop=True)
            if method == EXACT:
                at = [Place(Site.NEURONS, int(i), int(n), model.positions.last) for i, n in _pairs(which)]
                found = patched_effects(model, split.discovery, split.counterfactuals, at).astype(np.float32)
            elif estimates is not None:
                found = np.stack([estimates[layers.index(i), n] for i, n in _pairs(which)])
            compare_effects(tally, stored.effects, which, found, random, spread=True)
            total += len(which)
    how = "in whole passes" if s.neurons == EXACT else f"by {s.neurons}"
    tally.did(f"{total} neurons of up to {LAYERS} layers of each operator, {how}")
    if s.neurons == EXACT:
        _check_agreement(inputs, stored, tally)
    else:
        tally.same("rows of agreement", len(stored.agreement), 0)


def _first(split: Split, n: int) -> Split:
    return Split(split.discovery[:n], split.counterfactuals[:n], split.evaluation, split.held_out)


def _pairs(which: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(which.layer.tolist(), which.neuron.tolist(), strict=True))


def _same_picks(tally: Tally, mine: pd.DataFrame, layers: list[int], means: NDArray[np.float64]) -> None:
    """Those that were measured exactly are those of largest estimates [layers, neurons], but for ties."""
    picked = share_of(means.shape[1], PICKED)
    for layer, values in zip(layers, means, strict=True):
        [order] = best_first(values[None])
        exact = set(mine[(mine.layer == layer) & (mine.method == EXACT)].neuron.tolist())
        cut = values[order[picked - 1]]
        near = tally.noise.relative * abs(cut) + tally.noise.absolute
        wrong = {n for n in exact ^ set(order[:picked].tolist()) if abs(values[n] - cut) > near}
        tally.same(f"neurons of layer {layer} that a screen picked wrongly", sorted(wrong), [])


def _check_agreement(inputs: Inputs, stored: NeuronEffects, tally: Tally) -> None:
    """Of one operator and one screen."""
    model, choose = inputs.model, inputs.chooser("neurons", "agreement")
    operator, screen = str(choose.choice(list(inputs.splits))), str(choose.choice(list(ATTRIBUTION_METHODS)))
    split = _first(inputs.splits[operator], inputs.settings.sizes.neurons)
    layers = range(stored.first_layer, model.sizes.layers)
    estimates = attributed_effects(model, split.discovery, split.counterfactuals, layers, screen, lambda n: None)
    means, rows = estimates.sum(2, dtype=np.float64) / len(split.discovery), []
    for i, measure in enumerate(EFFECTS):
        mine = stored.effects[(stored.effects.operator == operator) & (stored.effects.measure == measure)]
        exact = mine.sort_values(["layer", "neuron"]).value.to_numpy().reshape(len(layers), -1)
        correlation, recalls = agreement_of_ranks(exact, means[..., i], RECALLED)
        row: dict[str, Any] = {"operator": operator, "screen": screen, "measure": measure}
        rows.append(row | {"rank_correlation": correlation})
        rows[-1] |= {f"recall_{percent}": share for percent, share in zip(RECALLED, recalls, strict=True)}
    # Neurons with next to no effect change places, and one at a border may cross it.
    border = Noise("of ranks: a neuron at a border in each layer", 0.0, max(10 * tally.noise.absolute, 1e-3))
    fewest = 1.0 / share_of(model.sizes.neurons, RECALLED[0])
    table = pd.DataFrame(rows)
    shares = [f"recall_{percent}" for percent in RECALLED]
    on = ["operator", "screen", "measure"]
    tally.rows("agreement", stored.agreement, table[[*on, "rank_correlation"]], on, border)
    tally.rows("agreement", stored.agreement, table[[*on, *shares]].assign(allowed=fewest), on, border)
    tally.did(f"how far {screen} agrees for {operator}")
