"""What the explorer's server answers, compared with the run itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arithscope
from arithscope.heuristics.kinds import parse
from arithscope.pipeline.store import plain
from arithscope.prompts import operand_grid
from arithscope.results.run import Run, explanation_as_json
from tests.explorer.served import ask, get, post, serving


def test_the_runs_are_described(address: str, run: Run) -> None:
    found = ask(address, "/api/runs").json
    assert found["version"] == arithscope.__version__
    first, second = found["runs"]
    assert [first["name"], second["name"]] == ["tiny-llama", "tiny-pythia"]
    assert first["operators"] == first["classified_operators"] == ["+", "-"]
    assert (first["max_operand"], first["limit"]) == (40, run.limit)
    assert first["stages"] == run.stages
    assert first["neuron_layers"] == sorted(run.patterns.neurons.layer.unique())
    assert second["checkpoints"] == ["step-00000", "step-01000", "final"]


def test_the_square_tells_every_answer(address: str, run: Run) -> None:
    body = get(address, "square", operator="-").body
    answered = np.frombuffer(body[: 4 * 41**2], "<i4").reshape(41, 41)
    p = np.frombuffer(body[4 * 41**2 :], "<f4").reshape(41, 41)
    for row in run.accuracy.prompts[run.accuracy.prompts.operator == "-"].sample(200, random_state=0).itertuples():
        assert answered[row.op1, row.op2] == row.predicted
        assert p[row.op1, row.op2] == pytest.approx(row.p_answer)
    assert (answered[np.triu_indices(41, 1)] == -2).all()  # op1 < op2: negative


def neurons(run: Run, criterion: str) -> list[tuple[str, int, int]]:
    """All top neurons with a match by a criterion, found the slow way."""
    m = run.classify.matches
    m = m[m.calibrated] if criterion == "calibrated" else m
    return sorted(set(zip(m.operator, m.layer, m.neuron, strict=True)))


def who(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(r["operator"], r["layer"], r["neuron"]) for r in rows]


@pytest.mark.parametrize("criterion", ["raw", "calibrated"])
def test_the_table_of_neurons(address: str, run: Run, criterion: str) -> None:
    everyone = get(address, "neurons", criterion=criterion, size=500).json
    assert everyone["total"] == len(run.patterns.neurons) == len(everyone["rows"])
    effects = [r["effect"] for r in everyone["rows"]]
    assert effects == sorted(effects, reverse=True)
    classified = get(address, "neurons", criterion=criterion, classified="classified", size=500).json
    assert sorted(who(classified["rows"])) == neurons(run, criterion)
    rest = get(address, "neurons", criterion=criterion, classified="unclassified", size=500).json
    assert classified["total"] + rest["total"] == everyone["total"]
    for row in classified["rows"]:
        matches = run.classify.of_neuron(row["operator"], row["layer"], row["neuron"])
        matches = matches[matches.calibrated] if criterion == "calibrated" else matches
        assert (row["heuristic"], row["heuristics"]) == (matches.heuristic.iloc[0], len(matches))


def test_neurons_are_filtered_sorted_and_paged(address: str, run: Run) -> None:
    layer = int(run.patterns.neurons.layer.max())
    rows = get(address, "neurons", operator="-", layer=layer, sort="neuron", descending="false", size=500).json["rows"]
    top = run.patterns.neurons
    assert [r["neuron"] for r in rows] == sorted(top[(top.operator == "-") & (top.layer == layer)].neuron)
    pages = [get(address, "neurons", sort="layer", offset=i, size=7).json["rows"] for i in (0, 7)]
    assert pages[0] + pages[1] == get(address, "neurons", sort="layer", size=14).json["rows"]
    assert get(address, "neurons", offset=10**8).json["rows"] == []
    m = run.classify.matches
    heuristic = str(m.heuristic.mode().iloc[0])
    found = get(address, "neurons", criterion="raw", heuristic=heuristic, size=500).json["rows"]
    m = m[m.heuristic == heuristic]
    assert sorted(who(found)) == sorted(zip(m.operator, m.layer, m.neuron, strict=True))
    found = get(address, "neurons", criterion="raw", kind="range of op1", size=500).json["rows"]
    m = run.classify.matches
    m = m[(m.kind == "range") & (m.on == "op1")]
    assert sorted(who(found)) == sorted(set(zip(m.operator, m.layer, m.neuron, strict=True)))


def test_a_neurons_page(address: str, run: Run) -> None:
    row = run.classify.matches.iloc[0]
    operator, layer, neuron = str(row.operator), int(row.layer), int(row.neuron)
    page = get(address, "neurons", layer, neuron, operator=operator).json
    found = run.neuron(layer, neuron, operator)
    assert found.pattern is not None
    assert page["name"] == found.name
    assert page["pattern"]["tokens"] == found.pattern.tokens
    assert page["pattern"]["logits"] == pytest.approx(found.pattern.logits.tolist(), abs=1e-5)
    assert [h["heuristic"] for h in page["heuristics"]] == found.heuristics.heuristic.tolist()
    assert [e["rank"] for e in page["effects"]] == found.effects["rank"].tolist()
    assert page["coverage"] == pytest.approx(found.coverage)
    others = [o for o in ("+", "-") if o != operator and (layer, neuron) in run.topk.chosen(o)]
    assert page["top_for"] == others
    pattern = np.frombuffer(get(address, "neurons", layer, neuron, "pattern", operator=operator).body, "<f4")
    assert np.array_equal(pattern, found.pattern.activations.ravel())


def test_a_neuron_that_is_not_among_the_top_ones(address: str, run: Run) -> None:
    """It has effects but no stored pattern; asked for, the pattern is computed. A neuron of a layer below, which has no
    effects, can be looked at all the same."""
    layer = int(run.patterns.neurons.layer.max())
    chosen = run.topk.chosen("+")
    other = next(n for n in range(512) if (layer, n) not in chosen)
    page = get(address, "neurons", layer, other, operator="+").json
    assert page["pattern"] is None
    assert page["heuristics"] == page["best"] == []
    assert len(page["effects"]) == 3
    for at in ((layer, other), (0, 3)):
        pattern = np.frombuffer(get(address, "neurons", *at, "pattern", operator="+").body, "<f4").reshape(41, 41)
        assert pattern[7, 12] == pytest.approx(activation(run, "7+12", *at), rel=1e-2, abs=1e-2)


def activation(run: Run, prompt: str, layer: int, neuron: int) -> float:
    """With a plain hook on the whole model."""
    seen = []
    model = run.model
    module = model.layers[layer].get_submodule(model.architecture.mlp_down)
    hook = module.register_forward_pre_hook(lambda module, args: seen.append(float(args[0][0, -1, neuron])))
    model.hf_model(model.encode(run.prompt(prompt)))
    hook.remove()
    return seen[0]


def test_patterns_of_checkpoints(address: str, small_training_run: Path) -> None:
    """Of a checkpoint that kept the neuron's pattern what it kept; of one that did not, what its model does."""
    at = "/api/runs/tiny-pythia/neurons"
    kept = arithscope.open(small_training_run / "checkpoints" / "step-01000")
    row = kept.patterns.neurons.iloc[3]
    path = f"{at}/{row.layer}/{row.neuron}/pattern?operator=%2B&checkpoint="
    found = np.frombuffer(ask(address, path + "step-01000").body, "<f4")
    assert np.array_equal(found, kept.patterns.activations[3].astype(np.float32).ravel())
    found = np.frombuffer(ask(address, path + "step-00000").body, "<f4").reshape(21, 21)
    early = arithscope.open(small_training_run / "checkpoints" / "step-00000")
    assert found[4, 9] == pytest.approx(activation(early, "4+9", int(row.layer), int(row.neuron)), rel=1e-2, abs=1e-3)
    assert "no checkpoint" in ask(address, path + "step-77777").sentence


