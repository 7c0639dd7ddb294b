"""Findings on accuracy, localization, circuits, their heads, and probes."""

from typing import Any

import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import TOLERANCE
from arithscope.experiments.heads import CHANGE, Heads
from arithscope.experiments.localize import MLP, Localization, component_name
from arithscope.experiments.probe import ALL, Probe
from arithscope.figures.style import SIGNS
from arithscope.report.findings.finding import Finding, Value, finding
from arithscope.report.formatting import (
    as_mean,
    clear_sign,
    differences,
    grouped,
    listed,
    means_of,
    number,
    operators_of,
    overall,
    span,
    verdict,
    with_interval,
)
from arithscope.stats.intervals import Mean, average, difference

MOST_NAMED = 6  # heads


@finding("accuracy", Accuracy)
def accuracy(result: Accuracy) -> Finding:
    means = means_of(result.table, "accuracy")
    wrong = result.prompts[~result.prompts.correct]
    text = f"Accuracy on legal prompts is {overall(means)}.{_best_and_worst(means)}"
    if len(wrong):
        text += f" Wrong predictions that are not numbers: {(wrong.predicted < 0).sum():,} of {len(wrong):,}."
    return Finding(text)


def _best_and_worst(means: dict[str, Mean]) -> str:
    operators = sorted(operators_of(means), key=lambda o: means[o].value)
    if len(operators) < 2:
        return ""
    worst, best = operators[0], operators[-1]
    gap = difference(means[best], means[worst])
    if clear_sign(gap) < 1:
        return " No operator is clearly easier than another."
    return f" It is highest for {SIGNS[best]} and lowest for {SIGNS[worst]}; the difference is {with_interval(gap)}."


@finding("localization", Localization)
def localization(result: Localization) -> Finding:
    table = result.effects[result.effects.measure == "probability"]
    sentences = []
    for kind, effects in (("head", table[table["head"] != MLP]), ("MLP", table[table["head"] == MLP])):
        places = dict(iter(effects.groupby(["layer", "head", "position"], sort=False)))
        means = {place: average([as_mean(r) for r in rows.to_dict("records")]) for place, rows in places.items()}
        medians = {place: float(rows["median"].mean()) for place, rows in places.items()}
        by_mean, by_median = max(means, key=lambda p: means[p].value), max(medians, key=lambda p: medians[p])
        mean = means[by_mean]
        doubt = "" if clear_sign(mean) == 1 else ", not clearly above zero"
        same = "the same" if by_mean == by_median else _component_at(by_median)
        sentences.append(
            f"the {kind} with the largest mean effect is {_component_at(by_mean)}: {with_interval(mean)} (n = {mean.n:,})"
            f"{doubt}; by median it is {same}: {number(medians[by_median])}."
        )
    return Finding(f"Averaged over operators, {sentences[0]} And {sentences[1]}")


def _component_at(place: Any) -> str:
    layer, head, position = place
    return f"{component_name(layer, head)} at {position}"


@finding("localization-by-operator", Localization)
def localization_by_operator(result: Localization) -> Finding:
    sentences: list[str] = []
    numbers: dict[str, dict[str, Value]] = {}
    for kind in ("head", "MLP"):
        strongest = {o: measures[f"strongest_{kind.lower()}"] for o, measures in result.summary().items()}
        names = grouped({o: entry["component"] for o, entry in strongest.items()})
        sentences.append(f"The {kind} with the largest mean effect is {names}.")
        numbers[f"mean effect of that {kind}"] = {o: as_mean(entry) for o, entry in strongest.items()}
        numbers[f"median effect of that {kind}"] = {o: float(entry["median"]) for o, entry in strongest.items()}
    return Finding(" ".join(sentences), numbers)


