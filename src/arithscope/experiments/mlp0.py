"""The first MLP: which neurons matter at op1, operator and op2, how few suffice, and what numbers they respond to (Appendix B).

1. Patch each neuron at each of the three positions with its counterfactual activation; rank neurons by their mean effect.
   Attribution methods, and `atp+exact`, are used as in the stage `neurons`. Where answers have several steps, each pass is read
   at all of them that patch the same prompts (`mlp0_steps`).
2. Keep a growing share of the best neurons in the operator's circuit, at all positions, and mean-ablate the others. The share
   that suffices is chosen on the selection prompts and reported on the evaluation prompts.
3. Do the same with the MLPs of the answer layers reduced to their top neurons at the last position, as in the paper.
4. Read each neuron's activation at op1 for every number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.attribution import attributed_effects
from arithscope.experiments.common.ranking import best_first, rank_statistic
from arithscope.experiments.common.result import Result, by_operator, of_operator, summary_table
from arithscope.experiments.common.samples import Split, batches, evaluation_prompts, selection_prompts, splits
from arithscope.experiments.common.shared_steps import of_step, shared_steps
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import effect_tables
from arithscope.experiments.means import MeanActivations, Singles
from arithscope.experiments.neurons import method_of, neuron_effects, number_exact
from arithscope.experiments.topk import TopK
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.heuristics.kinds import Bools
from arithscope.models.hooks import capturing
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, Stratum, random_source
from arithscope.settings import EXACT, MEAN
from arithscope.stats.effects import EFFECTS
from arithscope.stats.intervals import Floats, Mean
from arithscope.utils.executor import split_evenly
from arithscope.utils.progress import Advance

ALL_POSITIONS = "mean"  # value of the column `position` for the average over positions
SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # of the neurons to keep
NEURONS_IN_UNIT = 4096
VERIFIED_NEURONS = 12  # neurons of each operator that `verify` patches again
_EFFECTS = (
    schema.text("position", "`op1`, `operator`, `op2` and so on, or `mean`: averaged over them", key=True),
    schema.NEURON,
    schema.EFFECT_MEASURE,
    schema.METHOD,
    *schema.EFFECT_COLUMNS,
)
_CURVE = (*ablation.CURVE, schema.number("share", "share of the neurons that is kept"))


@dataclass(frozen=True, repr=False)
class SharedFirstMlp(Result):
    """Effects of the first MLP's neurons at answer steps that patch the same prompts; their stage `mlp0` takes them over."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each neuron at each position on each answer step; empty unless all effects are exact.",
        schema.OPERATOR,
        schema.STEP,
        *_EFFECTS,
    )

    def summary(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, repr=False)
class FirstMlp(Result):
    """Effects of the first MLP's neurons, and circuits that keep only some of them."""

    effects: pd.DataFrame = schema.table(
        "Effect of patching each neuron at each position, and the mean effect over positions.",
        schema.OPERATOR,
        *_EFFECTS,
    )
    curve: pd.DataFrame = schema.table(
        "The circuit with only the best neurons of the first MLP, or as many random ones, on the evaluation prompts.",
        *_CURVE,
    )
    reduced: pd.DataFrame = schema.table("The same with the answer layers' MLPs reduced to their top neurons.", *_CURVE)
    selection: pd.DataFrame = schema.table("`curve` on the selection prompts, without random neurons.", *_CURVE)
    table: pd.DataFrame = schema.table(
        "Measures at the smallest share that suffices, and with 1 % of the neurons; `reduced_…` with reduced later MLPs."
    )
    tuning: Singles = schema.array(
        "activation of each neuron at the last token of op1, for each number", "float32", "neurons, numbers"
    )
    smallest_share: dict[str, float] = schema.value("smallest share within 0.02 of the best faithfulness, by operator")

    def strongest(self, operator: str, measure: str = "probability") -> NDArray[np.int64]:
        """Neurons by descending effect, averaged over positions; exactly patched ones before estimated ones."""
        return _strongest(self.effects, operator, measure)

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.table)
        for operator, share in self.smallest_share.items():
            out[operator]["share_that_suffices"] = share
        return out


