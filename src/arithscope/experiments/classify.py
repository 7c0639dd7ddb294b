"""Classification: which heuristics the top neurons implement, and which matches can be trusted (Section 4.1, Appendices E, F).

1. Match every top neuron with every heuristic of its operator: a score of at least 0.6 is a (raw) match.
2. Calibrate: p against the permutation null, then the false-discovery rate over the operator's neurons. Matches with a rate
   of at most 0.05 are calibrated. In gated MLPs, and only after calibration, negative activations may match too (sign −1).
3. For calibrated matches about the result or both operands: the score that remains if activations depend on one operand only.
4. Coverage: the share of each activation map's variance that the neuron's heuristics explain together.
5. Name: of the rules that fit a neuron with a calibrated match, the simplest (heuristics/naming.py).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.common import schema
from arithscope.experiments.common.classify_units import (
    EXAMINED,
    ONE_OPERAND,
    Vocabulary,
    columns_of,
    examine_unit,
    frame_of,
    indirect_null_unit,
    match_unit,
)
from arithscope.experiments.common.result import Result, of_neuron, summary_table
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.patterns import ActivationMaps, as_slice
from arithscope.heuristics.calibration import FDR_LEVEL, false_discovery_rate
from arithscope.heuristics.neuron_matching import calibrate, with_p
from arithscope.heuristics.overlaps import CPU_ELEMENTS, GPU_ELEMENTS, THRESHOLDS
from arithscope.models.model import Model
from arithscope.settings import Settings
from arithscope.stats.intervals import Mean, share, unit_mean
from arithscope.utils.executor import split_evenly
from arithscope.utils.progress import Advance

RAW, CALIBRATED = CRITERIA = ("raw", "calibrated")
ANY = "any"  # all kinds of heuristics together; or: a neuron counts under every kind it matches
ONCE = "once"  # a neuron counts under one kind
ALL_LAYERS = -1
NEURONS_IN_UNIT = 256
VERIFIED_NEURONS = 32  # neurons of each operator that `verify` matches again
_NEURON = ["operator", "layer", "neuron"]
_COVERAGE = [f"coverage_{criterion}" for criterion in CRITERIA]
_Tables = tuple[pd.DataFrame, ...]

_KIND = schema.text(
    "kind",
    "its kind: `range`, `modulo`, `pattern`, `identical` or `multi-result`; where numbers have several tokens also `digit`, "
    "`digit pair`, `digit sum`, `digit difference`, `carry` or `borrow`",
)
_ON = schema.text(
    "on", "what it is about: `op1`, `op2`, `op1, op2`, `result` (the token that is asked for) or `answer` (all of it)"
)
_SIGN = "1: its prompts are compared with the largest activations; −1 (gated MLPs): with the most negative ones"
_MATCH = (
    *schema.NEURON_KEY,
    schema.text("heuristic", "the heuristic, as in `op1 in [0, 10]`", key=True),
    _KIND,
    _ON,
    schema.boolean("direct", "whether it is about the result: activations are weighted by the value vector's logits"),
    schema.integer("sign", _SIGN, key=True),
    schema.number("size", "number k of legal prompts for which it holds"),
    schema.number("overlap", "how many of them are among the neuron's top k"),
    schema.number("neg_log10_p_hypergeom", "−log₁₀ of the hypergeometric tail probability of the overlap"),
    schema.number("expected", "score expected from the value vector alone; for operand heuristics, chance"),
    schema.number("neg_log10_p", "−log₁₀ of the tail probability of the overlap, given the expected score"),
    schema.number("score", "overlap / k; with sign 1, a raw match if at least 0.6"),
    schema.number("chance", "k / number of legal prompts"),
    schema.number("corrected", "(score − chance) / (1 − chance)"),
    schema.number("p", "p against the permutation null, over all heuristics tried"),
    schema.number("fdr", "false-discovery rate among the operator's neurons"),
    schema.boolean("calibrated", "score ≥ 0.6 and fdr ≤ 0.05"),
)


@dataclass(frozen=True, repr=False)
class Classification(Result):
    """Matches of top neurons with heuristics, and shares of neurons that have one."""

    matches: pd.DataFrame = schema.table(
        "Every neuron and heuristic with a score of at least 0.6. With sign −1 they are a match only if calibrated.",
        *_MATCH,
        schema.number("op1_only", "mean score left if activations depend on op1 only (calibrated, two-operand rules)"),
        schema.number("op2_only", "mean score left if activations depend on op2 only"),
        schema.number("two_operands", "1 if the score is clearly larger than both, 0 if not, NaN if not tested"),
    )
    best: pd.DataFrame = schema.table(
        "For each neuron and kind of heuristic, the heuristic with the largest `neg_log10_p`, match or not.", *_MATCH
    )
    neurons: pd.DataFrame = schema.table(
        "All top neurons, classified or not.",
        *schema.NEURON_KEY,
        schema.number("p", "smallest p among its best heuristics"),
        schema.number("fdr", "false-discovery rate among the operator's neurons"),
        schema.number("best_score", "largest score with any heuristic, with sign 1"),
        schema.number("coverage_raw", "share of the map's variance that all its raw matches explain together"),
        schema.number("coverage_calibrated", "the same for calibrated matches"),
        schema.boolean("raw", "whether it has a raw match"),
        schema.boolean("calibrated", "whether it has a calibrated match"),
        schema.boolean("two_operands", "whether it has a match that clearly needs both operands"),
    )
    names: pd.DataFrame = schema.table(
        "For each neuron with a calibrated match, the simplest rule that fits it as well as any other.",
        *schema.NEURON_KEY,
        schema.text("heuristic", "the rule that names it"),
        _KIND,
        _ON,
        schema.integer("sign", "1: it fires on the rule's prompts; −1: it fires negatively"),
        schema.number(
            "fit",
            "R² of the activations (direct: times the answers' logits) on the rule, over legal prompts",
        ),
        schema.text("best_match", "its calibrated match of largest `neg_log10_p`"),
        schema.listing("aliases", "rules that hold for nearly the same legal prompts (Jaccard index at least 0.9)"),
        unique=True,
    )
    strongest: pd.DataFrame = schema.table(
        "For each neuron, the most significant heuristic among those that reach a score.",
        *schema.NEURON_KEY,
        schema.boolean("direct", "among direct or among indirect heuristics", key=True),
        schema.number("threshold", "the score", key=True),
        schema.number("neg_log10_p", "its `neg_log10_p`"),
        schema.number("p", "p against the permutation null, over all heuristics tried"),
    )
    shares: pd.DataFrame = schema.table(
        "Share of top neurons with at least one match.",
        schema.OPERATOR,
        schema.integer("layer", "layer, from 0; −1 for all layers", key=True),
        schema.text("kind", "kind of heuristic, or `any`", key=True),
        schema.text("on", "what the heuristic is about, or `any`", key=True),
        schema.CRITERION,
        schema.text(
            "counting",
            "`any`: a neuron counts under every kind it matches; `once`: under the kind of its name (raw: of its most "
            "significant match)",
            key=True,
        ),
        *schema.MEAN_COLUMNS,
    )
    thresholds: pd.DataFrame = schema.table(
        "Share of top neurons that would be classified with another threshold.",
        schema.OPERATOR,
        schema.number("threshold", "smallest score of a match", key=True),
        schema.CRITERION,
        *schema.MEAN_COLUMNS,
    )
    table: pd.DataFrame = schema.table("Shares of classified neurons and mean coverage, by operator.")

    @property
    def operators(self) -> list[str]:
        return [str(o) for o in self.neurons.operator.unique()]

    def matched(self, operator: str | None, criterion: str | None = None) -> pd.DataFrame:
        """Matches of an operator, or of all: `raw` ones, calibrated ones, or (None) both."""
        matches = self.matches if operator is None else self.matches[self.matches.operator == operator]
        raw, calibrated = matches.sign == 1, matches.calibrated
        return matches[{RAW: raw, CALIBRATED: calibrated, None: raw | calibrated}[criterion]]

    def of_neuron(self, operator: str, layer: int, neuron: int) -> pd.DataFrame:
        """Matches of a neuron, raw or calibrated, by descending `neg_log10_p`."""
        matches = of_neuron(self.matched(operator), operator, layer, neuron)
        return matches.sort_values("neg_log10_p", ascending=False, kind="stable")


def _memory(model: Model, settings: Settings) -> int:
    """Sort keys, orders and counts. Activation maps do not count: they are memory-mapped."""
    if model.device.type == "cuda":
        return 80 * GPU_ELEMENTS
    return 2**29 + 40 * CPU_ELEMENTS * torch.get_num_threads()


@stage(needs=(ActivationMaps,), reads=("both_operands", "sizes", "seed"), memory=_memory, paper="4.1, App. E, F")
def classify(ctx: Context) -> Classification:
    """Match every top neuron with every heuristic, and calibrate the matches."""
    top = ctx.results[ActivationMaps].neurons[_NEURON].reset_index(drop=True)
    parts = [part for operator in ctx.results[ActivationMaps].operators for part in _parts(ctx, operator)]
    with ctx.progress.task("classify", 2 * len(top)) as advance:
        *found, strongest, scores = _match(ctx, top, parts, advance)
        calibrated = [calibrate(_NEURON, *(x[x.operator == o] for x in found)) for o in top.operator.unique()]
        matches, best, rates = (pd.concat(x, ignore_index=True) for x in zip(*calibrated, strict=True))
        matches, coverage, names = _examine(ctx, top, matches, scores, parts, advance)
    row = _rows(top, matches)
    raw, sure = (matches.sign == 1).to_numpy(), matches.calibrated.to_numpy()
    matched = {RAW: row[raw], CALIBRATED: row[sure], "two_operands": row[matches.two_operands == 1]}
    neurons = top.merge(rates, how="left", on=_NEURON).merge(coverage, how="left", on=_NEURON)
    neurons = neurons.assign(**{name: top.index.isin(rows) for name, rows in matched.items()})
    shares, thresholds = _shares(neurons, matches, names), _thresholds(neurons, strongest)
    table = _summary(neurons, matches)
    return Classification(matches, best, neurons, names, strongest, shares, thresholds, table)


@dataclass(frozen=True, eq=False)
class _Part:
    """Neurons of a unit of work, with their rows among the top neurons."""

    vocabulary: Vocabulary
    rows: NDArray[np.int64]
    maps: tuple[NDArray[np.float16], NDArray[np.float32]]  # activations and logits


def _parts(ctx: Context, operator: str) -> Iterator[_Part]:
    maps = ctx.results[ActivationMaps]
    every = maps.rows(operator)
    rows = every.start + ctx.sample(every.stop - every.start, VERIFIED_NEURONS, "classify", operator)
    for chunk in split_evenly(len(rows), NEURONS_IN_UNIT):
        at = as_slice(rows[chunk])
        vocabulary = operator, maps.stratum, ctx.settings.both_operands
        yield _Part(vocabulary, rows[chunk], (np.asarray(maps.activations[at]), np.asarray(maps.logits[at])))


def _match(ctx: Context, top: pd.DataFrame, parts: list[_Part], advance: Advance) -> _Tables:
    """Matches, best heuristics and strongest ones, with p but without false-discovery rates; and neurons' best scores."""
    seed, draws = ctx.settings.seed, ctx.settings.sizes.permutations
    names = np.array([neuron_name(*x) for x in zip(top.layer, top.neuron, strict=True)], dtype=object)
    units = [(x.vocabulary, draws, seed, names[x.rows].tolist(), *x.maps) for x in parts]
    found = ctx.map(match_unit, units, advance)
    vocabularies = list(dict.fromkeys(part.vocabulary for part in parts))
    nulls = ctx.map(indirect_null_unit, [(vocabulary, seed) for vocabulary in vocabularies], advance)
    tables: list[list[pd.DataFrame]] = []
    sampled_null: dict[str, int] = {}  # number of neurons, where not all are matched
    for vocabulary, (null_of_indirect, *tried) in zip(vocabularies, nulls, strict=True):
        own = [(part.rows, x) for part, x in zip(parts, found, strict=True) if part.vocabulary == vocabulary]
        null_of_direct = np.concatenate([null for _, (*_, null) in own])
        if len(null_of_direct) < (top.operator == vocabulary[0]).sum():
            sampled_null[vocabulary[0]] = len(null_of_direct)
        frames = [[frame_of({**x[i], "row": rows[x[i]["row"]]}) for rows, x in own] for i in (0, 1)]
        frames.append([_strongest_frame(rows, x[2]) for rows, x in own])
        null = null_of_indirect, null_of_direct.ravel()
        tables.append([with_p(pd.concat(x, ignore_index=True), null, (tried[0], tried[1])) for x in frames])
    joined = (pd.concat(each, ignore_index=True) for each in zip(*tables, strict=True))
    # Replace `row` by operator, layer and neuron.
    named = [top.iloc[x.row].reset_index(drop=True).join(x.drop(columns="row")) for x in joined]
    tables_of = zip(("matches", "best", "strongest"), named, strict=True)
    confirmed = [ctx.confirmed(name, table, sampled_null=sampled_null) for name, table in tables_of]
    rows, scores = (np.concatenate(x) for x in ([part.rows for part in parts], [x[3] for x in found]))
    return *confirmed, top.iloc[rows].assign(best_score=scores)


