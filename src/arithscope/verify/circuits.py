"""Circuits: some of those that were judged are judged again, each in a pass of its own through the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.bag import Bag, kept_neurons, present_rows
from arithscope.experiments.circuit import Circuit, head_counts, head_table
from arithscope.experiments.classify import CALIBRATED
from arithscope.experiments.common.ablation import (
    FOUND,
    MEASURES,
    RANDOM,
    Baseline,
    beside_random,
    curve_table,
    mean_ablation,
    nested_sets,
    smallest_on_plateau,
)
from arithscope.experiments.common.association import association
from arithscope.experiments.common.result import MEAN, mean_entry, table_of
from arithscope.experiments.heads import Heads, attention_patterns, isolation_rows, roles_of
from arithscope.experiments.mlp0 import ALL_POSITIONS, POSITIONS, SHARES, FirstMlp
from arithscope.experiments.topk import TopK, best_of_layers, neuron_counts
from arithscope.models.hooks import capturing, cutting
from arithscope.models.model import Site
from arithscope.prompts import Prompts, random_source
from arithscope.stats.measures import SMALLEST_SPAN, Mean
from arithscope.verify.compare import Tally
from arithscope.verify.effects import compare_effects
from arithscope.verify.inputs import Inputs, some_of
from arithscope.verify.passes import Place, Scored, baseline, circuit_scores, patched_effects, scores

SIZES = 3  # circuits of each operator beside the chosen one
HEADS = 4  # of each operator that are isolated
FIRST_MLP = 12  # neurons of the first MLP

Curve = list[dict[str, Mean]]


def check_circuit(inputs: Inputs, stored: Circuit, tally: Tally) -> None:
    model, s = inputs.model, inputs.settings
    sizes, every = model.sizes, model.sizes.layers * model.sizes.heads
    counts, heads, measured, left_out = head_counts(every), [], {}, {}
    for operator, split in inputs.splits.items():
        random = random_source(s.seed, "circuit", operator)
        ranking = inputs["localize"].ranking(operator, s.effect)
        order = (ranking.layer * sizes.heads + ranking["head"]).to_numpy()
        orders = [order, *(random.permutation(every) for _ in range(s.sizes.draws))]
        ours, theirs = (stored_curve(stored.curve, operator, which, counts) for which in (FOUND, RANDOM))
        chosen = smallest_on_plateau(ours)
        tried = _tried(inputs, "circuit", operator, len(counts), chosen)
        kept = nested_sets(orders, [counts[i] for i in tried]).unflatten(1, (sizes.layers, sizes.heads)).numpy()
        again = _judged(inputs, tally, split.evaluation, kept, {}, None)
        _compare_curve(tally, stored.curve, operator, [counts[i] for i in tried], again, s.sizes.draws, random)
        heads.append(head_table(operator, ranking, counts[chosen]))
        measured[operator] = beside_random(ours[chosen], theirs[chosen])
        left_out[operator] = len(split.evaluation) - ours[chosen]["faithfulness"].n
    tally.table("heads", stored.heads, pd.concat(heads, ignore_index=True))
    tally.table("table", stored.table, table_of(measured))
    tally.same("left_out", stored.left_out, left_out)
    tally.did(_said(len(heads)))


def check_topk(inputs: Inputs, stored: TopK, tally: Tally) -> None:
    model, s, neurons = inputs.model, inputs.settings, inputs["neurons"]
    sizes, layers = model.sizes, range(neurons.first_layer, model.sizes.layers)
    counts = neuron_counts(sizes.neurons, () if s.fixed_k is None else s.fixed_k.values())
    tops, measured, ks, left_out = [], {}, {}, {}
    for operator, split in inputs.splits.items():
        random = random_source(s.seed, "topk", operator)
        ranking = neurons.ranking(operator, s.effect, s.rank)
        ranked = ranking.neuron.to_numpy().reshape(len(layers), -1)
        orders = {
            layer: [found, *(random.permutation(sizes.neurons) for _ in range(s.sizes.draws))]
            for layer, found in zip(layers, ranked, strict=True)
        }
        ours, theirs = (stored_curve(stored.curve, operator, which, counts) for which in (FOUND, RANDOM))
        chosen = max(smallest_on_plateau(ours), 1) if s.fixed_k is None else counts.index(s.fixed_k[operator])
        tried = _tried(inputs, "topk", operator, len(counts), chosen)
        some = [counts[i] for i in tried]
        kept = {layer: nested_sets(mine, some).numpy() for layer, mine in orders.items()}
        heads = inputs["circuit"].keeps(operator, sizes.layers, sizes.heads).numpy()
        again = _judged(inputs, tally, split.evaluation, heads, kept, model.positions.last)
        _compare_curve(tally, stored.curve, operator, some, again, s.sizes.draws, random)
        tops.append(best_of_layers(ranking, counts[chosen]))
        measured[operator], ks[operator] = beside_random(ours[chosen], theirs[chosen]), counts[chosen]
        left_out[operator] = len(split.evaluation) - ours[chosen]["faithfulness"].n
    tally.table("top", stored.top, pd.concat(tops, ignore_index=True))
    tally.table("table", stored.table, table_of(measured))
    tally.same("k", stored.k, ks)
    tally.same("left_out", stored.left_out, left_out)
    tally.same("mlp_size", stored.mlp_size, sizes.neurons)
    tally.did(_said(len(tops)))


def check_mlp0(inputs: Inputs, stored: FirstMlp, tally: Tally) -> None:
    model, s = inputs.model, inputs.settings
    size, named = model.sizes.neurons, model.positions.named()
    counts = [max(round(share * size), int(share > 0)) for share in SHARES]
    measured, enough = {}, {}
    for operator, split in inputs.splits.items():
        random, choose = random_source(s.seed, "mlp0", operator), inputs.chooser("mlp0", operator)
        neurons, n = some_of(choose, size, FIRST_MLP), s.sizes.first_mlp
        places = [Place(Site.NEURONS, 0, int(neuron), named[p]) for p in POSITIONS for neuron in neurons]
        found = patched_effects(model, split.discovery[:n], split.counterfactuals[:n], places).astype(np.float32)
        by_position = found.reshape(len(POSITIONS), len(neurons), *found.shape[1:])
        averaged = np.concatenate([by_position, by_position.mean(0, keepdims=True)]).reshape(-1, *found.shape[1:])
        where = {"position": np.repeat([*POSITIONS, ALL_POSITIONS], len(neurons)), "neuron": np.tile(neurons, 4)}
        which = pd.DataFrame({"operator": operator, **where})
        compare_effects(tally, stored.effects, which, averaged, random)
        strongest = stored.strongest(operator, s.effect)
        orders = [strongest, *(random.permutation(size) for _ in range(s.sizes.draws))]
        ours, theirs = (stored_curve(stored.curve, operator, which_one, counts) for which_one in (FOUND, RANDOM))
        chosen = smallest_on_plateau(ours)
        tried = _tried(inputs, "mlp0", operator, len(counts), chosen)
        some = [counts[i] for i in tried]
        heads = inputs["circuit"].keeps(operator, model.sizes.layers, model.sizes.heads).numpy()
        kept = {0: nested_sets(orders, some).numpy()}
        again = _judged(inputs, tally, split.evaluation, heads, kept, None)
        _compare_curve(tally, stored.curve, operator, some, again, s.sizes.draws, random)
        enough[operator], one = SHARES[chosen], SHARES.index(0.01)
        measured[operator] = {
            "faithfulness": ours[chosen]["faithfulness"],
            "accuracy": ours[chosen]["accuracy"],
            "faithfulness_of_1_percent": ours[one]["faithfulness"],
            "random_1_percent": theirs[one]["faithfulness"],
        }
    tally.table("table", stored.table, table_of(measured))
    tally.close("shares of the curve", stored.curve.share, stored.curve["size"] / size, tally.noise)
    tally.same("enough", stored.enough, enough)
    tally.same("largest number of tuning", stored.tuning.shape[1] - 1, s.max_operand)
    _check_tuning(inputs, stored, tally)
    tally.did(f"{FIRST_MLP} neurons, {_said(len(measured))}, and what numbers neurons respond to")


@torch.no_grad()
def _check_tuning(inputs: Inputs, stored: FirstMlp, tally: Tally) -> None:
    """With another second operand, which cannot matter at op1."""
    model, at = inputs.model, inputs.model.positions.op1
    numbers = some_of(inputs.chooser("mlp0", "tuning"), stored.tuning.shape[1], 50)
    prompts = Prompts(numbers, np.zeros_like(numbers), np.ones_like(numbers))
    with capturing(model, neurons=[0], keep=lambda x: x[:, at].double().cpu()) as seen:
        model.logits(model.encode(prompts))
    again = seen.neurons[0].T.numpy()
    scale = np.abs(again).mean() * tally.noise.relative
    tally.close("tuning", stored.tuning[:, numbers], again, tally.noise, more=scale)


def check_bag(inputs: Inputs, stored: Bag, tally: Tally) -> None:
    """All circuits: they are few."""
    model, s, classify = inputs.model, inputs.settings, inputs["classify"]
    final = None if inputs.final is None else inputs.final.classify
    circuits, present = 0, []
    for operator, split in inputs.splits.items():
        if operator not in classify.operators:
            continue
        random, of = random_source(s.seed, "bag", operator), association(classify, operator, CALIBRATED)
        kept = kept_neurons(of, classify, final, random)
        masks = of.masks(np.stack(list(kept.values())), model.sizes.neurons)
        heads = inputs["circuit"].keeps(operator, model.sizes.layers, model.sizes.heads).numpy()
        neurons = {layer: mask.numpy() for layer, mask in masks.items()}
        scored, scale = _judged(inputs, tally, split.evaluation, heads, neurons, model.positions.last)
        measured = scale.measure(scored.values, random)
        rows = [
            {"operator": operator, "neurons": name, "kept": int(some.sum()), "measure": m, **asdict(of_circuit[m])}
            for (name, some), of_circuit in zip(kept.items(), measured, strict=True)
            for m in MEASURES
        ]
        more = np.repeat(scored.unsure.mean(1), len(MEASURES))
        _compare_rows(tally, stored.curve, pd.DataFrame(rows), ["operator", "neurons"], more, scale)
        if final is not None:
            present += [{"operator": operator, **row} for row in present_rows(classify, final, operator, random)]
        circuits += len(kept)
    tally.same("circuits", len(stored.curve), circuits * len(MEASURES))
    tally.table("present", stored.present, pd.DataFrame(present, columns=["operator", "criterion", *MEAN]))
    tally.did(f"all {circuits} circuits, in whole passes")


def check_heads(inputs: Inputs, stored: Heads, tally: Tally) -> None:
    """Attention and isolation of some heads; roles of all, from the stored attention."""
    model, s, circuit = inputs.model, inputs.settings, inputs["circuit"]
    sizes, roles, first, isolated = model.sizes, [], 0, 0
    for operator, split in inputs.splits.items():
        chosen, prompts = circuit.chosen(operator), split.evaluation
        patterns = np.asarray(stored.patterns[first : first + len(chosen)])
        first += len(chosen)
        roles.append(roles_of(model, circuit, operator, patterns))
        some = some_of(inputs.chooser("heads", operator), len(chosen), HEADS)
        if not len(some):
            continue
        attention = attention_patterns(model, prompts, [chosen[i] for i in some], advance=lambda n: None)
        tally.close("patterns", patterns[some], attention, tally.noise)
        keeps = circuit.keeps(operator, sizes.layers, sizes.heads)
        before, scale = _judged(inputs, tally, prompts, keeps.numpy(), {}, None)
        edits = mean_ablation(model, inputs["means"].on(model.device), keeps)
        for i in some:
            (layer, head), at = chosen[i], int(patterns[i, -1].argmax())
            after = before
            if layer > 0 and at > model.positions.op1:
                with cutting(model, range(layer), at, range(model.positions.op1, at)):
                    after = scores(model, prompts, edits, 1, s.judging, tally.noise.tie)
            random = random_source(s.seed, "heads", operator, layer, head)
            rows = isolation_rows(scale, before.values[0], after.values[0], random)
            rows = rows.assign(operator=operator, layer=layer, head=head)
            more = np.full(len(rows), max(before.unsure.mean(), after.unsure.mean()))
            on = ["operator", "layer", "head", "when"]
            _compare_rows(tally, stored.isolation, rows, on, more, scale)
            isolated += 1
    tally.table("roles", stored.roles, pd.concat(roles, ignore_index=True))
    tally.same("positions", stored.positions, list(model.encoder.labels))
    tally.did(f"attention and isolation of {isolated} heads, and the roles of all")


def _said(operators: int) -> str:
    return f"up to {1 + SIZES} circuits of each of {operators} operators and random ones beside them, in whole passes"


def _tried(inputs: Inputs, stage: str, operator: str, sizes: int, chosen: int) -> list[int]:
    """The chosen circuit, and some others."""
    others = some_of(inputs.chooser(stage, operator, "sizes"), sizes, SIZES).tolist()
    return sorted({chosen, *others})


def _judged(
    inputs: Inputs,
    tally: Tally,
    prompts: Prompts,
    heads: NDArray[np.bool_],
    neurons: dict[int, NDArray[np.bool_]],
    neurons_from: int | None,
) -> tuple[Scored, Baseline]:
    """Scores of circuits, and the scale they are judged on."""
    given = inputs.model, inputs["means"], prompts
    judging, tie = inputs.settings.judging, tally.noise.tie
    scored = circuit_scores(*given, heads, neurons, neurons_from, judging, tie)
    return scored, baseline(*given, judging)


def _compare_curve(
    tally: Tally,
    stored: pd.DataFrame,
    operator: str,
    sizes: Sequence[int],
    judged: tuple[Scored, Baseline],
    draws: int,
    random: np.random.Generator,
) -> None:
    """Circuits in the order of their size, behind them as many for the first random draw, and so on. The resamples depend on
    the prompts only, so that some circuits have the intervals that they have among all."""
    scored, scale = judged
    values = scored.values.reshape(1 + draws, len(sizes), *scored.values.shape[1:])
    unsure = scored.unsure.reshape(1 + draws, len(sizes), -1)
    ours, theirs = scale.measure(values[0], random), scale.measure_draws(values[1:], random)
    table = curve_table(operator, sizes, ours, theirs)
    more = np.repeat(np.concatenate([unsure[0].mean(-1), unsure[1:].mean((0, -1))]), len(MEASURES))
    _compare_rows(tally, stored, table, ["operator", "circuit", "size"], more, scale)


def _compare_rows(
    tally: Tally,
    stored: pd.DataFrame,
    now: pd.DataFrame,
    on: list[str],
    unsure: NDArray[np.float64],
    scale: Baseline,
) -> None:
    """Measures of circuits, of which a share of prompts is `unsure` to be right. A prompt whose span is about the smallest that
    counts may be left out or not; with one of these, faithfulness and intervals say nothing."""
    noise = tally.noise
    span = np.abs(scale.whole_model - scale.empty)
    at_border = not scale.judging.ratio_of_means and (np.abs(span - SMALLEST_SPAN) < noise.absolute).any()
    # What is divided by a small span is as much noisier.
    smallest = max(float(np.min(span[span >= SMALLEST_SPAN], initial=1.0)), SMALLEST_SPAN)
    on = [*on, "measure"]
    for measure, rows in now.groupby("measure", sort=False):
        more = 4 * unsure[rows.index] if measure == "accuracy" else np.zeros(len(rows))
        if measure == "faithfulness":
            more = more + noise.absolute / smallest / len(span)
        columns = [*on, *(["value"] if at_border else [c for c in rows.columns if c not in on])]
        if measure != "faithfulness" or not at_border:
            tally.rows(str(measure), stored, rows[columns].assign(allowed=more).reset_index(drop=True), on, noise)


def stored_curve(curve: pd.DataFrame, operator: str, circuit: str, sizes: Sequence[int]) -> Curve:
    """The measures of circuits of these sizes, as a stage had them when it chose among them."""
    rows = curve[(curve.operator == operator) & (curve.circuit == circuit)]
    by_size = {(row["size"], row["measure"]): Mean(**mean_entry(row)) for row in rows.to_dict("records")}
    return [{m: by_size[size, m] for m in MEASURES} for size in sizes]
