"""How stable the key numbers are: the study is repeated on each half of the prompts, and with other seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd

from arithscope.experiments import (
    accuracy,
    answer_layers,
    bag,
    circuit,
    failures,
    knockout,
    neurons,
    overlap,
    probe,
    topk,
)
from arithscope.experiments.classify import CRITERIA, Classification
from arithscope.experiments.common import schema
from arithscope.experiments.common.key_numbers import KEY_NUMBERS, KeyNumber, key_number_entries
from arithscope.experiments.common.result import AVERAGE, Result, mean_entry
from arithscope.experiments.common.stage import Context, Results, registered_stages, stage
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.prompts import OPERATORS
from arithscope.stats.intervals import Mean, difference

# Results with key numbers or choices to compare: first the components found, then what they share and do.
_COMPONENTS = (accuracy.Accuracy, circuit.Circuit, probe.Probe, answer_layers.AnswerLayers)
_NEURONS = (neurons.NeuronEffects, topk.TopK, Classification)
COMPARED = (*_COMPONENTS, *_NEURONS, overlap.Overlap, knockout.Knockout, PromptKnockout, failures.Failures, bag.Bag)
WHOLE = "all"  # the run itself, not a repetition
HALVES, SEEDS = "halves", "seeds"  # the two ways of repeating it
HALF, SEED = "half-", "seed-"  # prefixes of the names of such repetitions
CORRELATION, HEADS, SHARED_HEADS, NEURONS = "neuron_correlation", "heads_iou", "shared_heads_iou", "neurons_iou"
CHOICES = (CORRELATION, HEADS, SHARED_HEADS, NEURONS, *(f"{criterion}_kept" for criterion in CRITERIA))

_KEY = (
    schema.text("experiment", "stage that the number comes from", key=True),
    schema.text("measure", "its name in that stage's summary", key=True),
    schema.text("operator", "operator; `mean` for all together", key=True),
)
_KEY_NAMES = [column.name for column in _KEY]


@dataclass(frozen=True)
class Repeat:
    """What is compared of a run or a repetition: only the accuracy if the model is hardly ever right."""

    name: str
    summary: Mapping[str, Any]  # of its results, by stage
    # By name of the choice and operator: statistics that rank neurons, indexed by layer and neuron; sets of heads or neurons as
    # (layer, number); or tables of matches with the columns layer, neuron, kind and on.
    choices: "Mapping[str, Mapping[str, pd.Series[float] | set[tuple[int, int]] | pd.DataFrame]]"


@dataclass(frozen=True)
class RepeatResults:
    """The repetitions of a study."""

    repeats: list[Repeat]


def repeat_from(name: str, results: Results, effect: str) -> Repeat:
    """Collect what is compared from the results of a study; `effect` is the measure that ranks neurons."""
    stages = {each.result: each.name for each in registered_stages()}
    summary = {stages[kind]: results[kind].summary() for kind in COMPARED if kind in results}
    if circuit.Circuit not in results:
        return Repeat(name, summary, {})
    heads, top, classification = results[circuit.Circuit], results[topk.TopK], results[Classification]
    found, columns = results[neurons.NeuronEffects], ["layer", "neuron", "kind", "on"]
    ranked = found.effects[found.effects.measure == effect].groupby("operator", sort=False)
    choices: dict[str, Any] = {
        CORRELATION: {
            str(o): found.statistic(rows.set_index(["layer", "neuron"]), top.ranked_by) for o, rows in ranked
        },
        HEADS: {operator: set(heads.chosen(operator)) for operator in heads.operators},
        SHARED_HEADS: {AVERAGE: set(heads.shared())} if len(heads.operators) > 1 else {},
        NEURONS: {operator: top.chosen(operator) for operator in top.operators},
    }
    for criterion in CRITERIA:
        matches = {o: classification.matched(o, criterion)[columns].drop_duplicates() for o in top.operators}
        choices[f"{criterion}_kept"] = matches
    return Repeat(name, summary, choices)


@dataclass(frozen=True, repr=False)
class Stability(Result):
    """Key numbers and choices of a run, compared with those of its repetitions."""

    values: pd.DataFrame = schema.table(
        "Every key number of the run and of its repetitions.",
        *_KEY,
        schema.text("run", "`all`: the run; `half-1`, `half-2`: half the prompts; `seed-1`, …: other seeds", key=True),
        *schema.MEAN_COLUMNS,
    )
    table: pd.DataFrame = schema.table(
        "Every key number of the run, and how far repetitions are from it.",
        *_KEY,
        *schema.MEAN_COLUMNS,
        schema.number("half_1", "value on the first half of the prompts"),
        schema.number("half_2", "value on the second half"),
        schema.number("halves", "distance between these"),
        schema.number("seeds_low", "smallest value over all seeds, the run's own included"),
        schema.number("seeds_high", "largest value over all seeds"),
        schema.number("seeds", "distance between these"),
        schema.number("largest", "largest distance of a repetition from the run"),
        schema.number("clear", "repetitions with a difference whose interval excludes 0; NaN without intervals"),
        schema.number("repeats", "repetitions that have the number"),
    )
    choices: pd.DataFrame = schema.table(
        "Agreement of what two runs chose.",
        _KEY[-1],
        schema.text(
            "choice",
            "`neuron_correlation`: Spearman's correlation of neurons' statistics; `heads_iou`, `shared_heads_iou`, "
            "`neurons_iou`: IoU of the circuit's heads, of the heads all operators share, of the top neurons; `raw_kept`, "
            "`calibrated_kept`: share of the neurons classified in one run that have a match of the same kind in the other",
            key=True,
        ),
        schema.text("between", "`halves`, or `seeds` (the run itself included)", key=True),
        schema.text("one", "the first run", key=True),
        schema.text("other", "the second run", key=True),
        schema.number("value", "the agreement"),
        schema.number("n", "neurons that both measured; size of the union; or classified neurons of both together"),
    )
    runs: list[str] = schema.value("names of the run and its repetitions")

    @property
    def operators(self) -> list[str]:
        """Operators with numbers, and `mean` if there are several."""
        operators = [o for o in OPERATORS if o in set(self.table.operator)]
        return [*operators, *([AVERAGE] if len(operators) > 1 else [])]

    @property
    def key_numbers(self) -> list[KeyNumber]:
        """The key numbers that the run has."""
        known = set(zip(self.table.experiment, self.table.measure, strict=True))
        return [number for number in KEY_NUMBERS if (number.experiment, number.measure) in known]

    def means(self, number: KeyNumber, operator: str) -> dict[str, Mean]:
        """A key number by run."""
        v = self.values
        rows = v[(v.experiment == number.experiment) & (v.measure == number.measure) & (v.operator == operator)]
        return {str(row["run"]): Mean(**mean_entry(row)) for row in rows.to_dict("records")}

    def summary(self) -> dict[str, Any]:
        """Median distance of key numbers relative to the run's value, number of clear differences, and mean agreements."""
        out: dict[str, Any] = {}
        for operator, rows in self.table.groupby("operator", sort=False):
            nonzero, tested = rows[rows.value.notna() & (rows.value != 0)], rows[rows.clear.notna()]
            out[str(operator)] = {
                **{f"{way}_relative": (nonzero[way] / nonzero.value.abs()).median() for way in (HALVES, SEEDS)},
                "clear_differences": int(tested.clear.sum()),
                "of_comparisons": int(tested.repeats.sum()),
            }
        means = self.choices.groupby(["operator", "between", "choice"], sort=False).value.mean()
        overall = means.groupby(["between", "choice"], sort=False).mean().reset_index().assign(operator=AVERAGE)
        for row in pd.concat([means.reset_index(), overall]).itertuples():
            out.setdefault(str(row.operator), {})[f"{row.between}_{row.choice}"] = row.value
        return out


