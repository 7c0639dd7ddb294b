"""Findings on answers of several tokens: whole answers, carries, and what the answer steps share."""

from typing import Any

import pandas as pd

from arithscope.experiments.carries import CARRY, Carries
from arithscope.experiments.digit_probes import DigitProbes
from arithscope.experiments.localize import MLP
from arithscope.experiments.step_overlap import StepOverlap
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.figures.carries import carry_into, component_place, strongest_components
from arithscope.figures.steps import measures_of
from arithscope.figures.style import SIGNS
from arithscope.models.hooks import EMBEDDINGS
from arithscope.prompts import Stratum
from arithscope.report.findings.finding import Finding, Numbers, Value, finding, per_operator, worded
from arithscope.report.formatting import as_mean, means_of, number, with_interval
from arithscope.stats.intervals import Mean, difference


@finding("whole-answers", WholeAnswers)
def whole_answers(result: WholeAnswers) -> Finding:
    means = {name: means_of(result.table, measure) for measure, (name, _) in measures_of(result.stratum).items()}
    agreement, stops = (means_of(result.table, measure) for measure in ("agreement", "stops"))
    whole = means.pop("whole answer")
    numbers: Numbers = {
        "whole answer right": whole,
        **{f"{name} right": own for name, own in means.items()},
        "free running writes what the steps say": agreement,
        "stops after the right answer": stops,
    }
    return worded("whole_answers", numbers, whole=whole, steps=means, agreement=agreement, stops=stops)


@finding("carry-chains", WholeAnswers)
def carry_chains(result: WholeAnswers) -> Finding:
    rows = result.chains[result.chains.measure == "accuracy"].sort_values("chain")
    if rows.empty:
        return Finding("The layout has no sums or differences, so nothing is carried.")
    by_operator = per_operator(rows, lambda own: {int(row["chain"]): as_mean(row) for row in own.to_dict("records")})
    numbers: dict[str, dict[str, Mean]] = {}
    texts, ends = {}, {}
    for operator, means in by_operator.items():
        for chain, mean in means.items():
            numbers.setdefault(f"whole answer right {_travels(chain)}", {})[operator] = mean
        texts[operator] = [f"{with_interval(mean)} (n = {mean.n:,}) {_travels(c)}" for c, mean in means.items()]
        if len(means) > 1:
            ends[operator] = difference(means[min(means)], means[max(means)])
    return worded("carry_chains", numbers, texts=texts, differences=ends)


def _travels(chain: int) -> str:
    if chain == 0:
        return "without a carry"
    return f"where a carry travels {chain} {'place' if chain == 1 else 'places'}"


@finding("held", WholeAnswers, Carries)
def held(answers: WholeAnswers, result: Carries) -> Finding:
    keys = result.held[["operator", "step", "sources"]].drop_duplicates().itertuples(index=False)
    paths = [_path(result, answers.stratum, *key) for key in keys]
    if not paths:
        return Finding("Too few prompts have counterfactuals that differ in one digit or carry alone.")
    return worded("held", paths=paths)


def _path(result: Carries, stratum: Stratum, operator: str, step: int, sources: str) -> str:
    """For +, the carry into the tens is held at op2.2 from L1 to L3 (.93 [.79, .98] follow, control .02), then …"""
    name = stratum.at_step(step).step_name
    about = f"For {SIGNS[operator]}, " + (f"the {carry_into(name, operator)}" if sources == CARRY else f"the {name}")
    h = result.held
    rows: Any = h[(h.operator == operator) & (h.step == step) & (h.sources == sources)].set_index("layer")
    parts = [
        f"at {_position(position)} {_layers(low, high, int(rows.index.max()))} ({_follow(rows.loc[low])})"
        for position, low, high in result.path(operator, step, sources)
    ]
    where = ", then ".join(parts) or "at no single position: nowhere do more than half of the answers follow"
    return f"{about} {'is' if sources == CARRY else 'are'} held {where}"


def _position(name: str) -> str:
    return "the last position" if name == "last" else name


