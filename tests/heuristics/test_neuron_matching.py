"""Neurons and the heuristics that they match: tables, scores, p and false-discovery rates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from arithscope.heuristics import neuron_matching
from arithscope.heuristics.calibration import DirectOverlaps, Overlaps, direct_overlaps
from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.heuristics.kinds import parse
from arithscope.heuristics.neuron_matching import (
    NeuronBatch,
    NeuronMatches,
    _pairs,
    calibrate,
    calibrated_matches,
    match_neurons,
    tries,
    with_p,
)
from arithscope.heuristics.overlaps import THRESHOLDS, count_overlaps, is_match, top_prompts
from arithscope.prompts import legal_prompts
from tests.heuristics import brute
from tests.heuristics.catalogues import CATALOGUES, LIMITS, MAX_OPERAND, SMALL, activation_maps, pairs_of


def test_scores_do_not_depend_on_the_batch() -> None:
    """Alone or with others, a neuron has the same scores and the same permutations."""
    sets = CATALOGUES["/"]
    rows = activation_maps()
    logits = np.random.default_rng(2).standard_normal((7, 130)).astype(np.float32)
    names = [f"n{i}" for i in range(7)]
    together = calibrated_matches(NeuronBatch(rows, logits, True), sets, 8, 0, names, lambda n: None)
    for i in (0, 4):
        alone = calibrated_matches(
            NeuronBatch(rows[i : i + 1], logits[i : i + 1], True), sets, 8, 0, names[i : i + 1], lambda n: None
        )
        columns = ["heuristic", "sign", "overlap", "size", "score", "chance", "corrected"]
        columns += ["neg_log10_p_hypergeom", "expected", "neg_log10_p"]
        for ours, theirs in ((together.best, alone.best), (together.matches, alone.matches)):
            assert ours[ours.row == i][columns].values.tolist() == theirs[columns].values.tolist()


def test_scores_and_chances() -> None:
    sets = CATALOGUES["+"]
    found = calibrated_matches(
        NeuronBatch(activation_maps(), np.ones((7, 130), dtype=np.float32), gated=True),
        sets,
        8,
        0,
        list("abcdefg"),
        lambda n: None,
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


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("operator", ["+", "/"])
def test_the_tables_against_sets(operator: str, gated: bool) -> None:
    """Recounts every pair in the tables one by one; no pair is missing."""
    sets, prompts = CATALOGUES[operator], pairs_of(CATALOGUES[operator])
    tie_order = {p: i for i, p in enumerate(prompts)}
    logits = np.random.default_rng(1).standard_normal((7, 130)).astype(np.float32)
    neurons, done = NeuronBatch(activation_maps(), logits, gated), []
    found = calibrated_matches(neurons, sets, 3, 0, list("abcdefg"), done.append)
    assert sum(done) == 7
    activations, on_answer = neurons.on_prompts(range(7), sets)
    up, down = (count_overlaps(top_prompts(x), sets.indirect) for x in (activations, -activations))
    promoted = count_overlaps(top_prompts(activations * on_answer), sets.direct)
    for table in (found.matches, found.best):
        assert table.row.is_monotonic_increasing
        for pair in table.iloc[:: max(1, len(table) // 150)].itertuples():
            h, row = parse(pair.heuristic), pair.row
            assert (pair.kind, pair.on, pair.direct) == (h.kind, h.on, h.direct)
            value = {
                (a, b): float(np.float32(neurons.activations[row, a, b]))
                * (logits[row, brute.answer(operator, a, b)] if h.direct else np.float32(pair.sign))
                for a, b in prompts
            }
            want = brute.overlap(pair.heuristic, operator, value, tie_order)
            assert (pair.overlap, pair.size) == want
            assert pair.sign == 1 or brute.mean(pair.heuristic, operator, value) > 0  # of −A
            assert pair.neg_log10_p_hypergeom == pytest.approx(
                brute.neg_log10_tail(len(sets), pair.size, pair.overlap), rel=1e-6, abs=1e-6
            )
            if h.direct:
                assert pair.sign == 1
            else:
                assert gated or pair.sign == 1
                assert pair.expected == pytest.approx(pair.size / len(sets))
                assert pair.neg_log10_p == pytest.approx(pair.neg_log10_p_hypergeom)
    several = {(pair.row, pair.heuristic, 1) for pair in found.matches.itertuples() if pair.kind == "multi-result"}
    own = found.best[found.best.kind == "multi-result"]
    matching = own[10 * own.overlap >= 6 * own["size"]]
    assert several == {(pair.row, pair.heuristic, 1) for pair in matching.itertuples()}
    assert len(several) == (6 if operator == "/" else 0) == max(len(own) - 1, 0)  # one of seven is no match
    maps = [{(a, b): float(neurons.activations[row, a, b]) for a, b in prompts} for row in range(7)]
    signs = [(sets.indirect, up, 1), (sets.direct, promoted, 1), *([(sets.indirect, down, -1)] if gated else [])]
    want_matches = {
        (row, str(h), sign)
        for group, counted, sign in signs
        for row in range(7)
        for h, x, k in zip(group.heuristics, counted[row].tolist(), group.sizes.tolist(), strict=True)
        if 10 * x >= 6 * k and (sign == 1 or brute.mean(str(h), operator, maps[row]) < 0)
    }
    assert gated == any(sign == -1 for _, _, sign in want_matches)
    assert set(found.matches[["row", "heuristic", "sign"]].itertuples(index=False, name=None)) - several == want_matches
    assert len(found.matches) == len(want_matches) + len(several)
    # One per kind and number: that with the largest statistic.
    kinds = {(h.kind, h.on) for group in sets.groups for h in group.heuristics}
    best = found.best[found.best.kind != "multi-result"]
    assert sorted(best[["row", "kind", "on"]].itertuples(index=False, name=None)) == sorted(
        (row, *kind) for row in range(7) for kind in kinds
    )
    most = found.matches.groupby(["row", "kind", "on"]).neg_log10_p.max()
    own = found.best.set_index(["row", "kind", "on"]).neg_log10_p
    assert (own[most.index] >= most).all()
    assert (found.neurons.row == np.arange(7)).all()


def _calibrated(
    matches: pd.DataFrame, best: pd.DataFrame, null: tuple[NDArray[np.float64], NDArray[np.float64]], *tried: int
) -> NeuronMatches:
    return calibrate(["row"], *(with_p(pairs, null, (tried[0], tried[1])) for pairs in (matches, best)))


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
    null = np.arange(1.0, 10.0), np.array([11.0, 12.0, 13.0, 14.0])
    found = _calibrated(best, best.iloc[[0, 3]], null, 100, 1000)
    # Indirect: 1 of 9 nulls is at least 8.5, 7 are at least 2.5. Direct: all 4 are above 3; none reaches 15.5, so the sum of
    # 1000 probabilities is the bound.
    p = [2 * 2 / 10, 1.0, 1.0, 2 * 1000 * 10**-15.5]
    assert found.matches.p.tolist() == pytest.approx(p)
    assert found.best.p.tolist() == pytest.approx([p[0], p[3]])
    assert found.neurons.row.tolist() == [0, 1]
    assert found.neurons.p.tolist() == pytest.approx([p[0], p[3]])
    assert found.neurons.fdr.tolist() == pytest.approx([0.4, 2 * p[3]])
    assert found.matches.fdr.tolist() == pytest.approx([0.4, 1.0, 1.0, 2 * p[3]])
    assert found.matches.calibrated.tolist() == [False, False, False, True]
    # 2 of 5 is no match, however improbable.
    few = _calibrated(best.assign(overlap=2), best.iloc[[0, 3]], null, 100, 1000)
    assert few.matches.fdr.tolist() == found.matches.fdr.tolist()
    assert not few.matches.calibrated.any()


def test_a_rate_of_exactly_the_level_is_calibrated() -> None:
    """One neuron above all of 39 nulls: twice 1/40, exactly."""
    best = pd.DataFrame({"row": [0], "direct": [False], "neg_log10_p": [1.0], "overlap": [6], "size": [10]})
    found = _calibrated(best, best, (np.zeros(39), np.zeros(1)), 1000, 1000)
    assert (found.best.fdr.tolist(), found.best.calibrated.tolist()) == ([0.05], [True])


def test_number_of_heuristics_tried() -> None:
    """Indirect ones with either sign in gated MLPs; 12 results have C(12, 2) + C(12, 3) + C(12, 4) sets."""
    assert tries(SMALL, True) == (2 * len(SMALL.indirect.heuristics), len(SMALL.direct.heuristics) + 66 + 220 + 495)
    sums = CATALOGUES["+"]
    assert tries(sums, False) == (len(sums.indirect.heuristics), len(sums.direct.heuristics))


@pytest.mark.parametrize("gated", [False, True])
def test_the_strongest_pairs_of_each_threshold(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as if all pairs with that score were matches; and the best score of any pair with sign 1."""
    sets, logits = CATALOGUES["/"], np.random.default_rng(2).standard_normal((7, 130)).astype(np.float32)
    neurons = NeuronBatch(activation_maps(), logits, gated)
    want = match_neurons(neurons, sets, 3, 0, list("abcdefg"), lambda n: None)
    assert want.strongest.shape == (7, 2, 6)
    assert (want.strongest[:, :, 1:] <= want.strongest[:, :, :-1]).all()
    for i, threshold in enumerate(THRESHOLDS):

        def at_least(overlap: Tensor, size: Tensor, other: float = threshold) -> Tensor:
            return is_match(overlap, size, other)

        monkeypatch.setattr(neuron_matching, "is_match", at_least)
        matches = match_neurons(neurons, sets, 3, 0, list("abcdefg"), lambda n: None).matches
        assert (matches.score >= threshold).all()
        for row in range(7):
            own = matches[matches.row == row]
            for direct in (False, True):
                most = own[own.direct == direct].neg_log10_p.max()
                assert want.strongest[row, int(direct), i] == (-np.inf if np.isnan(most) else most)
            best = own[own.sign == 1].score.max()
            assert want.best_score[row] == best if best >= threshold else want.best_score[row] < threshold
    assert np.isinf(want.strongest).any()


