"""One neuron of a run: ranks against `NeuronEffects.ranking`, attribution maps against a double loop, and runs without some
stages."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import arithscope
from arithscope.errors import UserError
from arithscope.experiments.common.attribution import BEST_METHOD
from arithscope.experiments.neurons import NeuronEffects
from arithscope.experiments.patterns import ActivationMaps
from arithscope.prompts import whole_numbers
from arithscope.results.neuron import NeuronFinder
from arithscope.stats.effects import EFFECTS
from tests.experiments.bags import made_up
from tests.heuristics.brute import answer
from tests.markup import parsed, tags, words

LAYERS, SIZE = (2, 3), 12


def effects(values: np.ndarray, exact: np.ndarray) -> NeuronEffects:
    """Effects of every neuron [operators, measures, layers, neurons], some exact and some estimated, in a random order."""
    rows = [
        {"operator": o, "layer": layer, "neuron": n, "measure": m, "method": "exact" if exact[k, n] else BEST_METHOD,
         "value": 0.3, "mean_abs": values[i, j, k, n], "low": 0.0, "high": 1.0, "n": 7, "median": 0.5, "std": 0.1}
        for i, o in enumerate("+-") for j, m in enumerate(EFFECTS) for k, layer in enumerate(LAYERS) for n in range(SIZE)
    ]  # fmt: skip
    table = pd.DataFrame(rows).sample(frac=1, random_state=0)
    table = table.sort_values("measure", key=lambda m: m.map(EFFECTS.index), kind="stable")
    return NeuronEffects(table, *[pd.DataFrame()] * 3, {"+": 2, "-": 2}, "cause")


@pytest.mark.parametrize("share_exact", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("values", [2, 1000])
def test_ranks_equal_the_ranking(values: int, share_exact: float) -> None:
    """With two values there are many ties; with some effects estimated, the exact ones come first."""
    random = np.random.default_rng(values)
    shape = (2, len(EFFECTS), len(LAYERS), SIZE)
    found = effects(random.integers(0, values, shape) / 8, random.random(shape[2:]) < share_exact)
    finder = NeuronFinder(found, None, None)
    for operator in "+-":
        rankings = {m: found.ranking(operator, m) for m in EFFECTS}
        for layer in LAYERS:
            orders = {m: ranking[ranking.layer == layer].neuron.tolist() for m, ranking in rankings.items()}
            for neuron in range(SIZE):
                own = finder.find(operator, layer, neuron).effects
                assert own.measure.tolist() == list(EFFECTS)
                assert set(own.of) == {SIZE}
                assert own["rank"].tolist() == [orders[m].index(neuron) + 1 for m in EFFECTS]


def some_activation_maps(
    operator: str, max_operand: int, limit: int, seed: int = 0
) -> tuple[NeuronEffects, ActivationMaps]:
    random = np.random.default_rng(seed)
    known = effects(random.random((2, len(EFFECTS), len(LAYERS), SIZE)), np.ones((len(LAYERS), SIZE), bool))
    table = pd.DataFrame(
        {"operator": operator, "layer": [2, 3, 3], "neuron": [5, 1, 7], "rank": [0, 0, 1], "effect": 0.5,
         "variance_explained_op1": 0.1, "variance_explained_op2": 0.2, "variance_explained_result": 0.3,
         "alignment": 0.4, "direct": [True, False, True], "tokens": [[1], [2], [3]]}
    )  # fmt: skip
    activations = random.normal(size=(3, max_operand + 1, max_operand + 1)).astype(np.float16)
    logits = random.normal(size=(3, limit)).astype(np.float32)
    return known, ActivationMaps(table, activations, logits, whole_numbers(max_operand, limit).as_json())


@pytest.mark.parametrize("operator", "+-")
def test_attribution_is_activation_times_logit_of_the_answer(operator: str) -> None:
    known, patterns = some_activation_maps(operator, 9, 12)
    for place, (layer, neuron) in enumerate([(2, 5), (3, 1), (3, 7)]):
        own_map = NeuronFinder(known, patterns, None).find(operator, layer, neuron).activation_map
        assert own_map is not None
        legal = 0
        for a in range(10):
            for b in range(10):
                right = answer(operator, a, b)
                if 0 <= right < 12:
                    want = float(patterns.activations[place, a, b]) * float(patterns.logits[place, right])
                    assert own_map.attribution[a, b] == pytest.approx(want, rel=1e-6)
                    legal += 1
                else:
                    assert math.isnan(own_map.attribution[a, b])
        assert 0 < legal < 100
        np.testing.assert_array_equal(own_map.activations, patterns.activations[place].astype(np.float32))
        np.testing.assert_array_equal(own_map.logits, patterns.logits[place])
        assert (own_map.rank, own_map.direct, own_map.tokens) == ((1, 1, 2)[place], place != 1, [place + 1])


def test_the_attribution_map_leaves_out_divisions_by_zero() -> None:
    _, patterns = some_activation_maps("/", 5, 6)
    attribution = patterns.attribution_map(0)
    assert np.isnan(attribution[:, 0]).all()
    assert not np.isnan(attribution[:, 1:]).any()
    assert attribution[5, 2] == pytest.approx(float(patterns.activations[0, 5, 2]) * float(patterns.logits[0, 2]))


def test_a_neuron_has_the_rows_of_every_stage(small_run: Path) -> None:
    run = arithscope.open(small_run)
    tables = {name: pd.read_parquet(small_run / f"{name}.parquet") for name in (
        "neurons/effects", "patterns/neurons", "classify/matches", "classify/best", "classify/neurons"
    )}  # fmt: skip
    top = tables["patterns/neurons"]
    for row in (top.iloc[0], top.iloc[len(top) // 2], top.iloc[-1]):
        own = {
            name: t[(t.operator == row.operator) & (t.layer == row.layer) & (t.neuron == row.neuron)]
            for name, t in tables.items()
        }
        found = run.neuron(row.layer, row.neuron, row.operator)
        assert (found.layer, found.index, found.operator) == (row.layer, row.neuron, row.operator)
        assert found.name == f"L{row.layer}N{row.neuron}"
        assert found.effects.value.tolist() == own["neurons/effects"].value.tolist()
        assert set(found.heuristics.heuristic) == set(own["classify/matches"].heuristic)
        assert found.heuristics.neg_log10_p.is_monotonic_decreasing
        assert set(found.best.heuristic) == set(own["classify/best"].heuristic)
        assert found.coverage == {c: own["classify/neurons"][f"coverage_{c}"].item() for c in ("raw", "calibrated")}
        assert found.activation_map is not None
        assert found.activation_map.tokens == row.tokens.tolist()
        assert found.activation_map.rank == row["rank"] + 1
        assert len(found.plot().axes) >= 3
        assert found.plot()._repr_png_()[:4] == b"\x89PNG"  # type: ignore[attr-defined]  # what a notebook shows
        assert len(repr(found)) < 500
        assert found.name in words(found)
        assert len(parsed(found).findall(".//tbody/tr")) == min(8, len(found.heuristics))


def test_numpy_integers_are_accepted(small_run: Path) -> None:
    run = arithscope.open(small_run)
    top = run.topk.top
    layer, neuron = top.layer.to_numpy()[-1], top.neuron.to_numpy()[-1]  # 32-bit integers of numpy
    found = run.neuron(layer, neuron, top.operator.iloc[-1])
    assert found.name == f"L{layer}N{neuron}"
    assert found.activation_map is not None


def test_a_neuron_outside_the_top_k(small_run: Path) -> None:
    run = arithscope.open(small_run)
    layer = run.neurons.first_layer["+"]
    top = set(run.topk.top[(run.topk.top.operator == "+") & (run.topk.top.layer == layer)].neuron)
    found = run.neuron(layer, min(set(range(512)) - top), "+")
    assert found.activation_map is None
    assert (len(found.heuristics), len(found.best), found.coverage) == (0, 0, {})
    assert (found.effects["rank"] > len(top)).any()
    assert "no activation map" in repr(found)
    assert found.name in words(found)
    with pytest.raises(UserError, match=r"no activation map for \+; only top neurons have one"):
        found.plot()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((0, 0, "+"), r"no neuron L0N0; it has layers \d to 5, with neurons 0 to 511 each\.$"),
        ((6, 0, "+"), "no neuron L6N0"),
        ((5, 512, "+"), "no neuron L5N512"),
        ((-1, 3, "+"), "no neuron L-1N3"),
        ((5, 3, "*"), r"no neurons for the operator '\*'; choose from \+ -\.$"),
        ((5, 3, "plus"), "no neurons for the operator 'plus'"),
    ],
)
def test_unknown_neurons_are_refused(small_run: Path, place: tuple[int, int, str], message: str) -> None:
    run = arithscope.open(small_run)
    with pytest.raises(UserError, match=message):
        run.neuron(*place)
    assert run.map_row(*place) is None


def test_a_neuron_without_classification(small_run: Path, tmp_path: Path) -> None:
    run = arithscope.open(without_stages(small_run, tmp_path, "classify"))
    row = run.patterns.neurons.iloc[0]
    found = run.neuron(row.layer, row.neuron, row.operator)
    assert (len(found.heuristics), len(found.best), found.coverage) == (0, 0, {})
    assert "not classified" in repr(found)
    assert "table" not in tags(found)
    assert len(found.plot().axes) >= 3
    assert run.map_row(row.layer, row.neuron, row.operator) == 0


def test_a_neuron_without_activation_maps(small_run: Path, tmp_path: Path) -> None:
    run = arithscope.open(without_stages(small_run, tmp_path, "patterns", "classify"))
    row = run.topk.top.iloc[0]
    found = run.neuron(row.layer, row.neuron, row.operator)
    assert found.activation_map is None
    assert run.map_row(row.layer, row.neuron, row.operator) is None
    assert found.effects["rank"].min() == 1
    with pytest.raises(UserError, match="stage patterns"):
        found.plot()


def without_stages(run: Path, folder: Path, *stages: str) -> Path:
    """A copy of a run in which some stages have not been computed."""
    copy = Path(shutil.copytree(run, folder / "run"))
    manifest = json.loads((copy / "manifest.json").read_text())
    for stage in stages:
        shutil.rmtree(copy / stage)
        manifest["stages"][stage] = {"status": "pending"}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def test_html_is_escaped() -> None:
    known, patterns = some_activation_maps("+", 9, 12)
    classify = made_up("+", [(2, 5)], [(2, 5, "op1 in [0, 5]", 0.9, True)])
    message = "<script>alert('&')</script>"
    matches = classify.matches.assign(heuristic=message, expected=0.5, fdr=0.01)
    neurons = classify.neurons.assign(coverage_raw=0.5, coverage_calibrated=0.25)
    found = NeuronFinder(known, patterns, replace(classify, matches=matches, best=matches, neurons=neurons)).find(
        "+", 2, 5
    )
    assert message in words(found)
    assert "script" not in tags(found)
    assert found.coverage == {"raw": 0.5, "calibrated": 0.25}
