"""Effects and faithfulness against a slow reimplementation with plain hooks: all components, all positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arithscope.experiments.circuit import Circuit, circuit
from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.heads import heads
from arithscope.experiments.localize import MLP, Localization, localize
from arithscope.experiments.means import MeanActivations, means
from arithscope.experiments.mlp0 import mlp0
from arithscope.experiments.neurons import neurons
from arithscope.experiments.topk import TopK, topk
from arithscope.prompts import operand_grid
from arithscope.settings import SampleSizes, Settings
from tests.contexts import compute, context
from tests.experiments import plain
from tests.experiments.test_neurons import answer_layers_from
from tests.families import small

SIZES = SampleSizes(discovery=3, evaluation=4, first_mlp=2, probe=1000, draws=2, selection=4)
SETTINGS = Settings(custom_sizes=SIZES)
# One of each kind of layer: plain, parallel, with post-norms, with learned positions; and a few-shot prefix.
MODELS = [("llama", "sdpa", ""), ("gpt_neox", "eager", ""), ("gemma2", "eager", ""), ("gpt2", "sdpa", "7+5=12=")]
models = pytest.mark.parametrize(("family", "attention", "prefix"), MODELS)


@models
def test_effects_of_all_components_at_all_positions(family: str, attention: str, prefix: str) -> None:
    model = small(family, attention, prefix=prefix)
    accuracy = plain.all_correct(model, "+-", 9)
    found = localize(context(model, SETTINGS, accuracy))
    samples = split_prompts(accuracy, SIZES, 0)
    table = found.effects.set_index(["operator", "measure", "position", "layer", "head"])
    s = model.sizes
    assert len(table) == 2 * 3 * 4 * s.layers * (s.heads + 1)
    for operator, split in samples.items():
        for name, position in model.positions.named().items():
            for layer in range(s.layers):
                for head in [*range(s.heads), MLP]:
                    module = plain.mlp_module(model, layer) if head == MLP else plain.heads_module(model, layer)
                    entries = slice(None) if head == MLP else plain.head_entries(model, head)
                    effects, ratios = plain.patched_effects(
                        model, split.discovery, split.counterfactuals, module, position, entries
                    )
                    for measure, values in (("probability", effects), ("log_ratio", ratios)):
                        row = table.loc[(operator, measure, name, layer, head)]
                        assert row.value == pytest.approx(np.mean(values), rel=2e-3, abs=2e-5)
                        assert row["median"] == pytest.approx(np.median(values), rel=2e-3, abs=2e-5)
                        assert row.n == len(values)
    assert table.value.abs().max() > 1e-2  # there was something to compare


@models
def test_faithfulness_of_every_circuit(family: str, attention: str, prefix: str) -> None:
    model = small(family, attention, prefix=prefix)
    accuracy = plain.all_correct(model, "+", 5)
    results = compute(context(model, SETTINGS, accuracy, max_operand=2), means, localize, circuit)
    everything, where, found = results[MeanActivations], results[Localization], results[Circuit]
    slow = plain.means(model, operand_grid("+-*/", 2))
    for layer in range(model.sizes.layers):
        want = slow[plain.heads_module(model, layer)].unflatten(-1, (model.sizes.heads, -1)).numpy()
        assert np.allclose(everything.heads[layer], want, atol=1e-5)
        assert np.allclose(everything.neurons[layer], slow[plain.mlp_module(model, layer)].numpy(), atol=1e-5)
    prompts = split_prompts(accuracy, SIZES, 0)["+"].evaluation
    ranking = where.ranking("+", "probability")
    order = list(zip(ranking.layer, ranking["head"], strict=True))
    assert [tuple(h) for h in found.heads[["layer", "head"]].to_numpy()] == order
    curve = found.curve[found.curve.circuit == "found"].set_index(["size", "measure"]).value
    for n in range(0, len(order) + 1, 3):
        for measure, want in plain.measures(model, prompts, slow, set(order[:n])).items():
            assert curve[n, measure] == pytest.approx(want, rel=1e-3, abs=1e-4)
    assert curve[len(order), "faithfulness"] == pytest.approx(1)


def test_the_circuit_is_chosen_on_selection_prompts_and_the_union_evaluated() -> None:
    model = small("llama", "sdpa")
    accuracy = plain.all_correct(model, "+-", 5)
    found = compute(context(model, SETTINGS, accuracy, max_operand=2), means, localize, circuit)[Circuit]
    slow = plain.means(model, operand_grid("+-*/", 2))
    union = {head for operator in "+-" for head in found.chosen(operator)}
    assert found.summary()["mean"]["union_heads"] == len(union)
    for operator, split in split_prompts(accuracy, SIZES, 0).items():
        by_size = found.selection[(found.selection.operator == operator) & (found.selection.measure == "faithfulness")]
        by_size = by_size.set_index("size").value
        size = len(found.chosen(operator))
        assert size == min(n for n, value in by_size.items() if value >= by_size.max() - 0.02)
        want = plain.measures(model, split.selection, slow, set(found.chosen(operator)))
        assert by_size[size] == pytest.approx(want["faithfulness"], rel=1e-3, abs=1e-4)
        for kept, prefix in ((set(found.chosen(operator)), ""), (union, "union_")):
            for measure, value in plain.measures(model, split.evaluation, slow, kept).items():
                entry = found.summary()[operator][prefix + measure]
                assert entry["value"] == pytest.approx(value, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("family", "attention"), [("llama", "sdpa"), ("gemma2", "eager")])
def test_neurons_of_the_first_mlp(family: str, attention: str) -> None:
    model = small(family, attention)
    accuracy = plain.all_correct(model, "+", 5)
    ctx = context(model, SETTINGS, accuracy, *answer_layers_from(1), max_operand=2, neurons="atp", topk=7)
    results = compute(ctx, means, localize, circuit, neurons, topk)
    found = mlp0(replace(context(model, SETTINGS, max_operand=9), results=results))
    split = split_prompts(accuracy, SIZES, 0)["+"]
    module = plain.mlp_module(model, 0)
    table = found.effects.set_index(["measure", "position", "neuron"]).sort_index()
    averages = []
    for neuron in range(0, model.sizes.neurons, 5):
        entries, by_position = slice(neuron, neuron + 1), []
        for name in ("op1", "operator", "op2"):
            position, some = model.positions.named()[name], slice(0, SIZES.first_mlp)
            values, _ = plain.patched_effects(
                model, split.discovery[some], split.counterfactuals[some], module, position, entries
            )
            by_position.append(np.mean(values))
            assert table.loc[("probability", name, neuron)].value == pytest.approx(by_position[-1], rel=5e-3, abs=2e-5)
        averages.append(np.mean(by_position))
        assert table.loc[("probability", "mean", neuron)].value == pytest.approx(averages[-1], rel=5e-3, abs=2e-5)
    assert np.abs(averages).max() > 1e-3

    strongest = found.strongest("+")
    means_of = table.loc[("probability", "mean")].value
    assert np.all(np.diff(means_of.loc[strongest]) <= 0)
    slow = plain.means(model, operand_grid("+-*/", 2))
    curve = found.curve[(found.curve.circuit == "found") & (found.curve.measure == "faithfulness")]
    for row in curve.iloc[[0, 4, 7]].itertuples():
        kept = {0: set(strongest[: row.size].tolist())}
        chosen = set(results[Circuit].chosen("+"))
        want = plain.measures(model, split.evaluation, slow, chosen, kept)
        assert row.value == pytest.approx(want["faithfulness"], rel=1e-3, abs=1e-4)
    # With later MLPs reduced, as in the paper: their top neurons at the last position only.
    later = {layer: {n for i, n in results[TopK].chosen("+") if i == layer} for layer in range(1, model.sizes.layers)}
    reduced = found.reduced[(found.reduced.circuit == "found") & (found.reduced.measure == "faithfulness")]
    for row in reduced.iloc[[0, 4, 7]].itertuples():
        kept = {0: set(strongest[: row.size].tolist()), **later}
        starts = {0: None, **{layer: [model.positions.final] for layer in later}}
        want = plain.measures(model, split.evaluation, slow, set(results[Circuit].chosen("+")), kept, starts)
        assert row.value == pytest.approx(want["faithfulness"], rel=1e-3, abs=1e-4)
    assert not np.allclose(reduced.value, curve.value, atol=1e-3)

    for number in (0, 4, 9):
        prompt = operand_grid("+", 9)[[number * 10]]
        want = plain.activation(model, prompt, module)[model.positions.op1]
        assert np.allclose(found.tuning[:, number], want.numpy(), atol=1e-5)


def test_attention_patterns_and_roles() -> None:
    """Mean attention over prompts, prompt by prompt, with the library's own output of attention weights."""
    model = small("llama", "eager")
    accuracy = plain.all_correct(model, "+-", 9)
    ctx = context(model, SETTINGS, accuracy, max_operand=3)
    chosen = compute(ctx, means, localize, circuit)[Circuit]
    found = heads(ctx)
    assert len(found.roles) == sum(len(chosen.chosen(o)) for o in "+-") > 0
    for i, row in enumerate(found.roles.itertuples()):
        prompts = split_prompts(accuracy, SIZES, 0)[row.operator].evaluation
        total = np.zeros_like(found.attention[i])
        for j in range(len(prompts)):
            output = model.hf_model(input_ids=model.encode(prompts[[j]]), output_attentions=True)
            total += output.attentions[row.layer][0, row.head].numpy()
        want = total / len(prompts)
        assert np.allclose(found.attention[i], want, atol=1e-5)
        assert row.attends_to == found.positions[want[-1].argmax()]
        assert row.attention == pytest.approx(want[-1].max(), abs=1e-5)
        acts_at = model.positions.named()[row.acts_at]
        assert row.reads == found.positions[want[acts_at].argmax()]
