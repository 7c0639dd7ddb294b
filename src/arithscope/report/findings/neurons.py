"""Findings on single neurons: the first MLP, effects, top-k, heuristics, and overlap between operators."""

from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, CRITERIA, RAW, Classification
from arithscope.experiments.mlp0 import ALL_POSITIONS, FirstMlp
from arithscope.experiments.neurons import NeuronEffects, neuron_name
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.topk import TopK
from arithscope.figures.activation_maps import walkthrough_match
from arithscope.figures.first_mlp import top_first_mlp_neurons
from arithscope.figures.style import SIGNS
from arithscope.heuristics.kinds import kind_name
from arithscope.report.findings.finding import Finding, Numbers, finding, per_operator
from arithscope.report.formatting import (
    as_mean,
    differences,
    listed,
    means_of,
    number,
    overall,
    span,
    verdict,
    with_interval,
)
from arithscope.settings import EXACT
from arithscope.stats.intervals import Mean, average

MOST_KINDS, MOST_NUMBERS = 3, 6  # that are named


def _strongest(rows: pd.DataFrame, layer: int | None = None) -> Numbers:
    """The neuron of largest mean effect of each operator; all are of one layer if it is given."""
    best: dict[str, Any] = per_operator(rows, lambda r: r.iloc[int(r.value.argmax())])
    return {
        "strongest neuron": {o: neuron_name(r.layer if layer is None else layer, r.neuron) for o, r in best.items()},
        "its mean effect": {o: as_mean(row) for o, row in best.items()},
        "its median effect": {o: float(row["median"]) for o, row in best.items()},
    }


@finding("first-mlp-effects", FirstMlp)
def first_mlp_effects(result: FirstMlp) -> Finding:
    rows = result.effects[(result.effects.measure == "probability") & (result.effects.position == ALL_POSITIONS)]
    above = per_operator(rows, lambda r: int((r.low > 0).sum()))
    return Finding(
        f"Averaged over the three positions, {span(above)} of the {len(result.tuning):,} neurons, depending on the operator, "
        "have a mean effect clearly above zero.",
        {"clearly above zero": above, **_strongest(rows, layer=0)},
    )


@finding("first-mlp-faithfulness", FirstMlp)
def first_mlp_faithfulness(result: FirstMlp) -> Finding:
    sufficient = {o: f"{share:.1%}".replace(".0%", "%") for o, share in result.smallest_share.items()}
    means, random = means_of(result.table, "faithfulness_of_1_percent"), means_of(result.table, "random_1_percent")
    return Finding(
        f"With the top 1 % of its neurons faithfulness is {overall(means)}, with a random 1 % {overall(random)}."
        + verdict(
            differences(means, random), "the top neurons are clearly better", "the top neurons are clearly worse"
        ),
        {"share that suffices": sufficient, "top 1 %": means, "random 1 %": random},
    )


@finding("number-tuning", FirstMlp)
def number_tuning(result: FirstMlp) -> Finding:
    best = top_first_mlp_neurons(result)[0]
    numbers = np.argsort(-result.tuning[best], kind="stable")[:MOST_NUMBERS]
    return Finding(
        f"The top neuron, {neuron_name(0, best)}, is most active on the numbers {listed(map(str, numbers))}."
    )


@finding("neuron-effects", NeuronEffects)
def neuron_effects(result: NeuronEffects) -> Finding:
    rows = result.effects[result.effects.measure == "probability"]
    above, below = (
        per_operator(rows, lambda r: int((r.low > 0).sum())),
        per_operator(rows, lambda r: int((r.high < 0).sum())),
    )
    exact = (rows.method == EXACT).mean()
    method = "all effects exact" if exact == 1 else f"{exact:.0%} of effects exact, the others estimated"
    return Finding(
        f"{len(rows) // max(1, len(above)):,} neurons from layer {result.first_layer} on ({method}): {span(above)} with a mean "
        f"effect clearly above zero and {span(below)} clearly below, depending on the operator.",
        {"clearly above zero": above, "clearly below zero": below, **_strongest(rows)},
    )


@finding("attribution-against-exact", NeuronEffects)
def attribution_against_exact(result: NeuronEffects) -> Finding:
    table = result.agreement[result.agreement.measure == "probability"]
    if table.empty:
        return Finding("Not compared: this needs a run in which the effects of all neurons are exact.")
    parts = [
        f"{method} {number(float(rows.rank_correlation.mean()))} ({number(float(rows.recall_5.mean()))})"
        for method, rows in table.groupby("method", sort=False)
    ]
    return Finding(
        "Rank correlation with exact effects (in brackets: recall of the exact top 5 % among the estimated top 5 %), averaged "
        f"over operators: {', '.join(parts)}."
    )


@finding("faithfulness-by-neurons", TopK)
def faithfulness_by_neurons(result: TopK) -> Finding:
    means, random, right = (means_of(result.table, m) for m in ("faithfulness", "random_faithfulness", "accuracy"))
    return Finding(
        f"With {span(result.k)} of each MLP's {result.mlp_size:,} neurons, depending on the operator, faithfulness is "
        f"{overall(means)} and accuracy {overall(right)}; with as many random neurons faithfulness is {overall(random)}."
        + verdict(
            differences(means, random), "the top neurons are clearly better", "the top neurons are clearly worse"
        ),
        {"neurons per MLP": result.k, "faithfulness": means, "accuracy": right, "faithfulness, random neurons": random},
    )


