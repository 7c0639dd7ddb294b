"""Effects of single neurons against full passes with plain hooks; rankings and agreement against plain Python."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.answer_layers import AnswerLayers
from arithscope.experiments.common.attribution import BEST_METHOD, attributed_effects
from arithscope.experiments.common.ranking import RECALLED, percent_of, rank_statistic, rounded
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.neurons import SPLITS, NeuronEffects, neuron_effects, neurons
from arithscope.experiments.probe import Probe
from arithscope.prompts import random_source
from arithscope.settings import ATTRIBUTION_THEN_EXACT, EXACT, RANKINGS, SampleSizes, Settings
from arithscope.stats.effects import EFFECTS
from tests.contexts import context
from tests.experiments import plain
from tests.families import small

SIZES = SampleSizes(discovery=3, evaluation=2, first_mlp=1, probe=1, selection=2)
SETTINGS = Settings(effect="log_ratio", custom_sizes=SIZES)
FIRST = 1
# One of each kind of layer: plain, parallel, with post-norms, with learned positions; and a few-shot prefix.
MODELS = [("llama", "sdpa", ""), ("gpt_neox", "eager", ""), ("gemma2", "eager", ""), ("gpt2", "sdpa", "7+5=12=")]
models = pytest.mark.parametrize(("family", "attention", "prefix"), MODELS)


def answer_layers_from(layer: int) -> tuple[Probe, AnswerLayers]:
    """Probe and cause agree on the first answer layer."""
    return Probe(pd.DataFrame(), {}, layer, layer, 0, "last"), by_cause(dict.fromkeys("+-*/", layer))


def by_cause(first: dict[str, int], left: float = 0.0) -> AnswerLayers:
    """Answer layers without which this accuracy is left."""
    rows = [{"operator": o, "sample": "selection", "layer": layer, "value": left} for o, layer in first.items()]
    return AnswerLayers(pd.DataFrame(rows), first, dict.fromkeys(first, 0.0))


def found(family: str, method: str, operators: str = "+", attention: str = "sdpa", prefix: str = "") -> NeuronEffects:
    model = small(family, attention, prefix=prefix)
    earlier = plain.all_correct(model, operators, 9), *answer_layers_from(FIRST)
    return neurons(context(model, SETTINGS, *earlier, neurons=method))


@models
def test_exact_effects_equal_plain_patching(family: str, attention: str, prefix: str) -> None:
    model = small(family, attention, prefix=prefix)
    result = found(family, "exact", "+-", attention, prefix)
    s = model.sizes
    assert len(result.effects) == 2 * len(EFFECTS) * (s.layers - FIRST) * s.neurons
    assert set(result.effects.method) == {"exact"}
    assert result.first_layer == {"+": FIRST, "-": FIRST}
    table = result.effects.set_index(["operator", "measure", "layer", "neuron"]).sort_index()
    accuracy = plain.all_correct(model, "+-", 9)
    largest = 0.0
    for operator, split in split_prompts(accuracy, SIZES, 0).items():
        for layer in range(FIRST, s.layers):
            for neuron in range(layer, s.neurons, 7):
                module, last = plain.mlp_module(model, layer), model.positions.final
                entries = slice(neuron, neuron + 1)
                effects, ratios = plain.patched_effects(
                    model, split.discovery, split.counterfactuals, module, last, entries
                )
                for measure, values in (("probability", effects), ("log_ratio", ratios)):
                    row = table.loc[(operator, measure, layer, neuron)]
                    statistics = {"value": np.mean, "median": np.median, "std": np.std}
                    for name, statistic in statistics.items():
                        assert row[name] == pytest.approx(statistic(values), rel=2e-3, abs=2e-5)
                    assert row.mean_abs == pytest.approx(sum(map(abs, values)) / len(values), rel=2e-3, abs=2e-5)
                    assert row.n == len(values)
                    assert row.low <= row.value <= row.high
                largest = max(largest, *np.abs(effects))
    assert largest > 1e-2  # there was something to compare


def test_agreement_of_the_attribution_methods() -> None:
    result = found("llama", "exact", "+-")
    assert len(result.agreement) == 2 * 3 * len(EFFECTS) * 2
    estimated = {method: found("llama", method, "+-") for method in ("atp", "ig", "relp")}
    layers = result.effects.layer.unique()
    for row in result.agreement.to_dict("records"):
        key = row["operator"], row["measure"], row["ranking"]
        ours, theirs = (r.ranking(*key) for r in (result, estimated[row["method"]]))
        column = "value" if row["ranking"] == "mean" else "mean_abs"
        ranks = [r.set_index(["layer", "neuron"])[column].rank() for r in (ours, theirs)]
        assert row["rank_correlation"] == pytest.approx(ranks[0].corr(ranks[1]))
        for percent in RECALLED:
            k = percent_of(small("llama").sizes.neurons, percent)
            best = [
                {(layer, n) for layer in layers for n in r[r.layer == layer].neuron[:k].tolist()}
                for r in (ours, theirs)
            ]
            assert row[f"recall_{percent}"] == pytest.approx(len(best[0] & best[1]) / len(best[0]))
    summary = result.summary()["+"]
    assert summary["neurons"] == summary["measured_exactly"] == 2 * small("llama").sizes.neurons
    best = result.effects[(result.effects.operator == "+") & (result.effects.measure == "probability")]
    best = best.sort_values("value").iloc[-1]
    assert summary["strongest_neuron"]["component"] == f"L{best.layer}N{best.neuron}"
    assert summary["strongest_neuron"]["value"] == best.value
    table = result.agreement.set_index(["operator", "method", "measure", "ranking"]).rank_correlation
    for ranking in ("mean", "mean_abs"):
        assert summary[f"ig_rank_correlation_by_{ranking}"] == table["+", "ig", "probability", ranking]


def test_an_attribution_method_alone_estimates_everything() -> None:
    model, result = small("llama", "sdpa"), found("llama", "relp")
    split = split_prompts(plain.all_correct(model, "+", 9), SIZES, 0)["+"]
    layers = range(FIRST, model.sizes.layers)
    want = attributed_effects(
        model, split.discovery, split.counterfactuals, layers, "relp", model.positions.final, advance=lambda n: None
    )
    table = result.effects.set_index(["measure", "layer", "neuron"]).value.unstack(["layer", "neuron"])
    assert np.allclose(table.loc[list(EFFECTS)].to_numpy().T, want.mean(2).reshape(-1, len(EFFECTS)), atol=1e-6)
    assert set(result.effects.method) == {"relp"}
    assert result.agreement.empty
    assert result.summary()["+"]["measured_exactly"] == 0


def test_attribution_selects_neurons_to_patch_exactly() -> None:
    """The best tenth of each layer has the effects of an exact run, the others the estimates; the former rank first."""
    exact, estimated, result = (found("llama", method) for method in (EXACT, BEST_METHOD, ATTRIBUTION_THEN_EXACT))
    keys = ["measure", "layer", "neuron"]
    assert not result.effects.duplicated(keys).any()
    assert len(result.effects) == len(exact.effects)
    picked = result.effects[result.effects.method == "exact"]
    size = small("llama").sizes.neurons
    per_layer = percent_of(size, 10)
    for _, layer in picked.groupby(["measure", "layer"]):
        assert len(layer) == per_layer
    ranking = estimated.ranking("+", "log_ratio")
    for layer, rows in ranking.groupby("layer"):
        assert set(rows.neuron[:per_layer]) == set(picked[picked.layer == layer].neuron)
    for part, whole in ((picked, exact), (result.effects[result.effects.method == BEST_METHOD], estimated)):
        columns = ["value", "median", "std"]
        merged = part.merge(whole.effects, on=keys, suffixes=("", "_whole"))
        assert len(merged) == len(part)
        assert np.allclose(merged[columns], merged[[f"{c}_whole" for c in columns]], rtol=1e-3, atol=1e-6)
    for measure in EFFECTS:
        for _, rows in result.ranking("+", measure).groupby("layer"):
            assert (rows.method == "exact").tolist() == [True] * per_layer + [False] * (size - per_layer)
    assert result.agreement.empty


def plain_statistic(effects: list[float], ranking: str) -> float:
    n = len(effects)
    mean = sum(effects) / n
    if ranking == "mean_abs":
        return sum(abs(x) for x in effects) / n
    return mean if ranking == "mean" else mean + (sum((x - mean) ** 2 for x in effects) / n) ** 0.5


def rank_of(value: float, values: list[float]) -> float:
    """From 1 on; equal values share the mean of their places."""
    return sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2


@pytest.mark.parametrize("method", [EXACT, "relp", ATTRIBUTION_THEN_EXACT])
def test_split_half_reliability_against_python(method: str) -> None:
    """Effects by prompt, exact or estimated as in the result, and ranks counted one by one."""
    model, result = small("llama", "sdpa"), found("llama", method, "+-")
    layers = range(FIRST, model.sizes.layers)
    everything = np.tile(np.arange(model.sizes.neurons), (len(layers), 1))
    for operator, split in split_prompts(plain.all_correct(model, "+-", 9), SIZES, 0).items():
        arguments = model, split.discovery, split.counterfactuals, layers
        exact = neuron_effects(*arguments, everything, model.positions.final, advance=lambda n: None)
        used = BEST_METHOD if method == ATTRIBUTION_THEN_EXACT else "relp"
        guessed = attributed_effects(*arguments, used, model.positions.final, advance=lambda n: None)
        random = random_source(0, "split half", operator)
        orders = [random.permutation(SIZES.discovery) for _ in range(SPLITS)]
        for (i, measure), ranking in product(enumerate(EFFECTS), RANKINGS):
            kinds = result.effects[(result.effects.operator == operator) & (result.effects.measure == measure)]
            is_exact = kinds.set_index(["layer", "neuron"]).method.eq(EXACT)
            by_neuron = {
                (layer, n): [float(x) for x in (exact if is_exact[layer, n] else guessed)[layer - FIRST, n, :, i]]
                for layer, n in is_exact.index
            }
            correlations, recalls = [], []
            for order in orders:
                halves = [
                    {key: plain_statistic([values[p] for p in half], ranking) for key, values in by_neuron.items()}
                    for half in (order[:1].tolist(), order[1:].tolist())
                ]
                ranks = [[rank_of(v, list(half.values())) for v in half.values()] for half in halves]
                correlations.append(np.corrcoef(ranks)[0, 1])
                k = percent_of(model.sizes.neurons, 5)
                best = [
                    {key for layer in layers for key in sorted((x for x in half if x[0] == layer), key=half.get)[-k:]}
                    for half in halves
                ]
                recalls.append(len(best[0] & best[1]) / len(best[0]))
            table = result.split_half.set_index(["operator", "measure", "ranking"])
            row = table.loc[(operator, measure, ranking)]
            assert row["rank_correlation"] == pytest.approx(np.mean(correlations), abs=1e-4)
            assert row["recall_5"] == pytest.approx(np.mean(recalls))
            if measure == "probability":
                summary = result.summary()[operator]
                assert summary[f"split_half_by_{ranking}"] == row["rank_correlation"]
                assert summary[f"split_half_recall_of_best_5_percent_by_{ranking}"] == row["recall_5"]


def test_one_prompt_has_no_halves() -> None:
    model = small("llama", "sdpa")
    sizes = replace(SIZES, discovery=1)
    earlier = plain.all_correct(model, "+", 9), *answer_layers_from(FIRST)
    result = neurons(context(model, SETTINGS, *earlier, neurons="atp", custom_sizes=sizes))
    assert len(result.split_half) == len(EFFECTS) * len(RANKINGS)
    assert result.split_half.rank_correlation.isna().all()
    assert np.isnan(result.summary()["+"]["split_half_by_mean"])


@given(st.data())
def test_ranking_against_python(data: st.DataObject) -> None:
    """Few distinct values, so that there are ties."""
    values = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
    rows: list[dict[str, Any]] = [
        {
            "operator": operator,
            "layer": layer,
            "neuron": neuron,
            "measure": measure,
            "method": data.draw(st.sampled_from(["exact", "atp"])),
            "value": data.draw(values),
            "mean_abs": abs(data.draw(values)),
            "std": abs(data.draw(values)),
        }
        for operator in "+-"
        for measure in ("probability", "logit")
        for layer in (3, 4)
        for neuron in range(4)
    ]
    shuffled = data.draw(st.permutations(rows))
    result = NeuronEffects(pd.DataFrame(shuffled), *[pd.DataFrame()] * 3, {"-": 3}, "cause")
    keys = {
        "mean": lambda r: r["value"],
        "mean_abs": lambda r: r["mean_abs"],
        "mean+std": lambda r: r["value"] + r["std"],
    }
    for rank, statistic in keys.items():
        wanted = sorted(
            (r for r in rows if (r["operator"], r["measure"]) == ("-", "logit")),
            key=lambda r: (
                r["layer"],
                r["method"] != "exact",
                -statistic(r),
                r["neuron"],
            ),
        )
        assert result.ranking("-", "logit", rank).to_dict("records") == wanted


def test_the_paper_preset_finds_layers_as_the_paper() -> None:
    """From the probe's layer on; otherwise by cause."""
    model = small("llama", "sdpa")
    probe, _ = answer_layers_from(2)
    layers = by_cause({"+": 1})
    found = {}
    for preset in ("quick", "paper"):
        settings = Settings(preset=preset, neurons="atp", custom_sizes=SIZES)
        found[preset] = neurons(context(model, settings, plain.all_correct(model, "+", 9), probe, layers))
    assert (found["quick"].first_layer, found["quick"].layers_by) == ({"+": 1}, "cause")
    assert (found["paper"].first_layer, found["paper"].layers_by) == ({"+": 2}, "probe")
    assert set(found["paper"].effects.layer) == set(range(2, model.sizes.layers))