def _strongest_frame(rows: NDArray[np.int64], strongest: NDArray[np.float64]) -> pd.DataFrame:
    """The largest statistics [neurons, classes, thresholds] as a table, without those that no heuristic reaches."""
    row, of_class, threshold = np.isfinite(strongest).nonzero()
    columns = {"row": rows[row], "direct": of_class == 1, "threshold": np.array(THRESHOLDS)[threshold]}
    return pd.DataFrame({**columns, "neg_log10_p": strongest[row, of_class, threshold]})


def _examine(
    ctx: Context,
    top: pd.DataFrame,
    matches: pd.DataFrame,
    scores: pd.DataFrame,
    parts: list[_Part],
    advance: Advance,
) -> _Tables:
    """Matches with one-operand scores; neurons with best score and coverage; names."""
    row, units, chosen = _rows(top, matches), [], []
    for part in parts:
        chosen.append(np.flatnonzero(np.isin(row, part.rows)))
        own = matches.iloc[chosen[-1]].assign(row=np.searchsorted(part.rows, row[chosen[-1]]))
        units.append((part.vocabulary, ctx.settings.seed, columns_of(own[EXAMINED]), *part.maps))
    one_operand, coverage, named = zip(*ctx.map(examine_unit, units, advance), strict=True)
    keys = matches.iloc[np.concatenate(chosen)][[*_NEURON, "heuristic", "sign"]]
    scored = keys.assign(**dict(zip(ONE_OPERAND, np.concatenate(one_operand).T, strict=True)))
    scored = ctx.confirmed("matches", scored)
    measured = scores.assign(**dict(zip(_COVERAGE, np.concatenate(coverage).T, strict=True)))
    measured = ctx.confirmed("neurons", measured)[[*_NEURON, "best_score", *_COVERAGE]]
    names = [{**name, "row": part.rows[name["row"]]} for part, own in zip(parts, named, strict=True) for name in own]
    table = pd.DataFrame(names, columns=["row", *Classification.columns("names")[len(_NEURON) :]])
    table = top.iloc[table.row.to_numpy(dtype=np.int64)].reset_index(drop=True).join(table.drop(columns="row"))
    matches = matches.assign(**{name: scored[name].to_numpy() for name in ONE_OPERAND})
    return matches, measured, ctx.confirmed("names", table)


