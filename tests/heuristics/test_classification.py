"""NeuronBatch and the heuristics that they match: tables, scores, chances and rates."""

from __future__ import annotations

from math import log10

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics.calibration import Direct, Overlaps
from arithscope.heuristics.calibration import direct as directly
from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.heuristics.classification import Matched, NeuronBatch, _pairs, calibrate, classify, tries
from arithscope.heuristics.kinds import parse
from arithscope.heuristics.matching import order, overlaps
from arithscope.prompts import legal_prompts
from tests.heuristics import brute
from tests.heuristics.catalogues import CATALOGUES, LIMITS, MAX_OPERAND, SMALL, pairs_of, patterns


def test_neurons_are_scored_alike_in_any_company() -> None:
    """In another order, and in other batches: the same scores, the same permutations."""
    sets = CATALOGUES["/"]
    rows = patterns(sets)
    logits = np.random.default_rng(2).standard_normal((7, 130)).astype(np.float32)
    names = [f"n{i}" for i in range(7)]
    together = classify(NeuronBatch(rows, logits), sets, 8, 0, names, lambda n: None)
    for i in (0, 4):
        alone = classify(NeuronBatch(rows[i : i + 1], logits[i : i + 1]), sets, 8, 0, names[i : i + 1], lambda n: None)
        columns = [
            "heuristic",
            "sign",
            "overlap",
            "size",
            "score",
            "chance",
            "corrected",
            "neg_log10_p_hypergeom",
            "expected",
            "neg_log10_p",
        ]
        for ours, theirs in ((together.best, alone.best), (together.matches, alone.matches)):
            assert ours[ours.row == i][columns].values.tolist() == theirs[columns].values.tolist()


def test_scores_and_chances() -> None:
    sets = CATALOGUES["+"]
    found = classify(
        NeuronBatch(patterns(sets), np.ones((7, 130), dtype=np.float32)), sets, 8, 0, list("abcdefg"), lambda n: None
    )
    for table in (found.matches, found.best):
        assert np.allclose(table.score, table.overlap / table["size"])
        assert np.allclose(table.chance, table["size"] / len(legal_prompts("+", MAX_OPERAND, LIMITS["+"])))
        assert np.allclose(table.corrected, (table.score - table.chance) / (1 - table.chance))
    assert (found.matches.score >= 0.6).all()
    planted = found.best[(found.best.row == 4) & (found.best.kind == "modulo") & (found.best.on == "op1")]
    assert planted.heuristic.tolist() == ["op1 mod 5 = 2"]
    assert planted.sign.tolist() == [1]
    negative = found.best[(found.best.row == 5) & (found.best.kind == "range") & (found.best.on == "op2")]
    assert negative.heuristic.tolist() == ["op2 in [10, 20]"]
    assert negative.sign.tolist() == [-1]
    same = found.best[(found.best.row == 6) & (found.best.kind == "identical")]
    assert same.score.iloc[0] == 1


