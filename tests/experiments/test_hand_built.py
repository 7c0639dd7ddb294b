"""A model whose circuit is known by construction: every stage must find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arithscope.experiments.common.samples import split_prompts
from arithscope.experiments.localize import MLP, component_name
from arithscope.experiments.neurons import neuron_name
from arithscope.pipeline.registry import chosen_stages
from arithscope.pipeline.runner import run_stages
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import Prompts
from arithscope.settings import Settings
from arithscope.utils.progress import Silent
from tests.approximate import assert_close
from tests.hand_built import ADDING_LAYER, LAYERS, MAX_OPERAND, OP1_HEAD, OP2_HEAD, OPERANDS, copy_and_add

SETTINGS = Settings(("+",), MAX_OPERAND)


@pytest.fixture
def results(adder_results: dict[str, Any]) -> dict[str, Any]:
    return adder_results


def test_the_model_adds(results: dict[str, Any]) -> None:
    assert results["accuracy"].prompts.correct.all()


def test_localize_finds_the_three_components(results: dict[str, Any]) -> None:
    effects = results["localize"].effects
    rows = effects[effects.measure == "log_ratio"].sort_values("value", ascending=False)
    found = [(*row, position) for *row, position in rows[["layer", "head", "position"]].to_numpy()]
    circuit = {(*OP1_HEAD, "last"), (*OP2_HEAD, "last"), (ADDING_LAYER, MLP, "last")}
    assert set(found[:3]) == circuit
    assert rows.value.iloc[2] > 100 * rows.value.iloc[3:].abs().max()
    ranking = results["localize"].ranking("+", "probability")
    assert {tuple(h) for h in ranking[["layer", "head"]].to_numpy()[:2]} == {OP1_HEAD, OP2_HEAD}
    assert results["localize"].summary()["+"]["strongest_mlp"]["component"] == f"MLP{ADDING_LAYER} at last"


def test_the_circuit_is_the_two_copying_heads(results: dict[str, Any]) -> None:
    circuit = results["circuit"]
    assert set(circuit.chosen("+")) == set(circuit.shared()) == {OP1_HEAD, OP2_HEAD}
    summary = circuit.summary()["+"]
    assert summary["heads"] == 2
    assert set(summary["head_names"]) == {component_name(*OP1_HEAD), component_name(*OP2_HEAD)}
    assert summary["faithfulness"]["value"] == pytest.approx(1, abs=1e-3)
    assert summary["accuracy"]["value"] == 1
    assert summary["p_answer"]["value"] == pytest.approx(0.905, abs=0.005)
    # Either head alone knows one operand only.
    curve = circuit.curve[circuit.curve.circuit == "found"].set_index(["measure", "size"]).value
    assert curve["accuracy", 1] < 0.2
    assert curve["faithfulness", 1] < 0.7
    assert curve["faithfulness", 2] == pytest.approx(curve["faithfulness", 20], abs=1e-3)
    # Two random heads out of 20 are the right two once in 190 draws.
    assert summary["random_accuracy"]["value"] < 0.3
    assert summary["random_faithfulness"]["value"] < 0.6


def test_the_answer_can_be_read_after_the_adding_layer(results: dict[str, Any]) -> None:
    probe = results["probe"]
    assert probe.first_answer_layer == ADDING_LAYER
    table = probe.table[probe.table.operator == "all"].set_index(["position", "layer"]).value
    assert table["last"].loc[ADDING_LAYER:].min() > 0.8
    assert table["last"].loc[: ADDING_LAYER - 1].max() < 0.3
    for position in ("op1", "operator", "op2"):
        assert table[position].max() < 0.3


def test_each_head_reads_its_operand(results: dict[str, Any]) -> None:
    heads = results["heads"]
    roles = heads.roles.set_index(["layer", "head"])
    assert roles.loc[OP1_HEAD].attends_to == roles.loc[OP1_HEAD].reads == "op1"
    assert roles.loc[OP2_HEAD].attends_to == roles.loc[OP2_HEAD].reads == "op2"
    assert (roles.attention > 0.95).all()
    assert (roles.acts_at == "last").all()
    assert roles.shared.all()
    # Each copies the number from the token itself, so isolating that position changes nothing.
    change = heads.isolation[heads.isolation.when == "change"]
    assert np.abs(change.value).max() < 1e-3


def test_the_first_mlp_is_not_needed(results: dict[str, Any]) -> None:
    mlp0 = results["mlp0"]
    assert ADDING_LAYER != 0
    assert mlp0.smallest_share == {"+": 0.0}
    assert mlp0.summary()["+"]["faithfulness"]["value"] == pytest.approx(1, abs=1e-2)
    assert mlp0.tuning.shape == (copy_and_add().sizes.neurons, MAX_OPERAND + 1)


def pairs(prompts: Prompts) -> set[int]:
    """The neurons of the adding layer that fire for these prompts."""
    return set((prompts.op1 * OPERANDS + prompts.op2).tolist())


def test_neurons_of_the_prompts_own_pairs_come_first(results: dict[str, Any]) -> None:
    """Patching takes away the neuron of the prompt's pair and brings that of the counterfactual's; no other matters."""
    neurons = results["neurons"]
    assert neurons.first_layer == {"+": ADDING_LAYER}
    split = split_prompts(results["accuracy"], SETTINGS.sizes, SETTINGS.seed)["+"]
    known = pairs(split.discovery) | pairs(split.counterfactuals)
    for rank in ("mean", "mean+std"):
        for measure in ("probability", "log_ratio"):
            ranking = neurons.ranking("+", measure, rank)
            values = ranking[ranking.layer == ADDING_LAYER].set_index("neuron").value
            assert set(values.index[: len(known)]) == known
            assert values.iloc[len(known) - 1] > 5 * values.iloc[len(known)]
    strongest = neurons.summary()["+"]["strongest_neuron"]["component"]
    assert strongest in {neuron_name(ADDING_LAYER, pair) for pair in known}
    assert neurons.agreement.rank_correlation.notna().all()


def test_nearly_all_neurons_are_needed(results: dict[str, Any]) -> None:
    """Each evaluation prompt needs the neuron of its own pair."""
    topk = results["topk"]
    curve = topk.curve[topk.curve.circuit == "found"].set_index(["measure", "size"]).value
    assert curve["accuracy", 0] < 0.2
    assert curve["faithfulness", 0] < 0.5
    assert curve["accuracy", topk.mlp_size] == 1
    assert curve["faithfulness", topk.mlp_size] == pytest.approx(1, abs=1e-3)
    assert {layer for layer, _ in topk.chosen("+")} == {ADDING_LAYER, LAYERS - 1}
    assert len(topk.chosen("+")) == 2 * topk.k["+"]


def test_discovery_and_evaluation_are_disjoint(results: dict[str, Any]) -> None:
    split = split_prompts(results["accuracy"], SETTINGS.sizes, SETTINGS.seed)["+"]
    samples = split.discovery, split.evaluation, split.selection
    pairs = [set(zip(p.op1.tolist(), p.op2.tolist(), strict=True)) for p in samples]
    assert len(set().union(*pairs)) == sum(map(len, pairs))
    sizes = SETTINGS.sizes
    assert [len(p) for p in pairs] == [sizes.discovery, sizes.evaluation, sizes.selection]
    assert np.all(split.counterfactuals.answer != split.discovery.answer)
    used = results["localize"].prompts
    assert used.op1.tolist() == split.discovery.op1.tolist()
    assert used.counterfactual_answer.tolist() == split.counterfactuals.answer.tolist()


def test_every_operator_has_a_summary(results: dict[str, Any]) -> None:
    for name in ("accuracy", "localize", "circuit", "probe", "heads", "mlp0", "neurons", "topk"):
        assert "+" in results[name].summary()


@pytest.mark.slow
def test_the_same_numbers_in_small_batches(
    tmp_path: Path, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows at a time instead of hundreds, and probes trained two layers at a time."""
    for module, rows in {
        "experiments.common.samples": 20,
        "models.engine.replay": 100,
        "models.engine.sweep": 50,
    }.items():
        monkeypatch.setattr(f"arithscope.{module}.rows_that_fit", lambda *args, rows=rows, **options: rows)
    monkeypatch.setattr("arithscope.experiments.probe._layers_together", lambda *args: [range(2), range(2, LAYERS)])
    run_stages(copy_and_add(), SETTINGS, tmp_path / "run", None, Silent())
    for stage in chosen_stages(None):
        found = RunFolder(tmp_path / "run").read(stage.result).summary()
        assert_close(found, results[stage.name].summary(), stage.name, abs=1e-4)
