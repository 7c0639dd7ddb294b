"""Findings on single neurons: the first MLP, effects, top-k, heuristics, and overlap between operators."""

from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, CRITERIA, ONCE, RAW, Classification
from arithscope.experiments.mlp0 import ALL_POSITIONS, FirstMlp
from arithscope.experiments.neurons import NeuronEffects, neuron_name
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.topk import TopK
from arithscope.figures.activation_maps import walkthrough_match
from arithscope.figures.neurons import top_first_mlp_neurons
from arithscope.heuristics.kinds import kind_name
from arithscope.heuristics.overlaps import THRESHOLDS
from arithscope.report.findings.finding import Finding, Numbers, finding, per_operator, worded
from arithscope.report.formatting import as_mean, means_of, number, with_interval
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
    numbers: Numbers = {"clearly above zero": above, **_strongest(rows, layer=0)}
    return worded("first_mlp_effects", numbers, above=above, neurons=len(result.tuning))


@finding("first-mlp-faithfulness", FirstMlp)
def first_mlp_faithfulness(result: FirstMlp) -> Finding:
    sufficient = {o: f"{share:.1%}".replace(".0%", "%") for o, share in result.smallest_share.items()}
    means, random = means_of(result.table, "faithfulness_of_1_percent"), means_of(result.table, "random_1_percent")
    numbers: Numbers = {"share that suffices": sufficient, "top 1 %": means, "random 1 %": random}
    return worded("first_mlp_faithfulness", numbers, means=means, random=random)


@finding("number-tuning", FirstMlp)
def number_tuning(result: FirstMlp) -> Finding:
    best = top_first_mlp_neurons(result)[0]
    numbers = np.argsort(-result.tuning[best], kind="stable")[:MOST_NUMBERS]
    return worded("number_tuning", neuron=neuron_name(0, best), numbers=map(str, numbers))