@pytest.mark.parametrize("operator", ["+", "/"])
def test_the_tables_against_sets(operator: str) -> None:
    """Every pair in the tables recounted one by one, and no pair missing."""
    sets, prompts = CATALOGUES[operator], pairs_of(CATALOGUES[operator])
    tie_order = {p: i for i, p in enumerate(prompts)}
    logits = np.random.default_rng(1).standard_normal((7, 130)).astype(np.float32)
    neurons, done = NeuronBatch(patterns(sets), logits), []
    found = classify(neurons, sets, 3, 0, list("abcdefg"), done.append)
    assert sum(done) == 7
    activations, on_answer = neurons.on_prompts(range(7), sets)
    up, down = (overlaps(order(x), sets.indirect) for x in (activations, -activations))
    promoted = overlaps(order(activations * on_answer), sets.direct)
    for table in (found.matches, found.best):
        assert table.row.is_monotonic_increasing
        for pair in table.iloc[:: max(1, len(table) // 150)].itertuples():
            h, row = parse(pair.heuristic), pair.row
            assert (pair.kind, pair.on, pair.direct) == (h.kind, h.on, h.direct)
            value = {
                (a, b): float(np.float32(neurons.activations[row, a, b]))
                * (logits[row, brute.answer(operator, a, b)] if h.direct else np.float32(1))
                for a, b in prompts
            }
            want = brute.overlap(pair.heuristic, operator, value, tie_order, both_signs=not h.direct)
            assert (pair.overlap, pair.size) == want
            assert pair.neg_log10_p_hypergeom == pytest.approx(
                _evidence(len(sets), pair.size, pair.overlap), rel=1e-6, abs=1e-6
            )
            if h.direct:
                assert pair.sign == 1
            else:
                at = sets.indirect.column[h]
                assert pair.sign == (-1 if down[row, at] > up[row, at] else 1)
                assert pair.expected == pytest.approx(pair.size / len(sets))
                assert pair.neg_log10_p == pytest.approx(pair.neg_log10_p_hypergeom)
    several = {(pair.row, pair.heuristic) for pair in found.matches.itertuples() if pair.kind == "multi-result"}
    own = found.best[found.best.kind == "multi-result"]
    assert several == {(pair.row, pair.heuristic) for pair in own.itertuples() if 10 * pair.overlap >= 6 * pair.size}
    assert len(several) == (6 if operator == "/" else 0) == max(len(own) - 1, 0)  # one of seven is no match
    want_matches = {
        (row, str(h))
        for side, counted in ((sets.indirect, torch.maximum(up, down)), (sets.direct, promoted))
        for row in range(7)
        for h, x, k in zip(side.heuristics, counted[row].tolist(), side.sizes.tolist(), strict=True)
        if 10 * x >= 6 * k
    }
    assert set(found.matches[["row", "heuristic"]].itertuples(index=False, name=None)) - several == want_matches
    assert len(found.matches) == len(want_matches) + len(several)
    # Of each kind there is one, about each number: the furthest beyond expectation.
    kinds = {(h.kind, h.on) for side in (sets.indirect, sets.direct) for h in side.heuristics}
    best = found.best[found.best.kind != "multi-result"]
    assert sorted(best[["row", "kind", "on"]].itertuples(index=False, name=None)) == sorted(
        (row, *kind) for row in range(7) for kind in kinds
    )
    most = found.matches.groupby(["row", "kind", "on"]).neg_log10_p.max()
    own = found.best.set_index(["row", "kind", "on"]).neg_log10_p
    assert (own[most.index] >= most).all()
    assert (found.neurons.row == np.arange(7)).all()


def _evidence(total: int, k: int, x: int) -> float:
    p = brute.tail(total, k, x)
    return log10(p.denominator) - log10(p.numerator)


def test_p_and_rates_by_hand() -> None:
    """Two neurons with a pair of either class each; p is twice the chance in the null of the pair's own class."""
    best = pd.DataFrame(
        {
            "row": [0, 0, 1, 1],
            "direct": [False, True, False, True],
            "neg_log10_p": [8.5, 3.0, 2.5, 15.5],
            "overlap": [5, 6, 3, 3],
            "size": [10, 10, 10, 5],
        }
    )
    null = np.array([[11.0, 12.0], [13.0, 14.0]])
    found = calibrate(Matched(best, best.iloc[[0, 3]], null), np.arange(1.0, 10.0), (100, 1000))
    # Indirect: 1 of 9 nulls is at least 8.5, 7 are at least 2.5. Direct: all 4 are above 3; none reaches 15.5, so that the
    # sum of 1000 probabilities is the bound.
    p = [2 * 2 / 10, 1.0, 1.0, 2 * 1000 * 10**-15.5]
    assert found.matches.p.tolist() == pytest.approx(p)
    assert found.best.p.tolist() == pytest.approx([p[0], p[3]])
    assert found.neurons.row.tolist() == [0, 1]
    assert found.neurons.p.tolist() == pytest.approx([p[0], p[3]])
    assert found.neurons.fdr.tolist() == pytest.approx([0.4, 2 * p[3]])
    assert found.matches.fdr.tolist() == pytest.approx([0.4, 1.0, 1.0, 2 * p[3]])
    assert found.matches.calibrated.tolist() == [False, False, False, True]
    # However improbable, 2 of 5 are no match.
    few = calibrate(Matched(best.assign(overlap=2), best.iloc[[0, 3]], null), np.arange(1.0, 10.0), (100, 1000))
    assert few.matches.fdr.tolist() == found.matches.fdr.tolist()
    assert not few.matches.calibrated.any()


def test_a_rate_of_just_the_level_will_do() -> None:
    """One neuron that is above all of 39 nulls: twice 1/40, exactly."""
    best = pd.DataFrame({"row": [0], "direct": [False], "neg_log10_p": [1.0], "overlap": [6], "size": [10]})
    found = calibrate(Matched(best, best, np.zeros((1, 1))), np.zeros(39), (1000, 1000))
    assert (found.best.fdr.tolist(), found.best.calibrated.tolist()) == ([0.05], [True])


def test_how_many_heuristics_are_tried() -> None:
    """Either sign of indirect ones; of 12 results there are C(12, 2) + C(12, 3) + C(12, 4) sets."""
    assert tries(SMALL) == (2 * len(SMALL.indirect.heuristics), len(SMALL.direct.heuristics) + 66 + 220 + 495)
    sums = CATALOGUES["+"]
    assert tries(sums) == (2 * len(sums.indirect.heuristics), len(sums.direct.heuristics))


def test_a_table_without_a_row_has_columns_of_the_same_kinds() -> None:
    none, zero = torch.zeros(0, dtype=torch.long), torch.zeros(1, 1)
    sets = Overlaps(zero.int(), zero.int(), zero, zero)
    empty, one = (
        _pairs((at, at), range(1), found, torch.ones_like(at), zero, sets)
        for at, found in ((none, []), (torch.zeros(1, dtype=torch.long), [parse("op1 = op2")]))
    )
    assert {name: x.dtype for name, x in empty.items()} == {name: x.dtype for name, x in one.items()}


def test_permuted_neurons_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two prompts there is one order but the neuron's own, and every permutation is that."""
    moved: list[list[int]] = []

    def asked(activations: Tensor, logits: Tensor, sets: Catalogue, shifts: NDArray[np.int64], rows: int) -> Direct:
        moved.extend(shifts.tolist())
        return directly(activations, logits, sets, shifts, rows)

    monkeypatch.setattr("arithscope.heuristics.classification.direct", asked)
    neurons = NeuronBatch(np.ones((2, 2, 2), dtype=np.float16), np.ones((2, 2), dtype=np.float32))
    classify(neurons, catalogue("/", 1, 1000), 10, 0, ["a", "b"], lambda n: None)
    assert moved == [[1] * 10] * 2


def test_so_little_memory_that_neurons_are_worked_on_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sets, logits = CATALOGUES["/"], np.random.default_rng(2).standard_normal((7, 130)).astype(np.float32)
    neurons, done = NeuronBatch(patterns(sets), logits), []
    want = classify(neurons, sets, 3, 0, list("abcdefg"), lambda n: None)
    monkeypatch.setattr("arithscope.heuristics.classification.CPU_CELLS", 1)
    found = classify(neurons, sets, 3, 0, list("abcdefg"), done.append)
    assert done == [1] * 7
    for a, b in ((found.matches, want.matches), (found.best, want.best), (found.neurons, want.neurons)):
        pd.testing.assert_frame_equal(a, b)