def _rows(top: pd.DataFrame, table: pd.DataFrame) -> NDArray[np.int64]:
    """For each row of a table, the row of its neuron in `top`."""
    places, wanted = (pd.MultiIndex.from_frame(each[_NEURON]) for each in (top, table))
    return places.get_indexer(wanted)


def _shares(neurons: pd.DataFrame, matches: pd.DataFrame, names: pd.DataFrame) -> pd.DataFrame:
    """Share of neurons with at least one match, by operator, layer, kind of heuristic, criterion and way of counting."""
    raw = matches[matches.sign == 1]
    first = raw.sort_values("neg_log10_p", ascending=False, kind="stable").drop_duplicates(_NEURON)
    counted = {
        (RAW, ANY): raw,
        (CALIBRATED, ANY): matches[matches.calibrated],
        (RAW, ONCE): first,
        (CALIBRATED, ONCE): names,
    }
    pairs = [pair for table in counted.values() for pair in zip(table.kind, table.on, strict=True)]
    kinds, rows = [(ANY, ANY), *sorted(set(pairs))], []
    for operator, own in neurons.groupby("operator", sort=False):
        layers = own.layer.to_numpy()
        has_match = {}
        for way, table in counted.items():
            found = table[table.operator == operator]
            place = _rows(own, found)
            for kind, on in kinds:
                of_kind = ((found.kind == kind) & (found.on == on)).to_numpy() | (kind == ANY)
                has_match[kind, on, *way] = np.isin(np.arange(len(own)), place[of_kind])
        for layer in (ALL_LAYERS, *sorted(own.layer.unique())):
            here = (layers == layer) | (layer == ALL_LAYERS)
            for key, matched in has_match.items():
                named = dict(zip(("kind", "on", "criterion", "counting"), key, strict=True))
                mean = share(int(matched[here].sum()), int(here.sum()))
                rows.append({"operator": operator, "layer": layer, **named, **asdict(mean)})
    return pd.DataFrame(rows)