def test_training_and_comparison(address: str, small_training_run: Path) -> None:
    found = ask(address, "/api/runs/tiny-pythia/training").json
    training = arithscope.open(small_training_run).training
    assert found["checkpoints"] == training.checkpoints
    for name in ("accuracy", "present", "faithfulness", "knockout"):
        assert found[name] == plain(getattr(training, name).to_dict("records"))
    assert "has no stage training" in ask(address, "/api/runs/tiny-llama/training").sentence
    both = ask(address, "/api/comparison").json
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
        assert "One run cannot be compared" in ask(alone, "/api/comparison").sentence


def test_heuristics_and_their_prompts(address: str, run: Run) -> None:
    found = get(address, "heuristics", criterion="raw", operator="+", size=500).json
    m = run.classify.matches[run.classify.matches.operator == "+"]
    assert found["total"] == m.heuristic.nunique()
    for row in found["rows"][:30]:
        mine = m[m.heuristic == row["heuristic"]]
        assert row["neurons"] == len(mine)
        assert row["by_layer"] == {str(layer): int(n) for layer, n in mine.groupby("layer").size().items()}
    assert sum(k["matches"] for k in found["kinds"]) == len(m)
    assert sum(k["heuristics"] for k in found["kinds"]) == found["total"]
    for heuristic in ("op1 mod 3 = 1", "result in [10, 20]", "op1 = op2"):
        held = np.frombuffer(get(address, "heuristics", "prompts", operator="-", heuristic=heuristic).body, np.uint8)
        prompts = operand_grid("-", 40)
        wanted = [
            parse(heuristic).holds(prompts[[i]])[0] and prompts.op1[i] >= prompts.op2[i] for i in range(0, 41**2, 17)
        ]
        assert held[::17].astype(bool).tolist() == wanted
    assert "not a heuristic" in get(address, "heuristics", "prompts", operator="-", heuristic="op1 is nice").sentence
    searched = get(address, "heuristics", criterion="raw", search="mod 2", size=500).json["rows"]
    assert searched
    assert all("mod 2" in r["heuristic"] for r in searched)