@finding("heuristic-gallery", Classification)
def heuristic_gallery(result: Classification) -> Finding:
    kinds = _shares_of_kinds(result.shares, CALIBRATED)
    if not kinds:
        return Finding("No neuron has a calibrated match.")
    named = [f"{name} ({with_interval(mean)})" for name, mean in kinds[:MOST_KINDS]]
    return Finding(
        f"Calibrated matches are of {len(kinds)} kinds. The most common, with the share of top neurons that match one, "
        f"averaged over operators: {listed(named)}."
    )


def _shares_of_kinds(shares: pd.DataFrame, criterion: str) -> list[tuple[str, Mean]]:
    """Share of top neurons that match each kind of heuristic, averaged over operators; most common kinds first."""
    rows = shares[(shares.layer == ALL_LAYERS) & (shares.kind != ANY) & (shares.criterion == criterion)]
    kinds = [
        (kind_name(str(kind), str(on)), average([as_mean(row) for row in group.to_dict("records")]))
        for (kind, on), group in rows.groupby(["kind", "on"], sort=False)
    ]
    return sorted((entry for entry in kinds if entry[1].value > 0), key=lambda entry: -entry[1].value)


@finding("matching-walkthrough", Classification)
def matching_walkthrough(result: Classification) -> Finding:
    row = walkthrough_match(result)
    if row is None:
        return Finding("No direct heuristic is matched after calibration.")
    return Finding(
        f"{neuron_name(row.layer, row.neuron)} for {SIGNS[str(row.operator)]}: {row.overlap:,} of its top {row['size']:,} "
        f"prompts satisfy “{row.heuristic}”. Its score is {number(row.score)}; {number(row.chance)} is expected by chance and "
        f"{number(row.expected)} from the value vector alone."
    )


@finding("example-neurons", ActivationMaps, Classification)
def example_neurons(maps: ActivationMaps, classify: Classification) -> Finding:
    counts = per_operator(classify.neurons, lambda r: f"{r.calibrated.sum():,} of {len(r):,}")
    return Finding(
        f"{classify.neurons.calibrated.sum():,} of {len(classify.neurons):,} top neurons (counted per operator) have a "
        "calibrated heuristic. Direct neurons fire for certain results and promote them.",
        {
            "with a calibrated heuristic": counts,
            "share of direct neurons": per_operator(maps.neurons, lambda r: float(r.direct.mean())),
        },
    )


@finding("unclassified-neurons", ActivationMaps, Classification)
def unclassified_neurons(maps: ActivationMaps, classify: Classification) -> Finding:
    rest = classify.neurons[~classify.neurons.calibrated]
    effects = maps.neurons.merge(rest[["operator", "layer", "neuron"]])
    best: dict[str, Any] = per_operator(effects, lambda r: r.iloc[int(r.effect.argmax())])
    return Finding(
        f"{len(rest):,} of {len(classify.neurons):,} top neurons (counted per operator) have no calibrated heuristic; "
        f"{int(rest.raw.sum()):,} of these have one that scores at least 0.6.",
        {
            "unclassified, with a raw match": per_operator(rest, lambda r: f"{r.raw.sum():,} of {len(r):,}"),
            "strongest unclassified neuron": {o: neuron_name(row.layer, row.neuron) for o, row in best.items()},
        },
    )


@finding("classified-shares", Classification)
def classified_shares(result: Classification) -> Finding:
    raw, calibrated = (means_of(result.table, f"{criterion}_share") for criterion in CRITERIA)
    explained = means_of(result.table, "coverage_calibrated")
    return Finding(
        f"By the paper's criterion {overall(raw)} of the top neurons are classified, after calibration {overall(calibrated)}. "
        "Chance and the value vectors can account for the difference. Calibrated heuristics explain "
        f"{overall(explained)} of the variance of a neuron's activation map.",
        {"raw": raw, "calibrated": calibrated, "variance explained, calibrated": explained},
    )


@finding("kinds-by-layer", Classification)
def kinds_by_layer(result: Classification) -> Finding:
    sentences = []
    for criterion in CRITERIA:
        kinds = [
            f"{name} {with_interval(mean)}" for name, mean in _shares_of_kinds(result.shares, criterion)[:MOST_KINDS]
        ]
        how = "by raw score" if criterion == RAW else "after calibration"
        sentences.append(f"Most common {how}: {', '.join(kinds)}." if kinds else f"No neuron has a {criterion} match.")
    s = result.shares
    layers = s[(s.kind == ANY) & (s.criterion == CALIBRATED) & (s.layer != ALL_LAYERS)].groupby("layer").value.mean()
    if len(layers) > 1:
        sentences.append(
            f"Averaged over operators, layer {layers.idxmax()} has the largest share of neurons with a calibrated match "
            f"({number(float(layers.max()))}), layer {layers.idxmin()} the smallest ({number(float(layers.min()))})."
        )
    return Finding(" ".join(sentences))


@finding("neuron-overlap", Overlap)
def neuron_overlap(result: Overlap) -> Finding:
    table = result.table.dropna(subset=["iou"])
    if table.empty:
        return Finding("There is only one operator, so there is nothing to compare.")
    pairs = [table.iloc[int(i)] for i in (table.iou.argmax(), table.iou.argmin())]
    most, least = (f"{SIGNS[str(p.operator)]} and {SIGNS[str(p.other)]} ({number(p.iou)})" for p in pairs)
    text = f"Mean intersection over union of all pairs of operators: {number(float(table.iou.mean()))}."
    return Finding(f"{text} Largest: {most}; smallest: {least}." if len(table) > 1 else text)