@finding("circuit-diagram", Circuit, Heads)
def circuit_diagram(circuit: Circuit, heads: Heads) -> Finding:
    total = int(circuit.curve["size"].max())
    if len(circuit.operators) == 1:
        named = circuit.chosen(circuit.operators[0])
        text = f"The circuit has {len(named)} of {total} heads"
    else:
        union = {head for o in circuit.operators for head in circuit.chosen(o)}
        named = circuit.shared()
        text = f"The operators' circuits together have {len(union)} of {total} heads; {len(named)} are in all of them"
    roles = "; ".join(_role(heads, head) for head in named[:MOST_NAMED])
    colon = ", among them" if len(named) > MOST_NAMED else ":"
    return Finding(f"{text}{colon} {roles}." if roles else f"{text}.")


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
    return Finding(
        f"With {span(sizes)} of {int(result.curve['size'].max()):,} heads, depending on the operator, faithfulness is "
        f"within {TOLERANCE} of the plateau: {overall(means)}. With as many random heads it is {overall(random)}."
        + verdict(
            differences(means, random), "it is clearly higher than at random", "it is clearly lower than at random"
        ),
        {"heads": sizes, "faithfulness": means, "as many random heads": random},
    )


@finding("circuit-table", Circuit)
def circuit_table(result: Circuit) -> Finding:
    right, probability = (means_of(result.table, name) for name in ("accuracy", "p_answer"))
    excluded = sum(result.excluded.values())
    text = (
        "On the same prompts, all of which the full model answers correctly, the circuits alone reach an accuracy of "
        f"{overall(right)} and a mean probability of the answer of {overall(probability)}."
    )
    if excluded:
        text += (
            f" Faithfulness leaves out {excluded} prompts on which the empty circuit does about as well as the model."
        )
    return Finding(text)


@finding("attention-patterns", Heads)
def attention_patterns(result: Heads) -> Finding:
    roles = result.roles
    if roles.empty:
        return Finding("The circuits have no heads.")
    counts = [f"{position} ({n})" for position, n in roles.attends_to.value_counts().items()]
    sharpest = roles.iloc[int(roles.attention.argmax())]
    return Finding(
        "Positions that receive most of a head's attention from the last position, with the number of heads (counted once "
        f"per operator): {listed(counts)}. The sharpest head is {component_name(sharpest.layer, sharpest['head'])} for "
        f"{SIGNS[str(sharpest.operator)]}, with {number(sharpest.attention)} of its attention on {sharpest.attends_to}."
    )


@finding("head-roles", Heads)
def head_roles(result: Heads) -> Finding:
    changes = result.isolation[(result.isolation.when == CHANGE) & result.isolation.value.notna()]
    if changes.empty:
        return Finding("No change in faithfulness was measured.")
    lower = int((changes.high < 0).sum())
    text = (
        f"Isolating the attended position clearly lowers faithfulness for {lower} of {len(changes)} heads (by operator)"
    )
    largest = changes.iloc[int(changes.value.argmin())]
    change = as_mean(largest)
    if clear_sign(change) == -1:
        head = f"{component_name(largest.layer, largest['head'])} for {SIGNS[str(largest.operator)]}"
        text += f", most for {head}, where it changes by {with_interval(change)} (n = {change.n})"
    return Finding(f"{text}.")


@finding("probe-accuracy", Probe)
def probe_accuracy(result: Probe) -> Finding:
    rows: Any = result.table[result.table.operator == ALL].set_index(["position", "layer"])
    first, best = (as_mean(rows.loc[("last", layer)]) for layer in (result.first_answer_layer, result.best_layer))
    chance = result.chance[ALL]
    text = (
        f"At the last position the answer is first decodable after layer {result.first_answer_layer} of layers 0 to "
        f"{result.table.layer.nunique() - 1}, with an accuracy of {with_interval(first)}, and best after layer "
        f"{result.best_layer}, with {with_interval(best)} (n = {best.n:,}); the most frequent answer alone gives "
        f"{number(chance)}."
    )
    positions = [str(p) for p in result.table.position.unique() if p != "last"]
    return Finding(" ".join([text, *(_best_layer(rows.loc[p], p, chance) for p in positions)]))


def _best_layer(rows: pd.DataFrame, position: str, chance: float) -> str:
    best = as_mean(rows.iloc[int(rows.value.argmax())])
    above = "clearly above" if best.low > chance else "not clearly above"
    return f"At {position} the best layer reaches {with_interval(best)}, {above} that."