def test_knockouts_of_heuristics(address: str, run: Run) -> None:
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


def test_the_circuit(address: str, run: Run) -> None:
    found = get(address, "circuit", operator="+", measure="logit").json
    effects = run.localize.effects
    effects = effects[(effects.operator == "+") & (effects.measure == "logit") & (effects.position == "last")]
    for row in effects.sample(10, random_state=0).to_dict("records"):
        maps = found["positions"]["last"]
        shown = maps["mlps"][row["layer"]] if row["head"] == -1 else maps["heads"][row["layer"]][row["head"]]
        assert shown == pytest.approx(row["value"])
    assert [(h["layer"], h["head"]) for h in found["heads"] if h["in_circuit"]] == run.circuit.chosen("+")
    roles = run.heads.roles.reset_index(drop=True)
    for place, row in roles[roles.operator == "+"].iterrows():
        [shown] = [r for r in found["roles"] if (r["layer"], r["head"]) == (row.layer, row["head"])]
        assert np.allclose(shown["attention"], run.heads.patterns[int(str(place))], atol=1e-4)
    assert "found no circuit" in get(address, "circuit", operator="*").sentence


def test_explaining_and_silencing(address: str, run: Run) -> None:
    expected = explanation_as_json(run.explain("25+11"))
    found = get(address, "explanation", prompt="25+11").json
    assert found["neurons"] == expected["neurons"]
    assert found["logit"] == pytest.approx(expected["logit"])
    some = [[n["layer"], n["neuron"]] for n in expected["neurons"][:4]]
    ablated = post(address, {"prompt": "25+11=", "neurons": some}).json
    assert ablated["neurons"] == len(some)
    assert ablated["before"]["p_answer"] == pytest.approx(expected["answer"]["p_answer"], rel=1e-4)
    without = arithscope.ask(run.model, "25+11", [(a, b) for a, b in some]).iloc[0]
    assert ablated["after"]["p_answer"] == pytest.approx(without.p_answer, rel=1e-4)
    assert sum(p for _, p in ablated["after"]["most_probable"]) <= 1 + 1e-6
    m = run.classify.matched("+", "raw")
    heuristic = str(m.heuristic.iloc[0])
    own = [
        (int(a), int(b)) for a, b in zip(*(m[m.heuristic == heuristic][c] for c in ("layer", "neuron")), strict=True)
    ]
    found = post(address, {"prompt": "25+11", "criterion": "raw", "heuristics": [heuristic], "neurons": own[:1]}).json
    assert found["neurons"] == len(own)
    without = arithscope.ask(run.model, "25+11", own).iloc[0]
    assert found["after"]["p_answer"] == pytest.approx(without.p_answer, rel=1e-4)


def test_the_run_folder_is_left_as_it_is(address: str, small_run: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in small_run.rglob("*")}

    before = state()
    get(address, "explanation", prompt="3+4")
    get(address, "circuit", operator="+")
    post(address, {"prompt": "3+4", "neurons": [[5, 1]]})
    assert state() == before
