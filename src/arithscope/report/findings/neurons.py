"""What single neurons show: their effects, how few suffice, the rules they match, and whether operators share them."""

from __future__ import annotations

import pandas as pd

from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, CRITERIA, RAW, Classification
from arithscope.experiments.neurons import EXACT, NeuronEffects, neuron_name
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.topk import TopK
from arithscope.figures.patterns import match_to_walk_through
from arithscope.figures.style import SIGNS
from arithscope.heuristics.kinds import kind_name
from arithscope.report.findings.finding import Finding
from arithscope.report.formatting import as_mean, gaps, listed, means_of, number, overall, shown, span, verdict
from arithscope.stats.intervals import Mean, average

MOST_KINDS = 3  # that are named


def neuron_effects(result: NeuronEffects) -> Finding:
    rows = result.effects[result.effects.measure == "probability"]
    groups = {str(o): mine for o, mine in rows.groupby("operator", sort=False)}
    above, below = ({o: int(which(m).sum()) for o, m in groups.items()} for which in (_above, _below))
    best = {o: mine.iloc[int(mine.value.argmax())] for o, mine in groups.items()}
    exact = (rows.method == EXACT).mean()
    how = "all measured exactly" if exact == 1 else f"{exact:.0%} of them measured exactly, the others estimated"
    return Finding(
        f"Of {len(rows) // max(1, len(groups)):,} neurons from layer {result.first_layer} on, {how}, {span(above)} "
        f"have a mean effect clearly above zero, depending on the operator, and {span(below)} one clearly below.",
        {
            "clearly above zero": above,
            "clearly below zero": below,
            "strongest neuron": {o: neuron_name(row.layer, row.neuron) for o, row in best.items()},
            "its mean effect": {o: as_mean(row) for o, row in best.items()},
            "its median effect": {o: float(row["median"]) for o, row in best.items()},
        },
    )


def _above(rows: pd.DataFrame) -> pd.Series[bool]:
    return rows.low > 0


def _below(rows: pd.DataFrame) -> pd.Series[bool]:
    return rows.high < 0


def screens_against_exact(result: NeuronEffects) -> Finding:
    rows = result.agreement[result.agreement.measure == "probability"]
    if rows.empty:
        return Finding("Not compared: that takes a run in which the effects of all neurons are exact.")
    parts = [
        f"{screen} {number(float(mine.rank_correlation.mean()))} ({number(float(mine.recall_5.mean()))})"
        for screen, mine in rows.groupby("screen", sort=False)
    ]
    return Finding(
        "Rank correlation with exact effects, and in brackets the share of the exact best 5 % among the best 5 % of "
        f"the estimate, both averaged over operators: {', '.join(parts)}."
    )


def faithfulness_by_neurons(result: TopK) -> Finding:
    ours, random, right = (means_of(result.table, name) for name in ("faithfulness", "random_faithfulness", "accuracy"))
    return Finding(
        f"Of each MLP's {result.mlp_size:,} neurons {span(result.k)} are kept, depending on the operator. Faithfulness "
        f"is then {overall(ours)}, and accuracy {overall(right)}; with as many random neurons faithfulness is "
        f"{overall(random)}."
        + verdict(gaps(ours, random), "the chosen ones are clearly better", "the chosen ones are clearly worse"),
        {"neurons of each MLP": result.k, "faithfulness": ours, "accuracy": right, "faithfulness, random ones": random},
    )


def heuristic_gallery(patterns: ActivationMaps, classify: Classification) -> Finding:
    kinds = kind_shares(classify.shares, CALIBRATED)
    if not kinds:
        return Finding("No neuron has a calibrated match.")
    foremost = [f"{name} ({shown(mean)})" for name, mean in kinds[:MOST_KINDS]]
    return Finding(
        f"Neurons match heuristics of {len(kinds)} kinds after calibration. The most common, with the share of top "
        f"neurons that match one, averaged over operators: {listed(foremost)}."
    )


def kind_shares(shares: pd.DataFrame, criterion: str) -> list[tuple[str, Mean]]:
    """Kinds of heuristics that some top neuron matches, with the share of neurons that do, averaged over operators; the most
    common first."""
    rows = shares[(shares.layer == ALL_LAYERS) & (shares.kind != ANY) & (shares.criterion == criterion)]
    found = [
        (kind_name(str(kind), str(on)), average([as_mean(row) for row in mine.to_dict("records")]))
        for (kind, on), mine in rows.groupby(["kind", "on"], sort=False)
    ]
    return sorted((entry for entry in found if entry[1].value > 0), key=lambda entry: -entry[1].value)


