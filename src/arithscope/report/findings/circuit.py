"""What accuracy, localization, the circuit, its heads, its first MLP and the probes show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.heads import CHANGE, Heads
from arithscope.experiments.localize import MLP, Localize, component_name
from arithscope.experiments.mlp0 import ALL_POSITIONS, Mlp0
from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.first_mlp import strongest_neurons
from arithscope.figures.style import SIGNS
from arithscope.measures import Mean, average, difference
from arithscope.report.words import (
    as_mean,
    by_sign,
    clear,
    gaps,
    interval,
    listed,
    means_of,
    number,
    operators_of,
    shown,
    told,
    verdict,
)

MOST_NAMED = 6  # heads, or numbers


def accuracy(result: Accuracy) -> str:
    right = means_of(result.table, "accuracy")
    wrong = result.prompts[~result.prompts.correct]
    no_number = int((wrong.predicted < 0).sum())
    said = f"It answers this share of legal prompts correctly: {told(right)}.{_easiest(right)}"
    return f"{said} Of its {len(wrong):,} wrong answers {no_number:,} are no number at all." if len(wrong) else said


def _easiest(right: dict[str, Mean]) -> str:
    operators = sorted(operators_of(right), key=lambda o: right[o].value)
    if len(operators) < 2:
        return ""
    worst, best = operators[0], operators[-1]
    gap = difference(right[best], right[worst])
    if clear(gap) < 1:
        return " No operator is clearly easier than another."
    return f" It is best at {SIGNS[best]} and worst at {SIGNS[worst]}; the difference is {shown(gap)}."


def localization(result: Localize) -> str:
    rows = result.effects[result.effects.measure == "probability"]
    parts = []
    for kind, some in (("head", rows[rows["head"] != MLP]), ("MLP", rows[rows["head"] == MLP])):
        places = {place: mine for place, mine in some.groupby(["layer", "head", "position"], sort=False)}
        means = {place: average([as_mean(r) for r in mine.to_dict("records")]) for place, mine in places.items()}
        medians = {place: float(mine["median"].mean()) for place, mine in places.items()}
        first, middle = max(means, key=lambda p: means[p].value), max(medians, key=lambda p: medians[p])
        doubt = "" if clear(means[first]) == 1 else ", not clearly above zero"
        parts.append(
            f"the {kind} of largest mean effect is {_place(first)}: {shown(means[first])} (n = {means[first].n:,}){doubt}; "
            f"by the median {_same(first, middle)}: {number(medians[middle])}"
        )
    return f"Averaged over operators, {'. And '.join(parts)}."


def _place(place: Any) -> str:
    layer, head, position = place
    return f"{component_name(layer, head)} at {position}"


def _same(first: Any, other: Any) -> str:
    return "the same" if first == other else f"it is {_place(other)}"


def localization_by_operator(result: Localize) -> str:
    parts = []
    for operator, named in result.summary().items():
        head, mlp = named["strongest_head"], named["strongest_mlp"]
        both = " and ".join(f"{x['component']} ({shown(as_mean(x))}, median {number(x['median'])})" for x in (head, mlp))
        parts.append(f"{SIGNS[operator]}: {both}")
    return f"Head and MLP of largest mean effect. {'; '.join(parts)}."


def circuit_diagram(localize: Localize, circuit: Circuit, heads: Heads) -> str:
    total, chosen = int(circuit.curve["size"].max()), {head for o in circuit.operators for head in circuit.chosen(o)}
    shared = circuit.shared()
    if len(circuit.operators) == 1:
        named = [_reads(heads, head) for head in circuit.chosen(circuit.operators[0])[:MOST_NAMED]]
        return f"The circuit has {len(chosen)} of {total} heads{_named(named, len(chosen))}."
    said = f"Together the operators' circuits have {len(chosen)} of {total} heads; {len(shared)} are in all of them"
    return f"{said}{_named([_reads(heads, head) for head in shared[:MOST_NAMED]], len(shared))}."


def _named(names: list[str], total: int) -> str:
    if not names:
        return ""
    return f"{', among them' if total > len(names) else ':'} {'; '.join(names)}"


def _reads(heads: Heads, head: tuple[int, int]) -> str:
    """L0H0 (from op1 to last for + and −, from operator to last for ÷)"""
    rows = heads.roles[(heads.roles.layer == head[0]) & (heads.roles["head"] == head[1])]
    ways = [
        f"from {reads} to {acts_at} for {listed(SIGNS[str(o)] for o in mine.operator)}"
        for (reads, acts_at), mine in rows.groupby(["reads", "acts_at"], sort=False)
    ]
    return f"{component_name(*head)} ({', '.join(ways)})"


def faithfulness_by_heads(result: Circuit) -> str:
    sizes = by_sign({o: len(result.chosen(o)) for o in result.operators})
    ours, random = means_of(result.table, "faithfulness"), means_of(result.table, "random_faithfulness")
    return (
        f"Of {int(result.curve['size'].max())} heads these many suffice: {sizes}. Faithfulness with them: {told(ours)}; with as "
        f"many random heads: {told(random)}."
        + verdict(gaps(ours, random), "it is clearly higher than with random heads", "it is clearly lower than at random")
    )


def circuit_table(result: Circuit) -> str:
    left_out = sum(result.left_out.values())
    said = (
        "Asked the same prompts, all of which the whole model gets right, the circuits alone give the answer in this share: "
        f"{told(means_of(result.table, 'accuracy'))}, with a mean probability of {told(means_of(result.table, 'p_answer'))}."
    )
    if left_out:
        said += f" {left_out} prompts have no faithfulness, as the empty circuit does about as well as the model there."
    return said


def attention_patterns(result: Heads) -> str:
    roles = result.roles
    if roles.empty:
        return "No head is in a circuit."
    counts = [f"{role} ({n})" for role, n in roles.role.value_counts().items()]
    most = roles.iloc[int(roles.share.argmax())]
    return (
        f"From the last position these tokens get most of a head's attention (in brackets how many heads, counted once for "
        f"each operator): {listed(counts)}. The sharpest is {component_name(most.layer, most['head'])} for "
        f"{SIGNS[str(most.operator)]}, which gives {number(most.share)} of it to {most.role}."
    )


def head_roles(result: Heads) -> str:
    changes = result.isolation[(result.isolation.when == CHANGE) & result.isolation.value.notna()]
    if changes.empty:
        return "There is no change of faithfulness to tell of."
    lower = int((changes.high < 0).sum())
    worst = changes.iloc[int(changes.value.argmin())]
    said = f"Cutting the attended position off clearly lowers faithfulness for {lower} of {len(changes)} heads (counted by operator)"
    if clear(as_mean(worst)) == -1:
        name = f"{component_name(worst.layer, worst['head'])} for {SIGNS[str(worst.operator)]}"
        said += f", most for {name}: by {shown(as_mean(worst))} (n = {worst.n})"
    return f"{said}."


def first_mlp_effects(result: Mlp0) -> str:
    rows = result.effects[(result.effects.measure == "probability") & (result.effects.position == ALL_POSITIONS)]
    above, named = {}, {}
    for operator, mine in rows.groupby("operator", sort=False):
        best = mine.iloc[int(mine.value.argmax())]
        above[str(operator)] = int((mine.low > 0).sum())
        named[str(operator)] = f"neuron {best.neuron} ({shown(as_mean(best))}, median {number(best['median'])})"
    size = len(result.tuning)
    return (
        f"Averaged over the three positions, so many of the {size:,} neurons have a mean effect clearly above zero: "
        f"{by_sign(above)}. The strongest: {by_sign(named)}."
    )


def first_mlp_faithfulness(result: Mlp0) -> str:
    enough = by_sign({o: f"{share:.1%}".replace(".0%", "%") for o, share in result.enough.items()})
    ours, random = means_of(result.table, "faithfulness_of_1_percent"), means_of(result.table, "random_1_percent")
    return (
        f"The smallest share of its neurons, of those tried, that does as well as all: {enough}. With the strongest 1 % faithfulness "
        f"is {told(ours)}, with a random 1 % {told(random)}."
        + verdict(gaps(ours, random), "the strongest are clearly better", "the strongest are clearly worse")
    )


def number_tuning(result: Mlp0) -> str:
    best = strongest_neurons(result)[0]
    foremost = np.argsort(-result.tuning[best], kind="stable")[:MOST_NAMED]
    return f"The neuron that ranks first, {best}, fires most for the numbers {listed(map(str, foremost))}."


def probe_accuracy(result: Probe) -> str:
    rows: Any = result.table[result.table.operator == ALL].set_index(["position", "layer"])
    layers = result.table.layer.nunique()
    first, best = (as_mean(rows.loc[("last", layer)]) for layer in (result.first_answer_layer, result.best_layer))
    chance = result.chance[ALL]
    said = (
        f"At the last position the answer can first be read off behind layer {result.first_answer_layer} of {layers} (counted from "
        f"0), with an accuracy of {shown(first)}, and best behind layer {result.best_layer}, with {shown(best)} (n = {best.n:,}); "
        f"always giving the most frequent answer would reach {number(chance)}."
    )
    earlier = [_earlier(rows.loc[position], str(position), chance) for position in _positions(result.table)]
    return f"{said} {' '.join(earlier)}"


def _positions(table: pd.DataFrame) -> list[str]:
    return [str(p) for p in table.position.unique() if p != "last"]


def _earlier(rows: pd.DataFrame, position: str, chance: float) -> str:
    best = as_mean(rows.iloc[int(rows.value.argmax())])
    beyond = "clearly above" if best.low > chance else "not clearly above"
    return f"At {position} the best layer reaches {number(best.value)} {interval(best)}, {beyond} that."

