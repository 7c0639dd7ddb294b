"""Replies of the explorer's API, compared with the run itself."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import arithscope
from arithscope.explorer import views
from arithscope.explorer.runs import NotFound, ServedRun, TableQuery
from arithscope.heuristics.kinds import parse
from arithscope.pipeline.store import plain
from arithscope.prompts import operand_grid
from arithscope.results.run import Run, explanation_as_json
from tests.explorer.client import get, post_ablation, send, serving


def test_list_of_runs(address: str, run: Run) -> None:
    listed = send(address, "/api/runs").json
    assert listed["version"] == arithscope.__version__
    first, second = listed["runs"]
    assert [first["name"], second["name"]] == ["tiny-llama", "tiny-pythia"]
    assert first["operators"] == first["classified_operators"] == ["+", "-"]
    assert (first["stratum"]["op1"], first["limit"]) == (list(range(41)), run.limit)
    assert first["stages"] == run.stages
    assert first["neuron_layers"] == sorted(run.patterns.neurons.layer.unique())
    assert second["checkpoints"] == ["step-00000", "step-01500", "final"]


def test_results_of_every_stage(address: str, run: Run) -> None:
    listed = get(address, "results").json
    assert [entry["stage"] for entry in listed] == run.stages
    for entry in listed:
        result = run.result(entry["stage"])
        assert entry["summary"] == run.folder.summary.get(entry["stage"], {})
        tables = {f.name: getattr(result, f.name) for f in fields(result)}
        tables = {name: table for name, table in tables.items() if isinstance(table, pd.DataFrame)}
        assert entry["tables"] == sorted(tables)
        for name, table in tables.items():
            reply = get(address, "results", entry["stage"], name, offset=1, size=20).json
            assert reply["total"] == len(table)
            expected = table.iloc[1:21].astype(object)
            expected = expected.map(lambda cell: cell.tolist() if isinstance(cell, np.ndarray) else cell)
            assert reply["rows"] == plain(expected.to_dict("records"))


def test_a_result_table_is_sorted_and_paged(address: str, run: Run) -> None:
    path = "results", "neurons", "effects"
    effects = run.neurons.effects
    for descending in (False, True):
        values = [r["value"] for r in get(address, *path, sort="value", descending=descending, size=500).json["rows"]]
        assert values == effects.value.sort_values(ascending=not descending).iloc[:500].tolist()
    pages = [get(address, *path, sort="layer", offset=i, size=7).json["rows"] for i in (0, 7)]
    assert pages[0] + pages[1] == get(address, *path, sort="layer", size=14).json["rows"]
    assert get(address, *path, offset=len(effects)).json == {"rows": [], "total": len(effects)}


def test_unknown_results_are_refused(address: str) -> None:
    assert "has no stage 'training'" in get(address, "results", "training", "accuracy").error
    assert "has no table 'nothing'; choose from: prompts, table" in get(address, "results", "accuracy", "nothing").error
    assert "has no table 'activations'" in get(address, "results", "patterns", "activations").error  # an array
    assert "has no column 'nothing'" in get(address, "results", "accuracy", "table", sort="nothing").error
    assert "tokens cannot be sorted" in get(address, "results", "patterns", "neurons", sort="tokens").error


def test_results_of_a_plug_in_stage(small_run: Path, tmp_path: Path) -> None:
    @dataclass
    class Entropy:
        by_layer: pd.DataFrame
        layers: int

    class RunWithPlugin(Run):
        stages: ClassVar = ["entropy"]

        def result(self, stage: str) -> Any:
            return Entropy(pd.DataFrame({"layer": [0, 1], "value": [0.5, 0.25]}), 2)

    run = RunWithPlugin(shutil.copytree(small_run, tmp_path / "run"))
    (run.path / "entropy").mkdir()
    run.result("entropy").by_layer.to_parquet(run.path / "entropy" / "by_layer.parquet")
    served = ServedRun("mine", run)
    assert views.results(served) == [{"stage": "entropy", "summary": {}, "tables": ["by_layer"]}]
    page = views.result_table(served, "entropy", "by_layer", TableQuery())
    assert page == {"rows": [{"layer": 0, "value": 0.5}, {"layer": 1, "value": 0.25}], "total": 2}
    with pytest.raises(NotFound):
        views.result_table(served, "entropy", "layers", TableQuery())


def test_predictions_over_the_operand_grid(address: str, run: Run) -> None:
    body = get(address, "predictions", operator="-").body
    predicted = np.frombuffer(body[: 4 * 41**2], "<i4").reshape(41, 41)
    p_answer = np.frombuffer(body[4 * 41**2 :], "<f4").reshape(41, 41)
    for row in run.accuracy.prompts[run.accuracy.prompts.operator == "-"].sample(200, random_state=0).itertuples():
        assert predicted[row.op1, row.op2] == row.predicted
        assert p_answer[row.op1, row.op2] == pytest.approx(row.p_answer)
    assert (predicted[np.triu_indices(41, 1)] == -2).all()  # op1 < op2: negative


def matched_neurons(run: Run, criterion: str) -> list[tuple[str, int, int]]:
    """All top neurons with a match, found the slow way."""
    m = run.classify.matched(None, criterion)
    return sorted(set(zip(m.operator, m.layer, m.neuron, strict=True)))


def neurons_of(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(r["operator"], r["layer"], r["neuron"]) for r in rows]


@pytest.mark.parametrize("criterion", ["raw", "calibrated"])
def test_neuron_table(address: str, run: Run, criterion: str) -> None:
    every_neuron = get(address, "neurons", criterion=criterion, size=500).json
    assert every_neuron["total"] == len(run.patterns.neurons) == len(every_neuron["rows"])
    effects = [r["effect"] for r in every_neuron["rows"]]
    assert effects == sorted(effects, reverse=True)
    classified = get(address, "neurons", criterion=criterion, classified="classified", size=500).json
    assert sorted(neurons_of(classified["rows"])) == matched_neurons(run, criterion)
    rest = get(address, "neurons", criterion=criterion, classified="unclassified", size=500).json
    assert classified["total"] + rest["total"] == every_neuron["total"]
    for row in classified["rows"]:
        matches = run.classify.of_neuron(row["operator"], row["layer"], row["neuron"])
        matches = matches[matches.calibrated if criterion == "calibrated" else matches.sign == 1]
        assert (row["heuristic"], row["heuristics"]) == (matches.heuristic.iloc[0], matches.heuristic.nunique())


def test_neurons_are_filtered_sorted_and_paged(address: str, run: Run) -> None:
    layer = int(run.patterns.neurons.layer.max())
    rows = get(address, "neurons", operator="-", layer=layer, sort="neuron", descending="false", size=500).json["rows"]
    top = run.patterns.neurons
    assert [r["neuron"] for r in rows] == sorted(top[(top.operator == "-") & (top.layer == layer)].neuron)
    pages = [get(address, "neurons", sort="layer", offset=i, size=7).json["rows"] for i in (0, 7)]
    assert pages[0] + pages[1] == get(address, "neurons", sort="layer", size=14).json["rows"]
    assert get(address, "neurons", offset=10**8).json["rows"] == []
    m = run.classify.matched(None, "raw")
    heuristic = str(m.heuristic.mode().iloc[0])
    rows = get(address, "neurons", criterion="raw", heuristic=heuristic, size=500).json["rows"]
    m = m[m.heuristic == heuristic]
    assert sorted(neurons_of(rows)) == sorted(zip(m.operator, m.layer, m.neuron, strict=True))
    rows = get(address, "neurons", criterion="raw", kind="range of op1", size=500).json["rows"]
    m = run.classify.matched(None, "raw")
    m = m[(m.kind == "range") & (m.on == "op1")]
    assert sorted(neurons_of(rows)) == sorted(set(zip(m.operator, m.layer, m.neuron, strict=True)))


def test_neuron_page(address: str, run: Run) -> None:
    row = run.classify.matched(None, "raw").iloc[0]
    operator, layer, neuron = str(row.operator), int(row.layer), int(row.neuron)
    page = get(address, "neurons", layer, neuron, operator=operator).json
    expected = run.neuron(layer, neuron, operator)
    assert expected.activation_map is not None
    assert page["name"] == expected.name
    assert page["activation_map"]["tokens"] == expected.activation_map.tokens
    assert page["activation_map"]["logits"] == pytest.approx(expected.activation_map.logits.tolist(), abs=1e-5)
    assert page["activation_map"]["variance_explained_op1"] == expected.activation_map.variance_explained["op1"]
    assert page["activation_map"]["variance_explained_result"] == expected.activation_map.variance_explained["result"]
    assert [h["heuristic"] for h in page["heuristics"]] == expected.heuristics.heuristic.tolist()
    assert [e["rank"] for e in page["effects"]] == expected.effects["rank"].tolist()
    assert page["coverage"] == pytest.approx(expected.coverage)
    others = [o for o in ("+", "-") if o != operator and (layer, neuron) in run.topk.chosen(o)]
    assert page["top_for"] == others
    body = get(address, "neurons", layer, neuron, "activation_map", operator=operator).body
    assert np.array_equal(np.frombuffer(body, "<f4"), expected.activation_map.activations.ravel())


def test_a_neuron_outside_the_top_k(address: str, run: Run) -> None:
    """It has effects but no stored activation map, so the map is computed on request; also in layers without effects."""
    layer = int(run.patterns.neurons.layer.max())
    chosen = run.topk.chosen("+")
    other = next(n for n in range(512) if (layer, n) not in chosen)
    page = get(address, "neurons", layer, other, operator="+").json
    assert page["activation_map"] is None
    assert page["heuristics"] == page["best"] == []
    assert len(page["effects"]) == 3
    for neuron in ((layer, other), (0, 3)):
        body = get(address, "neurons", *neuron, "activation_map", operator="+").body
        activations = np.frombuffer(body, "<f4").reshape(41, 41)
        assert activations[7, 12] == pytest.approx(activation(run, "7+12", *neuron), rel=1e-2, abs=1e-2)


def activation(run: Run, prompt: str, layer: int, neuron: int) -> float:
    """A neuron's activation, read with a plain hook on the whole model."""
    activations = []
    model = run.model
    module = model.layers[layer].get_submodule(model.architecture.mlp_down)
    hook = module.register_forward_pre_hook(lambda module, args: activations.append(float(args[0][0, -1, neuron])))
    model.hf_model(model.encode(run.prompt(prompt)))
    hook.remove()
    return activations[0]