@pytest.mark.parametrize(("left", "first"), [(0.1, 0), (0.11, 2)])
def test_where_the_answer_needs_no_mlp_the_probe_says_which_layers_are_studied(left: float, first: int) -> None:
    model = small("llama", "sdpa")
    probe, _ = answer_layers_from(2)
    settings = Settings(neurons="atp", custom_sizes=SIZES)
    layers = by_cause({"+": 0}, left)
    assert layers.needed("+") == (first == 0)
    found = neurons(context(model, settings, plain.all_correct(model, "+", 9), probe, layers))
    assert found.first_layer == {"+": first}
    assert set(found.effects.layer) == set(range(first, model.sizes.layers))


def test_the_paper_preset_keeps_faithfulness_alone() -> None:
    assert (
        Settings().sufficient == Settings(preset="paper", plateau="accuracy").sufficient == ("faithfulness", "accuracy")
    )
    assert Settings(preset="paper").sufficient == Settings(plateau="faithfulness").sufficient == ("faithfulness",)


@pytest.mark.parametrize(("preset", "rank"), [("quick", "mean_abs"), ("paper", "mean")])
def test_the_paper_preset_ranks_as_the_paper(preset: str, rank: str) -> None:
    assert Settings(preset=preset).ranking == rank
    for chosen in RANKINGS:
        assert Settings(preset=preset, rank=chosen).ranking == chosen