def _layers(low: int, high: int, last: int) -> str:
    start = "the embeddings" if low == EMBEDDINGS else f"L{low}"
    if low == high:
        return f"in {start}" if low == EMBEDDINGS else f"after {start}"
    return f"from {start} on" if high == last else f"from {start} to L{high}"


def _follow(row: Any) -> str:
    control = "" if pd.isna(row.control) else f", control {number(row.control)}"
    return f"{with_interval(as_mean(row))} follow{control}"


@finding("carry-components", WholeAnswers, Carries)
def carry_components(answers: WholeAnswers, result: Carries) -> Finding:
    places = result.components[["operator", "step"]].drop_duplicates().itertuples(index=False)
    texts = [_strongest(result, answers.stratum, *place) for place in places]
    if not texts:
        return Finding("No step has a carry into its place, or too few prompts have counterfactuals for it.")
    return worded("carry_components", texts=texts)


def _strongest(result: Carries, stratum: Stratum, operator: str, step: int) -> str:
    rows = strongest_components(result.components, operator, step)
    best = [of_kind.iloc[0] for of_kind in (rows[rows["head"] != MLP], rows[rows["head"] == MLP])]
    shown = [f"{component_place(row)} ({with_interval(as_mean(row))})" for row in best]
    return (
        f"for {SIGNS[operator]} and the {carry_into(stratum.at_step(step).step_name, operator)} {' and '.join(shown)}"
    )


@finding("digit-probes", DigitProbes)
def digit_probes(result: DigitProbes) -> Finding:
    made = result.first[~result.first.given.astype(bool)]
    if made.empty:
        return Finding("No operator has enough whole answers that are right.")
    numbers: dict[str, dict[str, Value]] = {}
    texts = per_operator(made, lambda rows: [_readable(rows[rows.variable == v]) for v in rows.variable.unique()])
    for row in _best_places(made).to_dict("records"):
        for name, value in (("best accuracy", row["best"]), ("chance", row["chance"]), ("permuted", row["shuffled"])):
            numbers.setdefault(f"{row['variable']}: {name}", {})[row["operator"]] = float(value)
    return worded("digit_probes", numbers, texts=texts)


def _best_places(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each variable, the position at which it is read best."""
    ordered = rows.sort_values("best", ascending=False, kind="stable")
    return ordered.drop_duplicates(["operator", "variable"]).sort_index()


def _readable(rows: pd.DataFrame) -> str:
    """The carry into tens at op2.2 after L1; best at answer.1."""
    variable, best = str(rows.variable.iloc[0]), _best_places(rows).iloc[0]
    readable = rows[rows.layer >= 0].sort_values("layer", kind="stable")
    if readable.empty:
        return f"{variable} nowhere"
    first = readable.iloc[0]
    place = f"{variable} at {_position(first.position)} after L{first.layer}"
    best_there = f"best at {_position(best.position)}, {number(float(best.best))}; chance {number(float(best.chance))}"
    return f"{place} ({best_there})"


@finding("step-overlap", WholeAnswers, StepOverlap)
def step_overlap(answers: WholeAnswers, result: StepOverlap) -> Finding:
    table, stratum = result.table.dropna(subset=["iou"]), answers.stratum
    if table.empty:
        return Finding("No operator was studied at several steps, so there is nothing to compare.")
    numbers: dict[str, dict[str, float | int]] = {}
    for row in table.to_dict("records"):
        names = " and ".join(stratum.at_step(row[which]).step_name for which in ("step", "other"))
        numbers.setdefault(f"{row['components']}, {names}: IoU", {})[row["operator"]] = row["iou"]
        numbers.setdefault(f"{row['components']}, {names}: IoU of random sets", {})[row["operator"]] = row["expected"]
    in_all = {operator: measures.get("heads_of_all_steps", []) for operator, measures in result.summary().items()}
    kinds = {name: (own.iou.mean(), own.expected.mean()) for name, own in table.groupby("components", sort=False)}
    return worded("step_overlap", numbers, kinds=kinds, in_all=in_all)