def test_activation_maps_of_checkpoints(address: str, small_training_run: Path) -> None:
    """The stored map if the checkpoint has one, else computed with the checkpoint's model."""
    at = "/api/runs/tiny-pythia/neurons"
    kept = arithscope.open(small_training_run / "checkpoints" / "step-01500")
    row = kept.patterns.neurons.iloc[3]
    path = f"{at}/{row.layer}/{row.neuron}/activation_map?operator=%2B&checkpoint="
    stored = np.frombuffer(send(address, path + "step-01500").body, "<f4")
    assert np.array_equal(stored, kept.patterns.activations[3].astype(np.float32).ravel())
    computed = np.frombuffer(send(address, path + "step-00000").body, "<f4").reshape(21, 21)
    early = arithscope.open(small_training_run / "checkpoints" / "step-00000")
    assert computed[4, 9] == pytest.approx(
        activation(early, "4+9", int(row.layer), int(row.neuron)), rel=1e-2, abs=1e-3
    )
    assert "no checkpoint" in send(address, path + "step-77777").error


def test_training_and_comparison(address: str, small_training_run: Path) -> None:
    reply = send(address, "/api/runs/tiny-pythia/training").json
    training = arithscope.open(small_training_run).training
    assert reply["checkpoints"] == training.checkpoints
    for name in ("accuracy", "present", "faithfulness", "knockout"):
        assert reply[name] == plain(getattr(training, name).to_dict("records"))
    assert "has no stage 'training'" in send(address, "/api/runs/tiny-llama/training").error
    both = send(address, "/api/comparison").json
    assert both["runs"] == ["tiny-llama", "tiny-pythia"]
    [row] = [
        r
        for r in both["table"]
        if (r["run"], r["experiment"], r["operator"], r["measure"]) == ("tiny-pythia", "accuracy", "+", "accuracy")
    ]
    summary = arithscope.open(small_training_run).folder.summary
    assert {k: row[k] for k in ("value", "low", "high", "n")} == summary["accuracy"]["+"]["accuracy"]


