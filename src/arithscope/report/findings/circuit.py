"""What accuracy, localization, the circuit, its heads, its first MLP and the probes show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import TOLERANCE
from arithscope.experiments.heads import CHANGE, Heads
from arithscope.experiments.localize import MLP, Localization, component_name
from arithscope.experiments.mlp0 import ALL_POSITIONS, FirstMlp
from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.first_mlp import strongest_neurons
from arithscope.figures.style import SIGNS
from arithscope.report.findings.finding import Cell, Finding
from arithscope.report.formatting import (
    as_mean,
    clear,
    gaps,
    grouped,
    interval,
    listed,
    means_of,
    number,
    operators_of,
    overall,
    shown,
    span,
    verdict,
)
from arithscope.stats.intervals import Mean, average, difference

MOST_NAMED = 6  # heads, or numbers


def accuracy(result: Accuracy) -> Finding:
    right = means_of(result.table, "accuracy")
    wrong = result.prompts[~result.prompts.correct]
    no_number = int((wrong.predicted < 0).sum())
    said = f"It answers {overall(right)} of the legal prompts correctly.{_easiest(right)}"
    return Finding(f"{said} Of {len(wrong):,} wrong answers, no number at all: {no_number:,}." if len(wrong) else said)


def _easiest(right: dict[str, Mean]) -> str:
    operators = sorted(operators_of(right), key=lambda o: right[o].value)
    if len(operators) < 2:
        return ""
    worst, best = operators[0], operators[-1]
    gap = difference(right[best], right[worst])
    if clear(gap) < 1:
        return " No operator is clearly easier than another."
    return f" It is best at {SIGNS[best]} and worst at {SIGNS[worst]}; the difference is {shown(gap)}."


def localization(result: Localization) -> Finding:
    rows = result.effects[result.effects.measure == "probability"]
    parts = []
    for kind, some in (("head", rows[rows["head"] != MLP]), ("MLP", rows[rows["head"] == MLP])):
        places = dict(iter(some.groupby(["layer", "head", "position"], sort=False)))
        means = {place: average([as_mean(r) for r in mine.to_dict("records")]) for place, mine in places.items()}
        medians = {place: float(mine["median"].mean()) for place, mine in places.items()}
        first, middle = max(means, key=lambda p: means[p].value), max(medians, key=lambda p: medians[p])
        doubt = "" if clear(means[first]) == 1 else ", not clearly above zero"
        parts.append(
            f"the {kind} of largest mean effect is {_place(first)}: {shown(means[first])} (n = "
            f"{means[first].n:,}){doubt}; by the median {_same(first, middle)}: {number(medians[middle])}"
        )
    return Finding(f"Averaged over operators, {'. And '.join(parts)}.")


def _place(place: Any) -> str:
    layer, head, position = place
    return f"{component_name(layer, head)} at {position}"


def _same(first: Any, other: Any) -> str:
    return "the same" if first == other else f"it is {_place(other)}"


def localization_by_operator(result: Localization) -> Finding:
    summary = result.summary()
    says: list[str] = []
    numbers: dict[str, dict[str, Cell]] = {}
    for kind, measure in (("head", "strongest_head"), ("MLP", "strongest_mlp")):
        found = {operator: named[measure] for operator, named in summary.items()}
        says.append(f"The {kind} of largest mean effect is {grouped({o: x['component'] for o, x in found.items()})}.")
        numbers[f"mean effect of that {kind}"] = {o: as_mean(x) for o, x in found.items()}
        numbers[f"median effect of that {kind}"] = {o: float(x["median"]) for o, x in found.items()}
    return Finding(" ".join(says), numbers)


def circuit_diagram(localize: Localization, circuit: Circuit, heads: Heads) -> Finding:
    total, chosen = int(circuit.curve["size"].max()), {head for o in circuit.operators for head in circuit.chosen(o)}
    shared = circuit.shared()
    if len(circuit.operators) == 1:
        named = [_reads(heads, head) for head in circuit.chosen(circuit.operators[0])[:MOST_NAMED]]
        return Finding(f"The circuit has {len(chosen)} of {total} heads{_named(named, len(chosen))}.")
    said = f"Together the operators' circuits have {len(chosen)} of {total} heads; {len(shared)} are in all of them"
    return Finding(f"{said}{_named([_reads(heads, head) for head in shared[:MOST_NAMED]], len(shared))}.")


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


def faithfulness_by_heads(result: Circuit) -> Finding:
    sizes = {o: len(result.chosen(o)) for o in result.operators}
    ours, random = means_of(result.table, "faithfulness"), means_of(result.table, "random_faithfulness")
    return Finding(
        f"With {span(sizes)} of {int(result.curve['size'].max()):,} heads, depending on the operator, faithfulness comes "
        f"within {TOLERANCE} of the best: {overall(ours)}. With as many random heads it is {overall(random)}."
        + verdict(
            gaps(ours, random), "it is clearly higher than with random heads", "it is clearly lower than at random"
        ),
        {"heads": sizes, "faithfulness": ours, "as many random heads": random},
    )


def circuit_table(result: Circuit) -> Finding:
    right, probability = (means_of(result.table, name) for name in ("accuracy", "p_answer"))
    excluded = sum(result.excluded.values())
    said = (
        f"Of the same prompts, all of which the whole model gets right, the circuits alone get {overall(right)} right, "
        f"and the answer's mean probability is {overall(probability)}."
    )
    if excluded:
        said += f" {excluded} prompts have no faithfulness, as the empty circuit does about as well as the model there."
    return Finding(said)


def attention_patterns(result: Heads) -> Finding:
    roles = result.roles
    if roles.empty:
        return Finding("No head is in a circuit.")
    counts = [f"{attends_to} ({n})" for attends_to, n in roles.attends_to.value_counts().items()]
    most = roles.iloc[int(roles.share.argmax())]
    return Finding(
        "From the last position these tokens get most of a head's attention (in brackets how many heads, counted once "
        f"for each operator): {listed(counts)}. The sharpest is {component_name(most.layer, most['head'])} for "
        f"{SIGNS[str(most.operator)]}, which gives {number(most.share)} of it to {most.attends_to}."
    )


def head_roles(result: Heads) -> Finding:
    changes = result.isolation[(result.isolation.when == CHANGE) & result.isolation.value.notna()]
    if changes.empty:
        return Finding("There is no change of faithfulness to tell of.")
    lower = int((changes.high < 0).sum())
    worst = changes.iloc[int(changes.value.argmin())]
    said = f"Cutting the attended position off clearly lowers faithfulness for {lower} of {len(changes)} heads (by operator)"
    if clear(as_mean(worst)) == -1:
        name = f"{component_name(worst.layer, worst['head'])} for {SIGNS[str(worst.operator)]}"
        said += f", most for {name}, where it changes by {shown(as_mean(worst))} (n = {worst.n})"
    return Finding(f"{said}.")


def first_mlp_effects(result: FirstMlp) -> Finding:
    rows = result.effects[(result.effects.measure == "probability") & (result.effects.position == ALL_POSITIONS)]
    best = {str(o): mine.iloc[int(mine.value.argmax())] for o, mine in rows.groupby("operator", sort=False)}
    above = {str(o): int((mine.low > 0).sum()) for o, mine in rows.groupby("operator", sort=False)}
    return Finding(
        f"Averaged over the three positions, {span(above)} of the {len(result.tuning):,} neurons, depending on the "
        "operator, have a mean effect clearly above zero.",
        {
            "clearly above zero": above,
            "strongest neuron": {o: f"L0N{row.neuron}" for o, row in best.items()},
            "its mean effect": {o: as_mean(row) for o, row in best.items()},
            "its median effect": {o: float(row["median"]) for o, row in best.items()},
        },
    )


def first_mlp_faithfulness(result: FirstMlp) -> Finding:
    smallest_share = {o: f"{share:.1%}".replace(".0%", "%") for o, share in result.smallest_share.items()}
    ours, random = means_of(result.table, "faithfulness_of_1_percent"), means_of(result.table, "random_1_percent")
    return Finding(
        f"With the strongest 1 % of its neurons faithfulness is {overall(ours)}, with a random 1 % {overall(random)}."
        + verdict(gaps(ours, random), "the strongest are clearly better", "the strongest are clearly worse"),
        {"share that does as well as all": smallest_share, "strongest 1 %": ours, "random 1 %": random},
    )


def number_tuning(result: FirstMlp) -> Finding:
    best = strongest_neurons(result)[0]
    foremost = np.argsort(-result.tuning[best], kind="stable")[:MOST_NAMED]
    return Finding(f"The neuron that ranks first, L0N{best}, fires most for the numbers {listed(map(str, foremost))}.")


def probe_accuracy(result: Probe) -> Finding:
    rows: Any = result.table[result.table.operator == ALL].set_index(["position", "layer"])
    layers = result.table.layer.nunique()
    first, best = (as_mean(rows.loc[("last", layer)]) for layer in (result.first_answer_layer, result.best_layer))
    chance = result.chance[ALL]
    said = (
        f"At the last position the answer can first be read off behind layer {result.first_answer_layer} of layers 0 to "
        f"{layers - 1}, with an accuracy of {shown(first)}, and best behind layer {result.best_layer}, with {shown(best)} "
        f"(n = {best.n:,}); always giving the most frequent answer would reach {number(chance)}."
    )
    earlier = [_earlier(rows.loc[position], str(position), chance) for position in _positions(result.table)]
    return Finding(f"{said} {' '.join(earlier)}")


def _positions(table: pd.DataFrame) -> list[str]:
    return [str(p) for p in table.position.unique() if p != "last"]


def _earlier(rows: pd.DataFrame, position: str, chance: float) -> str:
    best = as_mean(rows.iloc[int(rows.value.argmax())])
    beyond = "clearly above" if best.low > chance else "not clearly above"
    return f"At {position} the best layer reaches {number(best.value)} {interval(best)}, {beyond} that."