def _thresholds(neurons: pd.DataFrame, strongest: pd.DataFrame) -> pd.DataFrame:
    """Share of neurons that some heuristic matches with at least each score: at all, and with a false-discovery rate ≤ 0.05."""
    rows = []
    for operator, own in neurons.groupby("operator", sort=False):
        found = strongest[strongest.operator == operator]
        found = found[false_discovery_rate(found.p.to_numpy(), own.p.to_numpy()) <= FDR_LEVEL]
        for threshold in THRESHOLDS:
            sure = found[found.threshold == threshold][_NEURON].drop_duplicates()
            for criterion, n in ((RAW, int((own.best_score >= threshold).sum())), (CALIBRATED, len(sure))):
                key = {"operator": operator, "threshold": threshold, "criterion": criterion}
                rows.append({**key, **asdict(share(n, len(own)))})
    return pd.DataFrame(rows)


def _summary(neurons: pd.DataFrame, matches: pd.DataFrame) -> pd.DataFrame:
    sure = matches[matches.calibrated]
    positive = pd.MultiIndex.from_frame(sure[sure.sign == 1][_NEURON])
    only_negative = neurons.calibrated & ~pd.MultiIndex.from_frame(neurons[_NEURON]).isin(positive)
    shares = {
        **{f"{criterion}_share": neurons[criterion] for criterion in CRITERIA},
        "negative_only_share": only_negative,
    }
    shares["two_operand_share"] = neurons.two_operands
    measured: dict[str, dict[str, Mean]] = {}
    for operator in neurons.operator.unique():
        here = neurons.operator == operator
        means = {name: share(int(flags[here].sum()), int(here.sum())) for name, flags in shares.items()}
        for name in _COVERAGE:
            means[name] = unit_mean(neurons[name][here])
        tested = matches[(matches.operator == operator) & matches.two_operands.notna()]
        if len(tested):
            means["one_operand_share_of_matches"] = share(int((tested.two_operands == 0).sum()), len(tested))
        measured[str(operator)] = means
    return summary_table(measured)