@stage(needs=COMPARED, given=(RepeatResults,), reads=("effect",), on_request=True)
def stability(ctx: Context) -> Stability:
    """Key numbers and choices of the run, compared with the same study on half of the prompts and with other seeds."""
    whole = repeat_from(WHOLE, ctx.results, ctx.settings.effect)
    return compare_repeats([whole, *ctx.results[RepeatResults].repeats])


def compare_repeats(repeats: Sequence[Repeat]) -> Stability:
    """Compare a run, the first, with its repetitions."""
    values = Stability.frame("values", (row for repeat in repeats for row in _value_rows(repeat)))
    table = [{**own[_KEY_NAMES].iloc[0], **_compared(own)} for _, own in values.groupby(_KEY_NAMES, sort=False)]
    pairs = [(HALVES, *pair) for pair in pairwise(r for r in repeats if r.name.startswith(HALF))]
    pairs += [(SEEDS, *pair) for pair in combinations([r for r in repeats if not r.name.startswith(HALF)], 2)]
    choices = Stability.frame("choices", (row for pair in pairs for row in _choice_rows(*pair)))
    return Stability(values, pd.DataFrame(table), choices, [repeat.name for repeat in repeats])


def _value_rows(repeat: Repeat) -> Iterator[dict[str, Any]]:
    for number in KEY_NUMBERS:
        entries = key_number_entries(number, repeat.summary, list(OPERATORS))
        for operator, entry in zip([*OPERATORS, AVERAGE], entries, strict=True):
            if isinstance(entry, int | float):
                entry = {"value": float(entry), "low": np.nan, "high": np.nan, "n": 0}
            if isinstance(entry, dict) and not np.isnan(entry["value"]):
                key = {"experiment": number.experiment, "measure": number.measure, "operator": operator}
                yield {**key, "run": repeat.name, **mean_entry(entry)}