@finding("neuron-effects", NeuronEffects)
def neuron_effects(result: NeuronEffects) -> Finding:
    rows = result.effects[result.effects.measure == "probability"]
    above = per_operator(rows, lambda r: int((r.low > 0).sum()))
    below = per_operator(rows, lambda r: int((r.high < 0).sum()))
    numbers: Numbers = {"clearly above zero": above, "clearly below zero": below, **_strongest(rows)}
    words = {"neurons": len(rows) // max(1, len(above)), "exact": (rows.method == EXACT).mean()}
    return worded("neuron_effects", numbers, first_layer=result.first_layer, above=above, below=below, **words)


@finding("attribution-against-exact", NeuronEffects)
def attribution_against_exact(result: NeuronEffects) -> Finding:
    table = result.agreement[result.agreement.measure == "probability"]
    if table.empty:
        return Finding("Not compared: this needs a run in which the effects of all neurons are exact.")
    methods = [
        f"{method} {number(float(rows.rank_correlation.mean()))} ({number(float(rows.recall_5.mean()))})"
        for method, rows in table.groupby("method", sort=False)
    ]
    return worded("attribution_against_exact", methods=methods)


@finding("faithfulness-by-neurons", TopK)
def faithfulness_by_neurons(result: TopK) -> Finding:
    means, random, accuracy = (means_of(result.table, m) for m in ("faithfulness", "random_faithfulness", "accuracy"))
    numbers: Numbers = {
        "neurons per MLP": result.k,
        "faithfulness": means,
        "accuracy": accuracy,
        "faithfulness, random neurons": random,
    }
    words = {"means": means, "random": random, "accuracy": accuracy}
    return worded("faithfulness_by_neurons", numbers, k=result.k, mlp_size=result.mlp_size, **words)


@finding("heuristic-gallery", Classification)
def heuristic_gallery(result: Classification) -> Finding:
    kinds = _shares_of_kinds(result.shares, CALIBRATED, ONCE)
    if not kinds:
        return Finding("No neuron has a calibrated match.")
    named = [f"{name} ({with_interval(mean)})" for name, mean in kinds[:MOST_KINDS]]
    return worded("heuristic_gallery", kinds=len(kinds), named=named)


def _shares_of_kinds(shares: pd.DataFrame, criterion: str, counting: str) -> list[tuple[str, Mean]]:
    """Share of top neurons that match each kind of heuristic, averaged over operators; most common kinds first."""
    rows = shares[(shares.layer == ALL_LAYERS) & (shares.kind != ANY) & (shares.criterion == criterion)]
    rows = rows[rows.counting == counting]
    kinds = [
        (kind_name(str(kind), str(on)), average([as_mean(row) for row in group.to_dict("records")]))
        for (kind, on), group in rows.groupby(["kind", "on"], sort=False)
    ]
    return sorted((entry for entry in kinds if entry[1].value > 0), key=lambda entry: -entry[1].value)


@finding("matching-walkthrough", Classification)
def matching_walkthrough(result: Classification) -> Finding:
    match = walkthrough_match(result)
    if match is None:
        return Finding("No direct heuristic is matched after calibration.")
    return worded("matching_walkthrough", match=match, neuron=neuron_name(match.layer, match.neuron))


@finding("example-neurons", ActivationMaps, Classification)
def example_neurons(maps: ActivationMaps, classify: Classification) -> Finding:
    counts = per_operator(classify.neurons, lambda r: f"{r.calibrated.sum():,} of {len(r):,}")
    direct = per_operator(maps.neurons, lambda r: float(r.direct.mean()))
    numbers: Numbers = {"with a calibrated heuristic": counts, "share of direct neurons": direct}
    return worded("example_neurons", numbers, neurons=classify.neurons)


@finding("unclassified-neurons", ActivationMaps, Classification)
def unclassified_neurons(maps: ActivationMaps, classify: Classification) -> Finding:
    rest = classify.neurons[~classify.neurons.calibrated]
    effects = maps.neurons.merge(rest[["operator", "layer", "neuron"]])
    best: dict[str, Any] = per_operator(effects, lambda r: r.iloc[int(r.effect.argmax())])
    numbers = {
        "unclassified, with a raw match": per_operator(rest, lambda r: f"{r.raw.sum():,} of {len(r):,}"),
        "strongest unclassified neuron": {o: neuron_name(row.layer, row.neuron) for o, row in best.items()},
    }
    return worded("unclassified_neurons", numbers, unclassified=rest, neurons=classify.neurons)


@finding("classified-shares", Classification)
def classified_shares(result: Classification) -> Finding:
    raw, calibrated = (means_of(result.table, f"{criterion}_share") for criterion in CRITERIA)
    explained = means_of(result.table, "coverage_calibrated")
    one_operand = means_of(result.table, "one_operand_share_of_matches")
    numbers: Numbers = {
        "raw": raw,
        "calibrated": calibrated,
        "calibrated, only where it fires negatively": means_of(result.table, "negative_only_share"),
        "calibrated matches of the result or both operands that one operand explains": one_operand,
        "variance explained, calibrated": explained,
    }
    return worded("classified_shares", numbers, raw=raw, calibrated=calibrated, explained=explained)


@finding("kinds-by-layer", Classification)
def kinds_by_layer(result: Classification) -> Finding:
    s = result.shares
    ways = {"by raw score": (RAW, ANY), "after calibration": (CALIBRATED, ANY), "counted once": (CALIBRATED, ONCE)}
    kinds = {name: _shares_of_kinds(s, *way)[:MOST_KINDS] for name, way in ways.items()}
    s = s[(s.kind == ANY) & (s.criterion == CALIBRATED) & (s.counting == ANY)]
    return worded("kinds_by_layer", kinds=kinds, layers=s[s.layer != ALL_LAYERS].groupby("layer").value.mean())


@finding("neuron-overlap", Overlap)
def neuron_overlap(result: Overlap) -> Finding:
    table = result.table.dropna(subset=["iou"])
    if table.empty:
        return Finding("There is only one operator, so there is nothing to compare.")
    largest, smallest = (table.iloc[int(i)] for i in (table.iou.argmax(), table.iou.argmin()))
    return worded("neuron_overlap", ious=table.iou, largest=largest, smallest=smallest)


@finding("share-by-threshold", Classification)
def share_by_threshold(result: Classification) -> Finding:
    means = {
        (criterion, threshold): {str(row["operator"]): as_mean(row) for row in rows.to_dict("records")}
        for (criterion, threshold), rows in result.thresholds.groupby(["criterion", "threshold"], sort=False)
    }
    ends = min(THRESHOLDS), max(THRESHOLDS)
    numbers: Numbers = {f"{c}, score ≥ {t}": means[c, t] for c in CRITERIA for t in THRESHOLDS}
    return worded("share_by_threshold", numbers, means=means, ends=ends, criteria=CRITERIA)
