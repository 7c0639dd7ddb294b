"""How stable the key numbers are: the same study on either half of the prompts, and with other seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments.classify import CALIBRATED, CRITERIA
from arithscope.experiments.common.headline import ROWS, Row, entries_of
from arithscope.experiments.common.result import AVERAGE, MEAN, Result, mean_entry
from arithscope.experiments.overlap import compared
from arithscope.prompts import OPERATORS
from arithscope.stats.measures import Mean, difference

WHOLE = "all"  # the run itself, beside its repetitions
HALVES, SEEDS = "halves", "seeds"  # the two ways in which it is repeated
HALF, SEED = "half-", "seed-"  # how the names of such repetitions begin
CORRELATION, HEADS, SHARED_HEADS, NEURONS = "neuron_correlation", "heads_iou", "shared_heads_iou", "neurons_iou"
CHOICES = (CORRELATION, HEADS, SHARED_HEADS, NEURONS, *(f"{criterion}_kept" for criterion in CRITERIA))
_NAMED = ["experiment", "measure", "operator"]

Places = set[tuple[int, int]]  # heads or neurons, as layer and number


@dataclass(frozen=True)
class Repeat:
    """Of a study, the run itself or a repetition, all that is compared. One that is hardly ever right about its prompts has an
    accuracy and nothing else; an operator of which that is so is left out.

    heads and neurons: of the circuit, and the top ones. kinds: by criterion, which neurons match which kinds of heuristics."""

    name: str
    summary: Mapping[str, Any]
    effects: Mapping[str, pd.Series[float]]  # by operator, the mean effects by layer and neuron
    heads: Mapping[str, Places]
    shared_heads: Mapping[str, Places]
    neurons: Mapping[str, Places]
    kinds: Mapping[str, Mapping[str, pd.DataFrame]]  # by criterion and operator: layer, neuron, kind, on


def repeat_from(name: str, results: Mapping[str, Any], effect: str) -> Repeat:
    """From the results of a study by stage; `effect` is the one that ranks neurons."""
    summary = {stage: result.summary() for stage, result in results.items()}
    if "circuit" not in results:
        return Repeat(name, summary, {}, {}, {}, {}, {criterion: {} for criterion in CRITERIA})
    circuit, topk = results["circuit"], results["topk"]
    effects, matches = results["neurons"].effects, results["classify"].matches
    ranked = effects[effects.measure == effect]
    pairs = {criterion: matches[matches.calibrated] if criterion == CALIBRATED else matches for criterion in CRITERIA}
    return Repeat(
        name,
        summary,
        {str(o): rows.set_index(["layer", "neuron"]).value for o, rows in ranked.groupby("operator", sort=False)},
        {operator: set(circuit.chosen(operator)) for operator in circuit.operators},
        {AVERAGE: set(circuit.shared())} if len(circuit.operators) > 1 else {},
        {operator: topk.chosen(operator) for operator in topk.operators},
        {
            criterion: {
                operator: found.loc[found.operator == operator, ["layer", "neuron", "kind", "on"]].drop_duplicates()
                for operator in topk.operators
            }
            for criterion, found in pairs.items()
        },
    )


@dataclass(frozen=True, repr=False)
class Stability(Result):
    """values: every key number of the run (`all`) and of its repetitions: on a half of the prompts (`half-1`, `half-2`) and
    with another seed (`seed-1`: seed 1, and so on). Names are left out, and the operator `mean` stands for all together.
    table: for each number the run's value; those of the halves and their distance (`halves`); the smallest and the largest of
    all seeds, the run's own among them, and their distance (`seeds`); the largest distance of a repetition from the run
    (`largest`); in how many of the repetitions that have the number (`repeats`) it clearly differs from the run's, by their
    intervals (`clear`; NaN for numbers without one).
    choices: between the halves, or two of the run and those with other seeds (`between`): Spearman's correlation of the mean
    effects of the neurons that both have measured (`neuron_correlation`, n neurons); intersection over union of the
    circuit's heads, of the heads that all operators share, and of the top neurons (`heads_iou`, `shared_heads_iou`,
    `neurons_iou`, n in the union); and of the neurons that are classified in one, the share that in the other are top neurons
    with a match of the same kind, both directions together (`raw_kept`, `calibrated_kept`, n classified in one plus n in the
    other)."""

    values: pd.DataFrame  # experiment, measure, operator, run, value, low, high, n
    table: pd.DataFrame  # experiment, measure, operator, value, low, high, n, half_1, half_2, halves, seeds_low, …
    choices: pd.DataFrame  # operator, choice, between, one, other, value, n
    runs: list[str]

    @property
    def operators(self) -> list[str]:
        """Those that the run has numbers of, and `mean` where there are several."""
        there = [o for o in OPERATORS if o in set(self.table.operator)]
        return [*there, *([AVERAGE] if len(there) > 1 else [])]

    @property
    def rows(self) -> list[Row]:
        """The key numbers that are there."""
        there = set(zip(self.table.experiment, self.table.measure, strict=True))
        return [row for row in ROWS if (row.experiment, row.measure) in there]

    def of(self, row: Row, operator: str) -> dict[str, Mean]:
        """By run what there is of a key number."""
        v = self.values
        found = v[(v.experiment == row.experiment) & (v.measure == row.measure) & (v.operator == operator)]
        return {str(entry["run"]): Mean(**mean_entry(entry)) for entry in found.to_dict("records")}

    def summary(self) -> dict[str, Any]:
        """Of all key numbers the median distance, relative to the run's value; in how many comparisons the difference is clear;
        and the means of what is said of choices."""
        out: dict[str, Any] = {}
        for operator, rows in self.table.groupby("operator", sort=False):
            told = rows[rows.value.notna() & (rows.value != 0)]
            tested = rows[rows.clear.notna()]
            out[str(operator)] = {
                **{f"{way}_relative": (told[way] / told.value.abs()).median() for way in (HALVES, SEEDS)},
                "clear_differences": int(tested.clear.sum()),
                "of_comparisons": int(tested.repeats.sum()),
            }
        means = self.choices.groupby(["operator", "between", "choice"], sort=False).value.mean()
        overall = means.groupby(["between", "choice"], sort=False).mean().reset_index().assign(operator=AVERAGE)
        for row in pd.concat([means.reset_index(), overall]).itertuples():
            out.setdefault(str(row.operator), {})[f"{row.between}_{row.choice}"] = row.value
        return out


def stability(repeats: Sequence[Repeat]) -> Stability:
    """Compare a run, the first, with its repetitions."""
    columns = [*_NAMED, "run", *MEAN]
    values = pd.DataFrame([row for repeat in repeats for row in _values(repeat)], columns=columns)
    table = [{**rows[_NAMED].iloc[0], **_compared(rows)} for _, rows in values.groupby(_NAMED, sort=False)]
    choices = [row for between, one, other in _pairs(repeats) for row in _choices(between, one, other)]
    return Stability(
        values,
        pd.DataFrame(table),
        pd.DataFrame(choices, columns=["operator", "choice", "between", "one", "other", "value", "n"]),
        [repeat.name for repeat in repeats],
    )


def _values(repeat: Repeat) -> Iterator[dict[str, Any]]:
    for row in ROWS:
        columns = [*OPERATORS, AVERAGE]
        for operator, entry in zip(columns, entries_of(row, repeat.summary, list(OPERATORS)), strict=True):
            mean = _as_mean(entry)
            if mean is not None:
                yield {**_key(row), "operator": operator, "run": repeat.name, **mean}


def _key(row: Row) -> dict[str, str]:
    return {"experiment": row.experiment, "measure": row.measure}


def _as_mean(entry: Any) -> dict[str, Any] | None:
    """A number of a summary with its interval, if it has one; None for what is no number."""
    if isinstance(entry, dict):
        return None if np.isnan(entry["value"]) else mean_entry(entry)
    if isinstance(entry, int | float) and not np.isnan(entry):
        return {"value": float(entry), "low": np.nan, "high": np.nan, "n": 0}
    return None


def _compared(rows: pd.DataFrame) -> dict[str, Any]:
    """One number in the run and its repetitions."""
    found = {str(row["run"]): Mean(**mean_entry(row)) for row in rows.to_dict("records")}
    nothing = Mean(np.nan, np.nan, np.nan, 0)
    whole = found.pop(WHOLE, nothing)
    halves = [found.get(f"{HALF}{i}", nothing).value for i in (1, 2)]
    seeds = [whole.value, *(mean.value for name, mean in found.items() if name.startswith(SEED))]
    seeds = [value for value in seeds if not np.isnan(value)]
    low, high = (min(seeds), max(seeds)) if len(seeds) > 1 else (np.nan, np.nan)
    distances = [abs(mean.value - whole.value) for mean in found.values()]
    gaps = [difference(mean, whole) for mean in found.values()]
    clear = sum(gap.low > 0 or gap.high < 0 for gap in gaps)
    return {
        **asdict(whole),
        "half_1": halves[0],
        "half_2": halves[1],
        HALVES: abs(halves[0] - halves[1]),
        "seeds_low": low,
        "seeds_high": high,
        SEEDS: high - low,
        "largest": max(distances, default=np.nan),
        "clear": np.nan if np.isnan(whole.low) else clear,
        "repeats": len(found),
    }


def _pairs(repeats: Sequence[Repeat]) -> Iterator[tuple[str, Repeat, Repeat]]:
    """What is compared with what: one half with the other, and all seeds with each other."""
    for one, other in pairwise(repeat for repeat in repeats if repeat.name.startswith(HALF)):
        yield HALVES, one, other
    for one, other in combinations([r for r in repeats if not r.name.startswith(HALF)], 2):
        yield SEEDS, one, other


def _choices(between: str, one: Repeat, other: Repeat) -> Iterator[dict[str, Any]]:
    named = {"between": between, "one": one.name, "other": other.name}
    for operator, (a, b) in _both(one.effects, other.effects):
        together = pd.concat([a, b], axis=1, join="inner").rank()
        value = together.iloc[:, 0].corr(together.iloc[:, 1]) if len(together) > 1 else np.nan
        yield {"operator": operator, "choice": CORRELATION, **named, "value": value, "n": len(together)}
    for choice, mine, theirs in (
        (HEADS, one.heads, other.heads),
        (SHARED_HEADS, one.shared_heads, other.shared_heads),
        (NEURONS, one.neurons, other.neurons),
    ):
        for operator, (a, b) in _both(mine, theirs):
            [row] = compared({one.name: a, other.name: b})
            yield {"operator": operator, "choice": choice, **named, "value": row["iou"], "n": row["union"]}
    for criterion in CRITERIA:
        for operator, (a, b) in _both(one.kinds[criterion], other.kinds[criterion]):
            yield {"operator": operator, "choice": f"{criterion}_kept", **named, **_kept(a, b)}


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    return ((operator, (one[operator], other[operator])) for operator in one if operator in other)


def _kept(one: pd.DataFrame, other: pd.DataFrame) -> dict[str, Any]:
    """From matches with the columns layer, neuron, kind, on, each once."""
    neurons = ["layer", "neuron"]
    same = len(one.merge(other)[neurons].drop_duplicates())
    n = sum(len(rows[neurons].drop_duplicates()) for rows in (one, other))
    return {"value": 2 * same / n if n else np.nan, "n": n}