@stage(
    needs=(WholeAnswers,),
    reads=("operators", "sizes", "seed", "neurons"),
    memory=replay_memory,
    joins_steps=True,
    paper="App. B",
)
def mlp0_steps(ctx: Context) -> SharedFirstMlp:
    """Effects of the first MLP's neurons for all answer steps that patch the same prompts: each pass is read at every step."""
    shared = shared_steps(ctx) if ctx.settings.neurons == EXACT else {}
    some = slice(0, ctx.settings.sizes.first_mlp)
    neurons = {o: ctx.sample(ctx.model.sizes.neurons, VERIFIED_NEURONS, "mlp0", o) for o in shared}
    groups = []
    for operator, together in shared.items():
        prompts, last = (together.split.discovery[some], together.split.counterfactuals[some]), together.steps[-1]
        for at in _positions(together.model).values():
            reads = last - together.read_at(at + 1)[0] + 1
            chunks = split_evenly(len(neurons[operator]), NEURONS_IN_UNIT)
            groups.append([(*prompts, [0], neurons[operator][None, c], at, reads, last) for c in chunks])
    total = sum(len(unit[0]) * unit[3].size for group in groups for unit in group)
    with ctx.progress.task("mlp0_steps", total) as advance:
        parts = iter(ctx.map_groups(neuron_effects, groups, advance))
    tables = [SharedFirstMlp.frame("effects", [])]
    for operator, together in shared.items():
        found: dict[int, dict[str, Floats]] = {step: {} for step in together.steps}  # by step and position
        for name, at in _positions(together.model).items():
            read, values = together.read_at(at + 1), np.concatenate(next(parts), axis=1)[0]
            for step in read:
                found[step][name] = values[..., step - read[0], :]
        for step, by_position in found.items():
            tables += _effect_tables(by_position, neurons[operator], EXACT, operator=operator, step=step)
    table = pd.concat(tables[1:] or tables, ignore_index=True)[SharedFirstMlp.columns("effects")]
    return SharedFirstMlp(ctx.confirmed("effects", table))


@stage(
    needs=(Accuracy, MeanActivations, Circuit, TopK),
    given=(SharedFirstMlp,),
    reads=("max_operand", "sizes", "seed", "effect", "neurons"),
    memory=replay_memory,
    paper="App. B",
)
def mlp0(ctx: Context) -> FirstMlp:
    """Effects of the first MLP's neurons at the operands and the operator, and the smallest share of them that suffices."""
    s, draws, samples = ctx.model.sizes, ctx.settings.sizes.draws, splits(ctx)
    evaluation, selected = evaluation_prompts(ctx), selection_prompts(ctx)
    sources = {operator: random_source(ctx.settings.seed, "mlp0", operator) for operator in samples}
    # Shares by number of neurons kept. In a small MLP several shares may give the same number; the smallest wins.
    shares = {max(round(share * s.neurons), int(share > 0)): share for share in reversed(SHARES)}
    counts = sorted(shares)

    def arguments(operator: str, sizes: list[int], draws: int, later: Mapping[int, Bools]) -> tuple[Any, ...]:
        best = _strongest(effects, operator, ctx.settings.effect)
        orders = ablation.with_random_orders(best[None], draws, sources[operator]).astype(np.int32)
        heads = ctx.results[Circuit].keeps(operator, s.layers, s.heads)
        return ctx.results[MeanActivations], heads, orders, sizes, later

    def whole(operator: str, sizes: list[int], draws: int) -> tuple[Any, ...]:
        return arguments(operator, sizes, draws, {})

    def reduced(operator: str, sizes: list[int], draws: int) -> tuple[Any, ...]:
        return arguments(operator, sizes, draws, _top_neurons(ctx.results[TopK], operator))

    first = ctx.settings.sizes.first_mlp
    estimated = int(ctx.settings.neurons != EXACT)  # in a pass for all neurons
    at_positions = (number_exact(ctx) + estimated) * len(_positions(ctx.model))
    patched = at_positions * sum(min(len(split.discovery), first) for split in samples.values())
    n_prompts, n_selected = (sum(map(len, prompts.values())) for prompts in (evaluation, selected))
    ablated = len(counts) * (n_selected + 2 * n_prompts * (1 + draws))
    with ctx.progress.task("mlp0", patched + ablated) as advance:
        effects = _effects(ctx, samples, advance)
        selection, curve, with_reduced = (
            ablation.growth_curve(ctx, field, first_mlp_scores, prompts, counts, circuits, n_draws, advance)
            for field, prompts, circuits, n_draws in (
                ("selection", selected, whole, 0),
                ("curve", evaluation, whole, draws),
                ("reduced", evaluation, reduced, draws),
            )
        )
        [tuning] = ctx.map(number_tuning, [(ctx.stratum,)], advance)
    measured: dict[str, dict[str, Mean]] = {}
    smallest = {}
    for operator in samples:
        size, one_percent = ablation.smallest_on_plateau(selection, operator), max(round(0.01 * s.neurons), 1)
        smallest[operator] = shares[size]
        measured[operator] = {}
        for prefix, table in (("", curve), ("reduced_", with_reduced)):
            means = ablation.curve_means(table, operator)
            measured[operator] |= {prefix + measure: means[size][measure] for measure in ("faithfulness", "accuracy")}
            measured[operator][f"{prefix}faithfulness_of_1_percent"] = means[one_percent]["faithfulness"]
            measured[operator][f"{prefix}random_1_percent"] = means[one_percent]["random_faithfulness"]
    curves = [table.assign(share=table["size"] / s.neurons) for table in (curve, with_reduced, selection)]
    return FirstMlp(
        effects, curves[0], curves[1], curves[2], summary_table(measured), ctx.confirmed("tuning", tuning), smallest
    )


