"""Findings on single neurons: the first MLP, effects, top-k, heuristics, and overlap between operators."""

from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, CRITERIA, ONCE, RAW, Classification
from arithscope.experiments.common.result import with_average
from arithscope.experiments.mlp0 import ALL_POSITIONS, FirstMlp
from arithscope.experiments.neurons import COMPARED, NeuronEffects, neuron_name
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.topk import TopK
from arithscope.figures.activation_maps import walkthrough_match
from arithscope.figures.neurons import top_first_mlp_neurons
from arithscope.heuristics.kinds import kind_name
from arithscope.heuristics.overlaps import THRESHOLDS
from arithscope.report.findings.finding import Finding, Numbers, finding, per_operator, worded
from arithscope.report.formatting import as_mean, means_of, number, with_interval
from arithscope.settings import EXACT, MEAN, MEAN_ABS, MEAN_STD
from arithscope.stats.intervals import Mean, average, signs_of_rows

MOST_KINDS, MOST_NUMBERS = 3, 6  # that are named
RANKING_NAMES = {MEAN: "mean effect", MEAN_ABS: "mean absolute effect", MEAN_STD: "mean plus standard deviation"}


def _strongest(rows: pd.DataFrame, layer: int | None = None) -> Numbers:
    """The neuron of largest mean effect of each operator; all are of one layer if it is given."""
    best: dict[str, Any] = per_operator(rows, lambda r: r.iloc[int(r.value.argmax())])
    return {
        "strongest neuron": {o: neuron_name(r.layer if layer is None else layer, r.neuron) for o, r in best.items()},
        "its mean effect": {o: as_mean(row) for o, row in best.items()},
        "its median effect": {o: float(row["median"]) for o, row in best.items()},
    }


def _clearly_above(rows: pd.DataFrame) -> dict[str, int]:
    """By operator, how many effects are clearly above zero, corrected for all of the table. (How many are below cannot be
    said: effects are unbounded above, and a sample without the rare large ones looks clearly negative.)"""
    signs = signs_of_rows(rows.value, rows.low, rows.high, rows.n)
    return per_operator(rows.assign(above=signs == 1), lambda r: int(r.above.sum()))


@finding("first-mlp-effects", FirstMlp)
def first_mlp_effects(result: FirstMlp) -> Finding:
    rows = result.effects[(result.effects.measure == "probability") & (result.effects.position == ALL_POSITIONS)]
    above = _clearly_above(rows)
    numbers: Numbers = {"clearly above zero": above, **_strongest(rows, layer=0)}
    positions = result.effects.position.nunique() - 1  # one stands for their average
    return worded("first_mlp_effects", numbers, above=above, neurons=len(result.tuning), positions=positions)


@finding("first-mlp-faithfulness", FirstMlp)
def first_mlp_faithfulness(result: FirstMlp) -> Finding:
    sufficient = {o: f"{share:.1%}".replace(".0%", "%") for o, share in result.smallest_share.items()}
    names = ("faithfulness_of_1_percent", "random_1_percent", "reduced_faithfulness_of_1_percent")
    means, random, reduced = (means_of(result.table, name) for name in names)
    numbers: Numbers = {
        "share that suffices": sufficient,
        "top 1 %": means,
        "random 1 %": random,
        "top 1 %, later MLPs reduced": reduced,
    }
    return worded("first_mlp_faithfulness", numbers, means=means, random=random, reduced=reduced)


@finding("number-tuning", FirstMlp, Accuracy)
def number_tuning(result: FirstMlp, accuracy: Accuracy) -> Finding:
    best = top_first_mlp_neurons(result)[0]
    numbers = accuracy.stratum.sides[0][np.argsort(-result.tuning[best], kind="stable")[:MOST_NUMBERS]]
    return worded("number_tuning", neuron=neuron_name(0, best), numbers=map(str, numbers))


@finding("neuron-effects", NeuronEffects)
def neuron_effects(result: NeuronEffects) -> Finding:
    rows = result.effects[result.effects.measure == "probability"]
    above = _clearly_above(rows)
    halves = result.split_half[result.split_half.measure == "probability"]
    reliable = {by: _correlations(halves[halves.ranking == by]) for by in COMPARED}
    logits = result.measures[(result.measures.measure == "logit") & (result.measures.ranking == MEAN_ABS)]
    numbers: Numbers = {
        "first layer studied": result.first_layer,
        "clearly above zero": above,
        **_strongest(rows),
        **{f"two halves of the prompts, ranked by {RANKING_NAMES[by]}": found for by, found in reliable.items()},
        "ranking by logits against ranking by probabilities": _correlations(logits),
    }
    words = {"neurons": per_operator(rows, len), "exact": (rows.method == EXACT).mean()}
    words |= {f"by_{by}": _average(found) for by, found in reliable.items()}
    words["logits"] = _average(_correlations(logits))
    return worded("neuron_effects", numbers, first_layer=result.first_layer, above=above, **words)


def _correlations(rows: pd.DataFrame) -> dict[str, float]:
    return {str(row["operator"]): float(row["rank_correlation"]) for row in rows.to_dict("records")}


def _average(values: dict[str, float]) -> float:
    """Mean over operators; NaN if there are none."""
    return float(np.mean([*values.values()])) if values else float("nan")


@finding("attribution-against-exact", NeuronEffects)
def attribution_against_exact(result: NeuronEffects) -> Finding:
    table = result.agreement[(result.agreement.measure == "probability") & (result.agreement.ranking == MEAN_ABS)]
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
    floors = {m: means_of(result.table, f"floor_{m}") for m in ("faithfulness", "accuracy")}
    numbers: dict[str, Any] = {
        "neurons per MLP": result.k,
        "faithfulness": means,
        "accuracy": accuracy,
        "faithfulness, random neurons": random,
        **{f"{measure}, no neuron kept": floor for measure, floor in floors.items()},
    }
    in_use, other = result.rankings.ranking.unique()
    rows = result.rankings[result.rankings.ranking == other]
    k_of_other = per_operator(rows, lambda r: int(r.k.iloc[0]))
    numbers[f"neurons per MLP, ranked by {RANKING_NAMES[other]}"] = k_of_other
    numbers[f"accuracy, ranked by {RANKING_NAMES[other]}"] = means_of(rows, "accuracy")
    words: dict[str, Any] = {"means": means, "random": random, "accuracy": accuracy, "floor": floors["accuracy"]}
    words |= {"in_use": RANKING_NAMES[in_use], "other": RANKING_NAMES[other], "k_of_other": k_of_other}
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
    unique = means_of(with_average(result.unique.assign(measure="unique")), "unique")
    numbers: Numbers = {"top neurons that no other operator has": unique}
    return worded("neuron_overlap", numbers, ious=table.iou, largest=largest, smallest=smallest, unique=unique)


@finding("share-by-threshold", Classification)
def share_by_threshold(result: Classification) -> Finding:
    means = {
        (criterion, threshold): {str(row["operator"]): as_mean(row) for row in rows.to_dict("records")}
        for (criterion, threshold), rows in result.thresholds.groupby(["criterion", "threshold"], sort=False)
    }
    ends = min(THRESHOLDS), max(THRESHOLDS)
    numbers: Numbers = {f"{c}, score ≥ {t}": means[c, t] for c in CRITERIA for t in THRESHOLDS}
    return worded("share_by_threshold", numbers, means=means, ends=ends, criteria=CRITERIA)
