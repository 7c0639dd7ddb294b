"""Circuits of few neurons against plain hooks; the numbers of neurons tried; a fixed k."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.experiments.circuit import Circuit, circuit
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.localize import localize
from arithscope.experiments.means import means
from arithscope.experiments.neurons import NeuronEffects, neurons
from arithscope.experiments.topk import TopK, neuron_counts, topk
from arithscope.models.model import Model
from arithscope.prompts import operand_grid
from arithscope.settings import SampleSizes, Settings
from tests.contexts import compute, context
from tests.experiments import plain
from tests.experiments.test_neurons import FIRST, answer_layers_from, models
from tests.families import small

SIZES = SampleSizes(discovery=3, evaluation=4, first_mlp=1, probe=1, draws=2, selection=5)
SETTINGS = Settings(max_operand=2, custom_sizes=SIZES)


def everything(
    model: Model, operators: str, rank: str, fixed: dict[str, int] | None
) -> tuple[TopK, Circuit, dict[str, Any]]:
    ctx = context(model, SETTINGS, plain.all_correct(model, operators, 5), *answer_layers_from(FIRST))
    settings = replace(SETTINGS, operators=tuple(operators), effect="log_ratio", rank=rank, topk=fixed)
    results = compute(replace(ctx, settings=replace(settings, effect="probability")), means, localize, circuit, neurons)
    found = topk(replace(ctx, settings=settings))
    effects, heads = results[NeuronEffects], results[Circuit]
    rankings = {o: effects.ranking(o, "log_ratio", rank) for o in operators}
    return found, heads, rankings


@models
def test_faithfulness_equals_plain_mean_ablation(family: str, attention: str, prefix: str) -> None:
    """The circuit's heads, early MLPs whole, and k neurons of each later MLP at the last position."""
    model = small(family, attention, prefix=prefix)
    found, heads, rankings = everything(model, "+", "mean", None)
    ranking, s = rankings["+"], model.sizes
    prompts = split_prompts(plain.all_correct(model, "+", 5), SIZES, 0)["+"].evaluation
    slow = plain.means(model, operand_grid("+-*/", 2))
    curve = found.curve[found.curve.circuit == "found"].set_index(["size", "measure"]).value
    for measure in ("faithfulness", "accuracy", "p_answer"):
        assert found.summary()["+"][f"floor_{measure}"]["value"] == curve[0, measure]
    at = [model.positions.final]
    for k in (0, 5, 25, s.neurons):
        kept = {i: set(ranking[ranking.layer == i].neuron[:k].tolist()) for i in range(FIRST, s.layers)}
        for measure, want in plain.measures(model, prompts, slow, set(heads.chosen("+")), kept, at).items():
            assert curve[k, measure] == pytest.approx(want, rel=1e-3, abs=1e-4)
    random = found.curve[(found.curve.circuit == "random") & (found.curve["size"].isin([0, s.neurons]))]
    for row in random.to_dict("records"):
        assert row["value"] == pytest.approx(curve[row["size"], row["measure"]], abs=1e-4)
    assert found.summary()["+"]["faithfulness"]["value"] == curve[found.k["+"], "faithfulness"]


@pytest.mark.parametrize("rank", ["mean", "mean_abs"])
def test_k_is_chosen_on_selection_prompts_and_reported_on_others(rank: str) -> None:
    """Another ranking is shown beside the one in use: the paper's, or by mean absolute effect if that is in use."""
    model = small("llama", "sdpa")
    found, heads, rankings = everything(model, "+", rank, None)
    other = "mean" if rank == "mean_abs" else "mean_abs"
    assert found.ranked_by == found.summary()["+"]["ranked_by"] == rank
    assert set(found.rankings.ranking) == {rank, other}
    split = split_prompts(plain.all_correct(model, "+", 5), SIZES, 0)["+"]
    assert set(found.selection.n) == {len(split.selection)} != set(found.curve[found.curve.circuit == "found"].n)
    slow, ranking, at = plain.means(model, operand_grid("+-*/", 2)), rankings["+"], [model.positions.final]
    curves = {
        name: table[(table.circuit == "found") & (table.measure == "faithfulness")]
        for name, table in (("selection", found.selection), ("curve", found.curve))
    }
    kept = {i: set(ranking[ranking.layer == i].neuron[:5].tolist()) for i in range(FIRST, model.sizes.layers)}
    for name, prompts in (("selection", split.selection), ("curve", split.evaluation)):
        want = plain.measures(model, prompts, slow, set(heads.chosen("+")), kept, at)["faithfulness"]
        assert curves[name].set_index("size").value[5] == pytest.approx(want, rel=1e-3, abs=1e-4)
    by_size = curves["selection"].set_index("size").value
    chosen = min(size for size, value in by_size.items() if value >= by_size.max() - 0.02)
    assert found.k["+"] == max(chosen, 1)
    summary = found.summary()["+"]
    assert summary[f"k_by_{rank}"] == summary["k"]
    assert summary[f"accuracy_by_{rank}"]["value"] == summary["accuracy"]["value"]
    assert summary["faithfulness"]["value"] == curves["curve"].set_index("size").value[found.k["+"]]
    assert isinstance(summary[f"k_by_{other}"], int)


@pytest.mark.parametrize("rank", ["mean", "mean+std"])
def test_a_fixed_k(rank: str) -> None:
    model = small("llama", "sdpa")
    found, _, rankings = everything(model, "+-", rank, {"+": 9, "-": 7})
    assert found.k == {"+": 9, "-": 7}
    assert {7, 9} <= set(found.curve["size"])
    layers = range(FIRST, model.sizes.layers)
    for operator, ranking in rankings.items():
        kept, k = found.kept(operator), found.k[operator]
        assert kept["rank"].tolist() == [*range(k)] * len(layers)
        for layer in layers:
            best = ranking[ranking.layer == layer][:k]
            mine = kept[kept.layer == layer]
            assert mine.neuron.tolist() == best.neuron.tolist()
            assert mine.value.tolist() == best.value.tolist()
        assert found.chosen(operator) == set(zip(kept.layer.tolist(), kept.neuron.tolist(), strict=True))
    summary = found.summary()["-"]
    assert summary["k"] == 7
    assert summary["share_of_neurons"] == pytest.approx(7 / model.sizes.neurons)
    assert {"faithfulness", "accuracy", "p_answer", "random_accuracy"} <= summary.keys()


@given(st.integers(1, 30_000), st.data())
def test_neuron_counts_grow_by_at_most_a_third(total: int, data: st.DataObject) -> None:
    fixed = data.draw(st.lists(st.integers(1, total), max_size=3))
    counts = neuron_counts(total, fixed)
    assert counts[0] == 0
    assert counts[-1] == total
    assert set(fixed) <= set(counts)
    assert all(a < b <= max(a + 1, 1.34 * a) for a, b in pairwise(counts))
    assert len(counts) < 12 + 10 * len(str(total))


def test_neuron_counts_of_a_small_mlp() -> None:
    assert neuron_counts(128) == [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 63, 80, 100, 125, 128]