def _top_neurons(topk: TopK, operator: str) -> dict[int, Bools]:
    """By answer layer, which neurons the operator's circuit keeps; the first MLP, which is varied, is left out."""
    kept: dict[int, Bools] = {}
    for layer, neuron in topk.chosen(operator):
        if layer > 0:
            kept.setdefault(layer, np.zeros(topk.mlp_size, dtype=np.bool_))[neuron] = True
    return dict(sorted(kept.items()))


def first_mlp_scores(
    model: Model,
    means: MeanActivations,
    heads: ablation.HeadMasks,
    orders: Int[np.ndarray, "orders neurons"],
    counts: Sequence[int],
    later: Mapping[int, Bools],
    prompts: Prompts,
    *,
    advance: Advance,
) -> Floats:
    """Unit of work: scores in circuits that keep the first n neurons of each order in the first MLP, for each n.

    `later` has, by layer, the neurons that other MLPs keep at the last position; MLPs that are not in it stay whole.
    """
    first = ablation.nested_sets(orders, counts).numpy()
    kept = {0: first, **{layer: np.repeat(mask[None], len(first), axis=0) for layer, mask in later.items()}}
    starts = {0: model.positions.op1, **dict.fromkeys(later, model.positions.final)}
    return ablation.circuit_scores(model, means, heads, kept, starts, prompts, advance=advance)