def matching_walkthrough(patterns: ActivationMaps, classify: Classification) -> Finding:
    row = match_to_walk_through(classify)
    if row is None:
        return Finding("No direct heuristic is matched after calibration.")
    return Finding(
        f"{neuron_name(row.layer, row.neuron)} for {SIGNS[str(row.operator)]} shares {row.overlap:,} of its "
        f"{row['size']:,} foremost prompts with “{row.heuristic}”: score {number(row.score)}, where chance would bring "
        f"{number(row.chance)} and its value vector alone {number(row.expected)}."
    )


def example_neurons(patterns: ActivationMaps, classify: Classification) -> Finding:
    found, total = int(classify.neurons.calibrated.sum()), len(classify.neurons)
    counts = {
        str(o): f"{mine.calibrated.sum():,} of {len(mine):,}"
        for o, mine in classify.neurons.groupby("operator", sort=False)
    }
    direct = {str(o): float(mine.direct.mean()) for o, mine in patterns.neurons.groupby("operator", sort=False)}
    return Finding(
        f"{found:,} of {total:,} top neurons, counted by operator, have a calibrated heuristic. Direct ones fire for "
        "certain results and promote them.",
        {"with a calibrated heuristic": counts, "share of direct neurons": direct},
    )


def unclassified_neurons(patterns: ActivationMaps, classify: Classification) -> Finding:
    left = classify.neurons[~classify.neurons.calibrated]
    raw_only = {str(o): f"{mine.raw.sum():,} of {len(mine):,}" for o, mine in left.groupby("operator", sort=False)}
    known = patterns.neurons.merge(left[["operator", "layer", "neuron"]])
    best = {str(o): mine.iloc[int(mine.effect.argmax())] for o, mine in known.groupby("operator", sort=False)}
    return Finding(
        f"{len(left):,} of {len(classify.neurons):,} top neurons, counted by operator, have no calibrated heuristic; "
        f"{int(left.raw.sum()):,} of these have one that scores at least 0.6.",
        {
            "of those left, with a raw match": raw_only,
            "the strongest of them": {o: neuron_name(row.layer, row.neuron) for o, row in best.items()},
        },
    )


def classified_shares(result: Classification) -> Finding:
    raw, calibrated = (means_of(result.table, f"{criterion}_share") for criterion in CRITERIA)
    covered = means_of(result.table, "coverage_calibrated")
    return Finding(
        f"By the paper's criterion {overall(raw)} of the top neurons are classified, after calibration "
        f"{overall(calibrated)}. What lies between can be owed to chance and the value vectors. Calibrated heuristics "
        f"explain {overall(covered)} of a neuron's pattern.",
        {"raw": raw, "calibrated": calibrated, "pattern explained, calibrated": covered},
    )


def kinds_by_layer(result: Classification) -> Finding:
    sentences = []
    for criterion in CRITERIA:
        kinds = kind_shares(result.shares, criterion)
        if not kinds:
            sentences.append(f"No neuron has a {criterion} match.")
            continue
        named = [f"{name} {shown(mean)}" for name, mean in kinds[:MOST_KINDS]]
        sentences.append(
            f"Most common {'by raw score' if criterion == RAW else 'after calibration'}: {', '.join(named)}."
        )
    s = result.shares
    layers = s[(s.kind == ANY) & (s.criterion == CALIBRATED) & (s.layer != ALL_LAYERS)].groupby("layer").value.mean()
    if len(layers) > 1:
        sentences.append(
            f"Averaged over operators, the largest share of calibrated neurons is in layer {layers.idxmax()} "
            f"({number(float(layers.max()))}), the smallest in layer {layers.idxmin()} ({number(float(layers.min()))})."
        )
    return Finding(" ".join(sentences))


def neuron_overlap(result: Overlap) -> Finding:
    table = result.table.dropna(subset=["iou"])
    if table.empty:
        return Finding("There is only one operator, so there is nothing to compare.")
    ends = [table.iloc[int(i)] for i in (table.iou.argmax(), table.iou.argmin())]
    most, least = (f"{SIGNS[str(r.operator)]} and {SIGNS[str(r.other)]} ({number(r.iou)})" for r in ends)
    said = f"Mean intersection over union of all pairs: {number(float(table.iou.mean()))}."
    return Finding(f"{said} Most alike: {most}; least: {least}." if len(table) > 1 else said)
