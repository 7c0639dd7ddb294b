"""What single neurons show: their effects, how few suffice, the rules they match, and whether operators share them."""

from __future__ import annotations

import pandas as pd

from arithscope.experiments.classify import ALL_LAYERS, ANY, CALIBRATED, CRITERIA, RAW, Classify
from arithscope.experiments.neurons import EXACT, Neurons, neuron_name
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.patterns import Patterns
from arithscope.experiments.topk import TopK
from arithscope.figures.patterns import match_to_walk_through
from arithscope.figures.style import SIGNS
from arithscope.heuristics.kinds import kind_name
from arithscope.measures import Mean, average
from arithscope.report.words import as_mean, by_sign, gaps, listed, means_of, number, shown, told, verdict

MOST_KINDS = 3  # that are named


def neuron_effects(result: Neurons) -> str:
    rows = result.effects[result.effects.measure == "probability"]
    counts, named = {}, {}
    for operator, mine in rows.groupby("operator", sort=False):
        counts[str(operator)] = f"{(mine.low > 0).sum():,} and {(mine.high < 0).sum():,}"
        best = mine.iloc[int(mine.value.argmax())]
        name = neuron_name(best.layer, best.neuron)
        named[str(operator)] = f"{name} ({shown(as_mean(best))}, median {number(best['median'])})"
    each = len(rows) // max(1, len(counts))
    exact = (rows.method == EXACT).mean()
    how = "all measured exactly" if exact == 1 else f"{exact:.0%} of them measured exactly, the others estimated"
    return (
        f"Of {each:,} neurons from layer {result.first_layer} on, {how}, so many have a mean effect clearly above zero, and so many "
        f"clearly below: {by_sign(counts)}. The largest mean effect: {by_sign(named)}."
    )


def screens_against_exact(result: Neurons) -> str:
    rows = result.agreement[result.agreement.measure == "probability"]
    if rows.empty:
        return "Not compared: that takes a run in which the effects of all neurons are exact."
    parts = [
        f"{screen} {number(float(mine.rank_correlation.mean()))} ({number(float(mine.recall_5.mean()))})"
        for screen, mine in rows.groupby("screen", sort=False)
    ]
    return (
        "Rank correlation with exact effects, and in brackets the share of the exact best 5 % among the best 5 % of the estimate, "
        f"both averaged over operators: {', '.join(parts)}."
    )


def faithfulness_by_neurons(result: TopK) -> str:
    ours, random = (means_of(result.table, name) for name in ("faithfulness", "random_faithfulness"))
    return (
        f"Neurons kept of each MLP's {result.mlp_size:,}: {by_sign(result.k)}. With them faithfulness is {told(ours)}, and accuracy "
        f"{told(means_of(result.table, 'accuracy'))}. As many random neurons: faithfulness {told(random)}."
        + verdict(gaps(ours, random), "the chosen ones are clearly better", "the chosen ones are clearly worse")
    )


def heuristic_gallery(patterns: Patterns, classify: Classify) -> str:
    kinds = kind_shares(classify.shares, CALIBRATED)
    if not kinds:
        return "No neuron has a calibrated match."
    foremost = [f"{name} ({shown(mean)})" for name, mean in kinds[:MOST_KINDS]]
    return (
        f"Neurons match heuristics of {len(kinds)} kinds after calibration. The most common, with the share of top neurons that match "
        f"one, averaged over operators: {listed(foremost)}."
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


def matching_walkthrough(patterns: Patterns, classify: Classify) -> str:
    row = match_to_walk_through(classify)
    if row is None:
        return "No direct heuristic is matched after calibration."
    return (
        f"{neuron_name(row.layer, row.neuron)} for {SIGNS[str(row.operator)]} shares {row.overlap:,} of its {row['size']:,} foremost "
        f"prompts with “{row.heuristic}”: score {number(row.score)}, where chance would bring {number(row.chance)} and its value "
        f"vector alone {number(row.expected)}."
    )


def example_neurons(patterns: Patterns, classify: Classify) -> str:
    counts = {
        str(o): f"{mine.calibrated.sum():,} of {len(mine):,}"
        for o, mine in classify.neurons.groupby("operator", sort=False)
    }
    direct = {str(o): number(float(mine.direct.mean())) for o, mine in patterns.neurons.groupby("operator", sort=False)}
    return (
        f"Top neurons with a calibrated heuristic: {by_sign(counts)}. Share of top neurons that are direct, firing for certain "
        f"results and promoting them: {by_sign(direct)}."
    )


def unclassified_neurons(patterns: Patterns, classify: Classify) -> str:
    counts, raw_only, named = {}, {}, {}
    for operator, mine in classify.neurons.groupby("operator", sort=False):
        left = mine[~mine.calibrated]
        counts[str(operator)] = f"{len(left):,} of {len(mine):,}"
        raw_only[str(operator)] = int(left.raw.sum())
        known = patterns.neurons[patterns.neurons.operator == operator].merge(left[["layer", "neuron"]])
        if len(known):
            best = known.iloc[int(known.effect.argmax())]
            named[str(operator)] = neuron_name(best.layer, best.neuron)
    strongest = f" The strongest of them: {by_sign(named)}." if named else ""
    return (
        f"Top neurons without a calibrated heuristic: {by_sign(counts)}; of these so many do score at least 0.6: "
        f"{by_sign(raw_only)}.{strongest}"
    )


def classified_shares(result: Classify) -> str:
    raw, calibrated = (means_of(result.table, f"{criterion}_share") for criterion in CRITERIA)
    covered = means_of(result.table, "coverage_calibrated")
    lost = {o: raw[o].value - calibrated[o].value for o in raw if o in calibrated and o in SIGNS}
    return (
        f"By the paper's criterion this share of top neurons is classified: {told(raw)}. Calibrated: {told(calibrated)}. The difference, "
        f"which chance and the value vectors may account for: {by_sign({o: number(x) for o, x in lost.items()})}. Calibrated heuristics "
        f"explain, of a neuron's pattern, {told(covered)}."
    )


def kinds_by_layer(result: Classify) -> str:
    sentences = []
    for criterion in CRITERIA:
        kinds = kind_shares(result.shares, criterion)
        if not kinds:
            sentences.append(f"No neuron has a {criterion} match.")
            continue
        named = [f"{name} {shown(mean)}" for name, mean in kinds[:MOST_KINDS]]
        sentences.append(f"Most common {'by raw score' if criterion == RAW else 'after calibration'}: {', '.join(named)}.")
    s = result.shares
    layers = s[(s.kind == ANY) & (s.criterion == CALIBRATED) & (s.layer != ALL_LAYERS)].groupby("layer").value.mean()
    if len(layers) > 1:
        sentences.append(
            f"Averaged over operators, the largest share of calibrated neurons is in layer {layers.idxmax()} "
            f"({number(float(layers.max()))}), the smallest in layer {layers.idxmin()} ({number(float(layers.min()))})."
        )
    return " ".join(sentences)


def neuron_overlap(result: Overlap) -> str:
    table = result.table.dropna(subset=["iou"])
    if table.empty:
        return "There is only one operator, so there is nothing to compare."
    ends = [table.iloc[int(i)] for i in (table.iou.argmax(), table.iou.argmin())]
    most, least = (f"{SIGNS[str(r.operator)]} and {SIGNS[str(r.other)]} ({number(r.iou)})" for r in ends)
    said = f"Mean intersection over union of all pairs: {number(float(table.iou.mean()))}."
    return f"{said} Most alike: {most}; least: {least}." if len(table) > 1 else said