def _effects(ctx: Context, samples: dict[str, Split], advance: Advance) -> pd.DataFrame:
    """Effects of patching each neuron at each position, by operator."""
    some, positions = slice(0, ctx.settings.sizes.first_mlp), _positions(ctx.model)
    n_exact, method, first_mlp = number_exact(ctx), method_of(ctx), [0]
    given = ctx.results.get(SharedFirstMlp)
    rows = {} if given is None else {o: of_step(given.effects, ctx.model.encoder.step, o) for o in samples}
    known = {o: own for o, own in rows.items() if len(own)}
    patched = {
        o: (split.discovery[some], split.counterfactuals[some]) for o, split in samples.items() if o not in known
    }
    orders, estimates = dict.fromkeys(patched, np.arange(ctx.model.sizes.neurons)), dict[str, Floats]()
    if method != EXACT:
        by_operator = [[(*prompts, first_mlp, method, at) for at in positions.values()] for prompts in patched.values()]
        parts = ctx.map_groups(attributed_effects, by_operator, advance)
        estimates = {o: np.concatenate(own) for o, own in zip(patched, parts, strict=True)}
        of_measure = {
            o: x.mean(0, keepdims=True)[..., EFFECTS.index(ctx.settings.effect)] for o, x in estimates.items()
        }
        orders = {o: best_first(rank_statistic(x, MEAN))[0] for o, x in of_measure.items()}

    def sampled(operator: str, which: slice) -> NDArray[np.int64]:
        """Some of an operator's neurons in their order: in a study all of them, under `verify` a few."""
        neurons = orders[operator][which]
        return neurons[ctx.sample(len(neurons), VERIFIED_NEURONS, "mlp0", operator)]

    exact = {o: sampled(o, slice(0, n_exact)) for o in patched}
    chunks = {o: split_evenly(len(neurons), NEURONS_IN_UNIT) for o, neurons in exact.items()}
    groups = [
        [(*prompts, first_mlp, exact[o][None, c], at) for c in chunks[o]]
        for o, prompts in patched.items()
        for at in positions.values()
        if n_exact
    ]
    measured = (np.concatenate(own, axis=1)[0] for own in ctx.map_groups(neuron_effects, groups, advance))
    tables: list[pd.DataFrame] = []
    for operator in samples:
        if operator in known:
            tables.append(known[operator])
            continue
        found = [(EXACT, exact[operator], [next(measured) for _ in positions])] if n_exact else []
        if len(rest := sampled(operator, slice(n_exact, None))):
            found.append((method, rest, list(estimates[operator][:, rest])))
        for used, neurons, values in found:
            tables += _effect_tables(dict(zip(positions, values, strict=True)), neurons, used, operator=operator)
    return ctx.confirmed("effects", pd.concat(tables, ignore_index=True)[FirstMlp.columns("effects")])


def _effect_tables(
    by_position: Mapping[str, Floats], neurons: NDArray[np.int64], method: str, **columns: Any
) -> Iterator[pd.DataFrame]:
    """Tables of effects [neurons, prompts, measures] at each position, and of their mean over positions."""
    values = np.stack(list(by_position.values()))
    values = np.concatenate([values, values.mean(0, keepdims=True)])
    position = np.repeat([*by_position, ALL_POSITIONS], len(neurons))
    neuron = np.tile(neurons.astype(np.int32), len(values))
    return effect_tables({**columns, "position": position, "neuron": neuron, "method": method}, values)


def _positions(model: Model) -> dict[str, int]:
    """The named positions before the last one, at which the first MLP reads operands and operator."""
    return dict(model.positions.names[:-1])


def _strongest(effects: pd.DataFrame, operator: str, measure: str) -> NDArray[np.int64]:
    rows = of_operator(effects, operator, measure)
    rows = rows[rows.position == ALL_POSITIONS]
    rows = rows.assign(estimated=rows.method != EXACT)
    return rows.sort_values(["estimated", "value", "neuron"], ascending=[True, False, True]).neuron.to_numpy()


@torch.no_grad()
def number_tuning(model: Model, stratum: Stratum, *, advance: Advance) -> Singles:
    """Unit of work: activations of the first MLP at op1, at its last token, [neurons, numbers]. They depend on op1 alone."""
    numbers = stratum.sides[0]
    operator = np.full_like(numbers, OPERATORS.index(model.encoder.operators[0]))
    at, activations = model.positions.op1 + len(stratum.tokens.op1) - 1, []
    for _, batch in batches(model, Prompts(numbers, operator, np.full_like(numbers, stratum.op2[0])), 0):
        with capturing(model, neurons=[0], keep=lambda x: x[:, at].float().cpu()) as seen:
            model.logits(model.encoder.encode_questions(batch).to(model.device))
        activations.append(seen.neurons[0])
    return torch.cat(activations).T.contiguous().numpy()