def test_one_run_cannot_be_compared(small_run: Path) -> None:
    with serving([small_run]) as alone:
        assert "One run cannot be compared" in send(alone, "/api/comparison").error


def test_heuristic_table_and_prompts(address: str, run: Run) -> None:
    table = get(address, "heuristics", criterion="raw", operator="+", size=500).json
    m = run.classify.matched("+", "raw")
    assert table["total"] == m.heuristic.nunique()
    for row in table["rows"][:30]:
        mine = m[m.heuristic == row["heuristic"]]
        assert row["neurons"] == len(mine)
        assert row["by_layer"] == {str(layer): int(n) for layer, n in mine.groupby("layer").size().items()}
    assert sum(k["matches"] for k in table["kinds"]) == len(m)
    assert sum(k["heuristics"] for k in table["kinds"]) == table["total"]
    for heuristic in ("op1 mod 3 = 1", "result in [10, 20]", "op1 = op2"):
        held = np.frombuffer(get(address, "heuristics", "prompts", operator="-", heuristic=heuristic).body, np.uint8)
        prompts = operand_grid("-", 40)
        expected = [
            parse(heuristic).holds(prompts[[i]])[0] and prompts.op1[i] >= prompts.op2[i] for i in range(0, 41**2, 17)
        ]
        assert held[::17].astype(bool).tolist() == expected
    assert "not a heuristic" in get(address, "heuristics", "prompts", operator="-", heuristic="op1 is nice").error
    searched = get(address, "heuristics", criterion="raw", search="mod 2", size=500).json["rows"]
    assert searched
    assert all("mod 2" in r["heuristic"] for r in searched)


