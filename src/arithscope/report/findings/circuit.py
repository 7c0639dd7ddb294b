"""Findings on accuracy, localization, circuits, their heads, and probes."""

from math import comb
from typing import Any

import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.answer_layers import AnswerLayers
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import TOLERANCE
from arithscope.experiments.common.result import AVERAGE
from arithscope.experiments.heads import CHANGE, Heads
from arithscope.experiments.localize import MLP, Localization, component_name
from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.style import SIGNS
from arithscope.report.findings.finding import Finding, Numbers, Value, finding, worded
from arithscope.report.formatting import as_mean, clear_sign, listed, means_of, operators_of
from arithscope.stats.intervals import NOTHING, Mean, average, difference, signs_of_rows

MOST_NAMED = 6  # heads


@finding("accuracy", Accuracy)
def accuracy(result: Accuracy) -> Finding:
    means = means_of(result.table, "accuracy")
    operators = sorted(operators_of(means), key=lambda o: means[o].value)
    gap = difference(means[operators[-1]], means[operators[0]]) if len(operators) > 1 else None
    wrong = result.prompts.predicted[~result.prompts.correct]
    pairs = comb(len(operators), 2)  # of which the gap is the largest
    baseline, over_prompts = (means_of(result.table, name) for name in ("baseline", "accuracy_over_prompts"))
    numbers: Numbers = {
        "accuracy": means,
        "always the most frequent {ANSWER}": baseline,
        "averaged over prompts": over_prompts,
    }
    words = {"operators": operators, "gap": gap, "pairs": pairs, "over_prompts": over_prompts.get(AVERAGE, NOTHING)}
    return worded("accuracy", numbers, means=means, baseline=baseline, wrong=wrong, **words)


@finding("localization", Localization)
def localization(result: Localization) -> Finding:
    table = result.effects[result.effects.measure == "probability"]
    heads, mlps = table[table["head"] != MLP], table[table["head"] == MLP]
    places = len(table[["layer", "head", "position"]].drop_duplicates())
    return worded("localization", head=_largest_effects(heads), mlp=_largest_effects(mlps), places=places)


def _largest_effects(effects: pd.DataFrame) -> tuple[str, Mean, str, float]:
    """Component and position with the largest mean effect, averaged over operators, and with the largest median effect."""
    places: dict[Any, pd.DataFrame] = dict(iter(effects.groupby(["layer", "head", "position"], sort=False)))
    means = {place: average([as_mean(r) for r in rows.to_dict("records")]) for place, rows in places.items()}
    medians = {place: float(rows["median"].mean()) for place, rows in places.items()}
    by_mean = max(means, key=lambda place: means[place].value)
    by_median = max(medians, key=lambda place: medians[place])
    names = [f"{component_name(layer, head)} at {position}" for layer, head, position in (by_mean, by_median)]
    return names[0], means[by_mean], names[1], medians[by_median]


@finding("localization-by-operator", Localization)
def localization_by_operator(result: Localization) -> Finding:
    names, numbers = {}, dict[str, dict[str, Value]]()
    for kind, plural in (("head", "heads"), ("MLP", "mlps")):
        strongest = {o: measures[f"strongest_{kind.lower()}"] for o, measures in result.summary().items()}
        names[plural] = {o: entry["component"] for o, entry in strongest.items()}
        numbers[f"mean effect of that {kind}"] = {o: as_mean(entry) for o, entry in strongest.items()}
        numbers[f"median effect of that {kind}"] = {o: float(entry["median"]) for o, entry in strongest.items()}
    return worded("localization_by_operator", numbers, **names)


@finding("circuit-diagram", Circuit, Heads)
def circuit_diagram(circuit: Circuit, heads: Heads) -> Finding:
    operators, total = circuit.operators, int(circuit.curve["size"].max())
    union = {head for o in operators for head in circuit.chosen(o)}
    named = circuit.chosen(operators[0]) if len(operators) == 1 else circuit.shared()
    roles = [_role(heads, head) for head in named[:MOST_NAMED]]
    return worded("circuit_diagram", operators=operators, union=union, total=total, named=named, roles=roles)