def _compared(rows: pd.DataFrame) -> dict[str, Any]:
    """Row of `table` about one key number, from its rows of `values`."""
    repeats = {str(row["run"]): Mean(**mean_entry(row)) for row in rows.to_dict("records")}
    nothing = Mean(np.nan, np.nan, np.nan, 0)
    whole = repeats.pop(WHOLE, nothing)
    first, second = (repeats.get(f"{HALF}{i}", nothing).value for i in (1, 2))
    seeds = [whole.value, *(mean.value for name, mean in repeats.items() if name.startswith(SEED))]
    seeds = [value for value in seeds if not np.isnan(value)]
    low, high = (min(seeds), max(seeds)) if len(seeds) > 1 else (np.nan, np.nan)
    gaps = [difference(mean, whole) for mean in repeats.values()]
    largest = max((abs(mean.value - whole.value) for mean in repeats.values()), default=np.nan)
    clear = np.nan if np.isnan(whole.low) else sum(gap.low > 0 or gap.high < 0 for gap in gaps)
    halves = {"half_1": first, "half_2": second, HALVES: abs(first - second)}
    seeds_range = {"seeds_low": low, "seeds_high": high, SEEDS: high - low}
    return {**asdict(whole), **halves, **seeds_range, "largest": largest, "clear": clear, "repeats": len(repeats)}


def _choice_rows(between: str, one: Repeat, other: Repeat) -> Iterator[dict[str, Any]]:
    for choice in CHOICES:
        ours, theirs = (repeat.choices.get(choice, {}) for repeat in (one, other))
        for operator in [o for o in ours if o in theirs]:
            value, n = _agreement(ours[operator], theirs[operator])
            key = {"operator": operator, "choice": choice, "between": between, "one": one.name, "other": other.name}
            yield {**key, "value": value, "n": n}


def _agreement(ours: Any, theirs: Any) -> tuple[float, int]:
    """Rank correlation of effects, IoU of sets, or share of classified neurons that have a match of the same kind."""
    if isinstance(ours, pd.Series):
        ranks = pd.concat([ours, theirs], axis=1, join="inner").rank()
        return ranks.iloc[:, 0].corr(ranks.iloc[:, 1]) if len(ranks) > 1 else np.nan, len(ranks)
    if isinstance(ours, set):
        [row] = overlap.overlaps({"ours": ours, "theirs": theirs})
        return row["iou"], row["union"]
    # Tables of matches: count neurons with a match of the same kind in both runs, and classified neurons of each run.
    both, *each = (len(x[["layer", "neuron"]].drop_duplicates()) for x in (ours.merge(theirs), ours, theirs))
    return 2 * both / sum(each) if sum(each) else np.nan, sum(each)