def test_measures_are_compared_with_probability() -> None:
    result = found("llama", "atp")
    table = result.measures.set_index(["measure", "ranking"])
    assert set(table.index) == {(m, r) for m in ("log_ratio", "logit") for r in ("mean", "mean_abs")}
    for (measure, ranking), row in table.iterrows():
        column = "value" if ranking == "mean" else "mean_abs"
        ranks = [
            result.effects[result.effects.measure == m].set_index(["layer", "neuron"])[column].rank()
            for m in ("probability", measure)
        ]
        assert row.rank_correlation == pytest.approx(ranks[0].corr(ranks[1]))
    for key in ("mean", "mean_abs"):
        assert result.summary()["+"][f"logit_against_probability_by_{key}"] == table.rank_correlation["logit", key]


def test_a_neuron_that_matters_with_both_signs_has_a_mean_near_zero() -> None:
    """Two samples agree on its absolute effect, but not on its mean."""
    random = np.random.default_rng(0)
    size = np.exp(random.normal(0, 1, (1, 300, 1)))
    one, other = (size * random.choice([-1.0, 1.0], (1, 300, 50)) for _ in range(2))
    agreement = {
        ranking: np.corrcoef(*(rank_statistic(x, ranking)[0].argsort().argsort() for x in (one, other)))[0, 1]
        for ranking in RANKINGS
    }
    assert abs(agreement["mean"]) < 0.3
    assert agreement["mean_abs"] > 0.99


def test_differences_within_rounding_are_ties() -> None:
    values = pd.Series([1.0, 2e-9, -3e-9, 0.5, 0.5 + 1e-9])
    assert rounded(values).rank(method="min").tolist() == [5, 1, 1, 3, 3]
    assert rounded(pd.Series([0.0, 0.0])).tolist() == [0.0, 0.0]