def _role(heads: Heads, head: tuple[int, int]) -> str:
    """L0H0 (op1 → last for + and −, operator → last for ÷)"""
    rows = heads.roles[(heads.roles.layer == head[0]) & (heads.roles["head"] == head[1])]
    moves = [
        f"{reads} → {acts_at} for {listed(SIGNS[str(o)] for o in group.operator)}"
        for (reads, acts_at), group in rows.groupby(["reads", "acts_at"], sort=False)
    ]
    return f"{component_name(*head)} ({', '.join(moves)})"


@finding("faithfulness-by-heads", Circuit)
def faithfulness_by_heads(result: Circuit) -> Finding:
    sizes = {o: len(result.chosen(o)) for o in result.operators}
    means, random = means_of(result.table, "faithfulness"), means_of(result.table, "random_faithfulness")
    union = means_of(result.union, "faithfulness")
    numbers: Numbers = {
        "heads": sizes,
        "faithfulness": means,
        "as many random heads": random,
        "union of all circuits": union,
    }
    words = {
        "total": int(result.curve["size"].max()),
        "tolerance": TOLERANCE,
        "union": union,
        "in_any": result.in_any(),
    }
    return worded("faithfulness_by_heads", numbers, sizes=sizes, means=means, random=random, **words)


@finding("circuit-table", Circuit)
def circuit_table(result: Circuit) -> Finding:
    accuracies, probabilities = (means_of(result.table, name) for name in ("accuracy", "p_answer"))
    excluded = sum(result.excluded.values())
    return worded("circuit_table", accuracy=accuracies, probability=probabilities, excluded=excluded)


@finding("attention-patterns", Heads)
def attention_patterns(result: Heads) -> Finding:
    roles = result.roles
    if roles.empty:
        return Finding("The circuits have no heads.")
    counts = [f"{position} ({n})" for position, n in roles.attends_to.value_counts().items()]
    sharpest = roles.iloc[int(roles.attention.argmax())]
    head = component_name(sharpest.layer, sharpest["head"])
    return worded("attention_patterns", counts=counts, sharpest=sharpest, head=head)


@finding("head-roles", Heads)
def head_roles(result: Heads) -> Finding:
    changes = result.isolation[(result.isolation.when == CHANGE) & result.isolation.value.notna()]
    if changes.empty:
        return Finding("No change in faithfulness was measured.")
    lower = signs_of_rows(changes.value, changes.low, changes.high, changes.n) == -1
    most = int(changes.value.argmin())
    largest = changes.iloc[most]
    head = {"head": component_name(largest.layer, largest["head"]), "operator": largest.operator}
    counts = {"lower": int(lower.sum()), "heads": len(changes), "clear": bool(lower[most])}
    return worded("head_roles", **counts, change=as_mean(largest), **head)


@finding("answer-layers", AnswerLayers, Probe)
def answer_layers(result: AnswerLayers, probe: Probe) -> Finding:
    left = {o: as_mean(result.left(o, layer)) for o, layer in result.first_layer.items()}
    from_probe = {o: as_mean(result.left(o, probe.first_answer_layer)) for o in result.first_layer}
    numbers: Numbers = {
        "first answer layer by cause": result.first_layer,
        "accuracy left without its MLPs and those above": left,
        "… from the probe's first answer layer on": from_probe,
        "accuracy of always giving the most frequent {ANSWER}": result.baseline,
    }
    words = {"layers": result.first_layer, "left": left, "probe": probe.first_answer_layer}
    return worded("answer_layers", numbers, total=probe.table.layer.nunique(), **words)


@finding("probe-accuracy", Probe)
def probe_accuracy(result: Probe) -> Finding:
    rows: Any = result.table[result.table.operator == ALL].set_index(["position", "layer"])
    first, best = (as_mean(rows.loc[(result.final, layer)]) for layer in (result.first_answer_layer, result.best_layer))
    positions = [str(p) for p in result.table.position.unique() if p != result.final]
    others = {p: as_mean(rows.loc[p].iloc[int(rows.loc[p].value.argmax())]) for p in positions}
    chance = result.chance[ALL]
    above = {p: Mean(m.value - chance, m.low - chance, m.high - chance, m.n) for p, m in others.items()}
    # The best layer of a position is chosen among all.
    clear = {p: clear_sign(mean, len(positions) * result.table.layer.nunique()) == 1 for p, mean in above.items()}
    words = {"first": first, "best": best, "chance": chance, "others": others, "clear": clear}
    return worded("probe_accuracy", result=result, **words)