def test_an_empty_table_has_columns_of_the_same_types() -> None:
    none, zero = torch.zeros(0, dtype=torch.long), torch.zeros(1, 1)
    sets = Overlaps(zero.int(), zero.int(), zero.int(), zero, zero, zero)
    empty, one = (
        _pairs((at, at), range(1), found, sets)
        for at, found in ((none, []), (torch.zeros(1, dtype=torch.long), [parse("op1 = op2")]))
    )
    assert {name: x.dtype for name, x in empty.items()} == {name: x.dtype for name, x in one.items()}


def test_permutations_are_never_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts have one ranking besides the neuron's own, and every permutation is that."""
    all_shifts: list[list[int]] = []

    def recorded(
        activations: Tensor, logits: Tensor, sets: Catalogue, shifts: NDArray[np.int64], rows: int
    ) -> DirectOverlaps:
        all_shifts.extend(shifts.tolist())
        return direct_overlaps(activations, logits, sets, shifts, rows)

    monkeypatch.setattr("arithscope.heuristics.neuron_matching.direct_overlaps", recorded)
    neurons = NeuronBatch(np.ones((2, 2, 2), dtype=np.float16), np.ones((2, 2), dtype=np.float32))
    calibrated_matches(neurons, catalogue("/", 1, 1000), 10, 0, ["a", "b"], lambda n: None)
    assert all_shifts == [[1] * 10] * 2


def test_results_do_not_depend_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sets, logits = CATALOGUES["/"], np.random.default_rng(2).standard_normal((7, 130)).astype(np.float32)
    neurons, done = NeuronBatch(activation_maps(), logits), []
    want = calibrated_matches(neurons, sets, 3, 0, list("abcdefg"), lambda n: None)
    monkeypatch.setattr("arithscope.heuristics.overlaps.CPU_ELEMENTS", 1)
    found = calibrated_matches(neurons, sets, 3, 0, list("abcdefg"), done.append)
    assert done == [1] * 7
    for a, b in ((found.matches, want.matches), (found.best, want.best), (found.neurons, want.neurons)):
        pd.testing.assert_frame_equal(a, b)