def test_knockouts_in_the_heuristic_table(address: str, run: Run) -> None:
    table = run.knockout.accuracy
    tested = get(address, "heuristics", criterion="raw", tested="true", sort="difference", size=500).json
    names = table[table.criterion == "raw"][["operator", "heuristic"]].drop_duplicates()
    assert tested["total"] == len(names)
    gaps = [r["difference"] for r in tested["rows"]]
    assert gaps == sorted(gaps, reverse=True)
    for row in tested["rows"][:5]:
        mine = table[
            (table.operator == row["operator"]) & (table.heuristic == row["heuristic"]) & (table.criterion == "raw")
        ]
        own = mine[(mine.ablated == "own") & (mine.group == "associated")].iloc[0]
        assert row["associated"] == own.value
        assert row["knockout"]["own_associated"] == {"value": own.value, "low": own.low, "high": own.high, "n": own.n}


def test_circuit(address: str, run: Run) -> None:
    circuit = get(address, "circuit", operator="+", measure="logit").json
    effects = run.localize.effects
    effects = effects[(effects.operator == "+") & (effects.measure == "logit") & (effects.position == "last")]
    for row in effects.sample(10, random_state=0).to_dict("records"):
        maps = circuit["effects"]["last"]["mean"]
        shown = maps["mlps"][row["layer"]] if row["head"] == -1 else maps["heads"][row["layer"]][row["head"]]
        assert shown == pytest.approx(row["value"])
    assert [(h["layer"], h["head"]) for h in circuit["heads"] if h["in_circuit"]] == run.circuit.chosen("+")
    roles = run.heads.roles.reset_index(drop=True)
    for place, row in roles[roles.operator == "+"].iterrows():
        [shown] = [r for r in circuit["roles"] if (r["layer"], r["head"]) == (row.layer, row["head"])]
        assert (shown["attends_to"], shown["attention"]) == (row.attends_to, pytest.approx(row.attention))
        assert np.allclose(shown["attention_pattern"], run.heads.attention[int(str(place))], atol=1e-4)
    assert "has no circuit" in get(address, "circuit", operator="*").error


def test_explanation_and_ablation(address: str, run: Run) -> None:
    expected = explanation_as_json(run.explain("25+11"))
    explanation = get(address, "explanation", prompt="25+11").json
    shown, own = (pd.DataFrame(each["neurons"]) for each in (explanation, expected))
    pd.testing.assert_frame_equal(shown, own, rtol=1e-4)  # another thread may add numbers up in another order
    assert explanation["logit"] == pytest.approx(expected["logit"])
    neurons = [[n["layer"], n["neuron"]] for n in expected["neurons"][:4]]
    ablated = post_ablation(address, {"prompt": "25+11=", "neurons": neurons}).json
    assert ablated["neurons"] == len(neurons)
    assert ablated["before"]["p_answer"] == pytest.approx(expected["answer"]["p_answer"], rel=1e-4)
    without = arithscope.ask(run.model, "25+11", [(a, b) for a, b in neurons]).iloc[0]
    assert ablated["after"]["p_answer"] == pytest.approx(without.p_answer, rel=1e-4)
    assert sum(p for _, p in ablated["after"]["most_probable"]) <= 1 + 1e-6
    m = run.classify.matched("+", "raw")
    heuristic = str(m.heuristic.iloc[0])
    own = [
        (int(a), int(b)) for a, b in zip(*(m[m.heuristic == heuristic][c] for c in ("layer", "neuron")), strict=True)
    ]
    content = {"prompt": "25+11", "criterion": "raw", "heuristics": [heuristic], "neurons": own[:1]}
    ablated = post_ablation(address, content).json
    assert ablated["neurons"] == len(own)
    without = arithscope.ask(run.model, "25+11", own).iloc[0]
    assert ablated["after"]["p_answer"] == pytest.approx(without.p_answer, rel=1e-4)


def test_the_run_folder_is_not_modified(address: str, small_run: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in small_run.rglob("*")}

    before = state()
    get(address, "explanation", prompt="3+4")
    get(address, "circuit", operator="+")
    post_ablation(address, {"prompt": "3+4", "neurons": [[5, 1]]})
    assert state() == before
