"""Calibration: noise must not be classified, planted rules must be found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from arithscope.heuristics.calibration import (
    FDR_LEVEL,
    ONE_OPERAND_DRAWS,
    direct_overlaps,
    false_discovery_rate,
    gathered_products,
    indirect_null,
    needs_both_operands,
    neg_log10_p,
    one_operand_overlaps,
    one_operand_permutations,
    p_values,
    rolled_products,
)
from arithscope.heuristics.catalogue import catalogue
from arithscope.heuristics.kinds import Rule, parse
from arithscope.heuristics.multi_result import find_result_sets, ranks_by_result
from arithscope.heuristics.neuron_matching import NeuronBatch
from arithscope.heuristics.overlaps import top_prompts
from arithscope.heuristics.tails import neg_log10_p_hypergeom_table
from arithscope.prompts import OPERATORS, random_source
from tests.heuristics.planted import LIMIT, classified, noise, permuted_maps, real_value_vectors, recall, shares

operators = pytest.mark.parametrize("operator", OPERATORS)
# The full operand grid takes minutes; operands up to 100 test the same.
grids = pytest.mark.parametrize("max_operand", [100, pytest.param(300, marks=pytest.mark.slow)])
PERMUTATIONS = 8


@grids
@operators
@pytest.mark.parametrize(
    ("maps", "gated"), [("flat", False), ("real", False), ("real", True), ("permuted", False), ("permuted", True)]
)
def test_noise_is_not_classified(operator: str, max_operand: int, maps: str, gated: bool) -> None:
    """Random activations with constant and with real value vectors; real maps with permuted prompts."""
    sets = catalogue(operator, max_operand, LIMIT)
    if maps == "permuted":
        neurons = permuted_maps(500, operator, max_operand, gated)
    else:
        neurons = noise(500, max_operand, real_value_vectors() if maps == "real" else None, gated)
    found = classified(neurons, sets, PERMUTATIONS)
    raw, calibrated = shares(found, len(neurons))
    assert calibrated <= 0.05
    if operator == "*":
        assert raw > 0.95  # most products are even
    # p is uniform under the null, or larger.
    for level in (0.01, 0.05, 0.2):
        assert (found.neurons.p <= level).mean() <= level + 3 * np.sqrt(level / 500)


@grids
@operators
def test_planted_rules_are_found(operator: str, max_operand: int) -> None:
    found = recall(catalogue(operator, max_operand, LIMIT), max_operand, strength=5, of_each=20, draws=PERMUTATIONS)
    assert min(found.values()) >= 0.95, found


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=60))
def test_false_discovery_rate_is_the_step_up_procedure(p: list[float]) -> None:
    """A neuron's rate is at most LEVEL exactly if Benjamini and Hochberg reject it."""
    ordered = sorted(p)
    passed = [i for i, x in enumerate(ordered, 1) if x <= FDR_LEVEL * i / len(p)]
    rejected = [x <= ordered[max(passed) - 1] if passed else False for x in p]
    rate = false_discovery_rate(np.array(p), np.array(p))
    assert ((rate <= FDR_LEVEL * (1 + 1e-12)) == rejected).all()
    assert (rate >= np.array(p) * (1 - 1e-12)).all()
    assert (rate <= 1).all()


def test_a_worse_heuristic_of_a_neuron_has_a_worse_rate() -> None:
    neurons = np.array([1e-6, 1e-4, 0.02, 0.5, 0.9])
    rate = false_discovery_rate(np.array([1e-6, 1e-4, 1e-3, 0.02, 0.03, 1.0]), neurons)
    assert np.all(np.diff(rate) >= 0)
    assert rate[2] == pytest.approx(min(1e-3 * 5 / 2, 0.02 * 5 / 3))


@pytest.mark.filterwarnings("error")
def test_the_rate_of_a_p_below_that_of_every_neuron() -> None:
    """No neuron is below t = p itself; the smaller of 0.5 · 2/1 and 0.9 · 2/2 counts."""
    assert false_discovery_rate(np.array([0.01, 0.95]), np.array([0.9, 0.5])) == pytest.approx([0.9, 0.95])


def test_p_values_count_the_null_and_are_bounded_beyond_it() -> None:
    null = np.arange(1.0, 100.0)
    p = p_values(np.array([0.0, 50.0, 99.0, 99.5, 2000.0]), null, tries=20)
    assert p == pytest.approx([1.0, 51 / 100, 2 / 100, 20 * 10**-99.5, 0.0])
    assert p_values(np.array([1.5]), np.array([1.0]), tries=1000)[0] == 0.5
    assert p_values(np.array([5.0]), null[:3], tries=20)[0] == pytest.approx(20e-5)


@given(st.integers(1, 400), st.floats(1e-6, 1 - 1e-6), st.floats(0, 1))
def test_neg_log10_p_bounds_the_binomial_tail(k: int, share: float, above: float) -> None:
    mean = share * k
    x = min(k, int(np.ceil(mean + above * (k - mean))))
    [found] = neg_log10_p(torch.tensor([x]), torch.tensor([k]), torch.tensor([mean], dtype=torch.float64)).tolist()
    terms = np.arange(x, k + 1)
    pmf = (
        gammaln(k + 1)
        - gammaln(terms + 1)
        - gammaln(k - terms + 1)
        + terms * np.log(share)
        + (k - terms) * np.log1p(-share)
    )
    tail = -logsumexp(pmf) / np.log(10)
    assert 0 <= found <= tail + 1e-6
    assert tail - found < 0.5 + np.log10(2 * k + 2)  # and the bound is tight
    assert neg_log10_p(
        torch.tensor([int(mean)]), torch.tensor([k]), torch.tensor([mean], dtype=torch.float64)
    ).tolist() == [0.0]


@operators
def test_expected_overlaps_come_from_the_other_rankings(operator: str) -> None:
    """Redoes every permutation with plain sorting and counting."""
    sets, draws = catalogue(operator, 20, 1000), 5
    random = np.random.default_rng(3)
    both = torch.from_numpy(random.standard_normal((2, 2, len(sets)))).float()
    shifts = random.integers(1, len(sets), (2, draws))
    found = direct_overlaps(*both, sets, shifts, rows=5)  # of the second of two neurons
    activations, logits = both[:, 1]
    assert found.null.shape == (2, draws)
    members = np.stack([h.holds(sets.prompts) for h in sets.direct.heuristics])
    overlap = np.empty((draws + 1, len(members)))
    for i, shift in enumerate([0, *shifts[1]]):
        moved = np.array([float(activations[(j - shift) % len(sets)]) for j in range(len(sets))], dtype=np.float32)
        ranked = np.argsort(-(moved * logits.numpy()), kind="stable")
        overlap[i] = [m[ranked[: m.sum()]].sum() for m in members]
    size = members.sum(1)
    chance = size**2 / len(sets)
    assert found.catalogued.overlap[1].tolist() == overlap[0].tolist()
    for i in range(draws + 1):
        expected = (np.delete(overlap, i, axis=0).sum(0) + chance + 0.5) / (draws + 1)
        most = neg_log10_p(*(torch.from_numpy(x) for x in (overlap[i], size, expected)))
        if i == 0:
            assert found.catalogued.expected[1].numpy() == pytest.approx(expected)
            assert found.catalogued.neg_log10_p[1].numpy() == pytest.approx(most.numpy())
        elif operator != "/":  # where there are multi-result heuristics too
            assert float(found.null[1, i - 1]) == pytest.approx(float(most.max()))


def test_a_range_of_results_needs_both_operands() -> None:
    """A map that depends on one operand may match a range of results, but does not need both; a true range does."""
    sets, random = catalogue("+", 60, LIMIT), np.random.default_rng(0)
    permuted = one_operand_permutations(sets, 0)
    assert permuted.shape == (2, ONE_OPERAND_DRAWS, len(sets))
    for kind, kept in enumerate((sets.prompts.op2, sets.prompts.op1)):
        for draw in permuted[kind].numpy():
            assert sorted(draw.tolist()) == list(range(len(sets)))
            assert (kept[draw] == kept).all()
    rule = parse("result in [80, 110]")
    members = rule.holds(sets.prompts)
    size = torch.tensor([members.sum()])

    def takes_two(pattern: NDArray[np.float64], heuristic: Rule) -> bool:
        noisy = torch.from_numpy(pattern + 0.1 * random.standard_normal(len(sets))).float()
        left = one_operand_overlaps(noisy, torch.ones(len(sets)), [heuristic], int(size), sets, permuted)
        by_hand = np.array(
            [
                [members[np.argsort(-noisy[p].numpy(), kind="stable")[: members.sum()]].sum() for p in kind]
                for kind in permuted
            ]
        )
        assert left[:, 0].numpy() == pytest.approx(by_hand.mean(1))
        overlap = torch.tensor([members[top_prompts(noisy[None])[0, : members.sum()].numpy()].sum()])
        return bool(needs_both_operands(overlap, size, left)[0])

    assert all(takes_two(members, rule) for _ in range(5))
    for one in (sets.prompts.op1, sets.prompts.op2):
        assert not any(takes_two(one / 30 - 1, rule) for _ in range(30))


def test_a_multi_result_heuristic_needs_both_operands() -> None:
    sets = catalogue("/", 40, LIMIT)
    rule = parse("result in {1, 3}")
    members = torch.from_numpy(rule.holds(sets.prompts))
    odd = parse("result mod 2 = 1")
    largest = int(odd.holds(sets.prompts).sum())
    permuted = one_operand_permutations(sets, 0)
    size = torch.tensor([int(members.sum())])
    pattern = 1.0 + members
    for weights in (1.0 + sets.answers % 3, torch.ones(len(sets))):
        left = one_operand_overlaps(pattern, weights, [rule, odd], largest, sets, permuted)
        top = top_prompts((pattern[permuted] * weights).flatten(0, 1), int(size))
        assert left[:, 0].tolist() == pytest.approx(members[top].view(2, -1).sum(1).div(ONE_OPERAND_DRAWS).tolist())
    assert size < largest < len(sets)
    assert bool(needs_both_operands(size, size, left[:, :1])[0])
    assert (left[:, 0] < 0.9 * size).all()


@pytest.mark.filterwarnings("error")
@given(st.integers(1, 3), st.integers(1, 9), st.data())
def test_rolled_products(neurons: int, prompts: int, data: st.DataObject) -> None:
    """Both implementations agree with torch.roll."""
    generator = torch.Generator().manual_seed(0)
    activations, logits = (torch.randn(neurons, prompts, generator=generator) for _ in range(2))
    pair = st.tuples(st.integers(0, neurons - 1), st.integers(0, prompts - 1))
    which = data.draw(st.lists(pair, min_size=1, max_size=6))
    expected = torch.stack([activations[i].roll(shift) * logits[i] for i, shift in which])
    for products in (rolled_products, gathered_products):
        assert torch.equal(products(activations, logits, which), expected)


def test_neg_log10_p_by_hand() -> None:
    """8 of 10 where 2 are expected: 8·log 4 + 2·log ¼, in powers of ten; nothing for what is expected, or less."""
    overlap, size = torch.tensor([8, 10, 2, 1, 10]), torch.tensor([10, 10, 10, 10, 10])
    found = neg_log10_p(overlap, size, torch.tensor([2.0, 2.0, 2.0, 2.0, 12.0])).tolist()
    assert found == pytest.approx([6 * np.log10(4), 10 * np.log10(5), 0, 0, 0])
    # An expectation of 0.
    assert neg_log10_p(torch.tensor([1]), torch.tensor([1]), torch.tensor([0.0])).tolist() == pytest.approx([300])


@pytest.mark.parametrize("gated", [False, True])
@operators
def test_the_null_of_indirect_heuristics_by_hand(operator: str, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rankings one by one, forwards and for gated MLPs also backwards, with plain counting; memory
    does not matter."""
    monkeypatch.setattr("arithscope.heuristics.calibration.INDIRECT_DRAWS", 7)
    sets = catalogue(operator, 12, LIMIT, both_operands=True)
    members = np.stack([h.holds(sets.prompts) for h in sets.indirect.heuristics])
    random, want = random_source(5, "indirect null", operator), []
    for _ in range(7):
        ranked = random.permutation(len(sets))
        orders = (ranked, ranked[::-1]) if gated else (ranked,)
        counts = [max(m[order[: m.sum()]].sum() for order in orders) for m in members]
        want.append(
            max(neg_log10_p_hypergeom_table(len(sets), int(m.sum()))[x] for m, x in zip(members, counts, strict=True))
        )
    for rows in (3, 7, 100):
        found = indirect_null(sets, 5, gated, rows)
        assert found.tolist() == pytest.approx(want)


def test_calibration_of_multi_result_heuristics() -> None:
    """Counts the sets of a neuron's own ranking and of every permutation in all rankings of that neuron, by hand."""
    sets, draws = catalogue("/", 11, LIMIT), 4
    random = np.random.default_rng(4)
    answers = sets.answers.numpy()
    liked = np.isin(answers, (1, 3)) * 2.0
    activations = torch.from_numpy(liked + random.standard_normal((3, len(sets)))).float()
    logits = torch.from_numpy(liked + random.standard_normal((3, len(sets)))).float()
    shifts = random.integers(1, len(sets), (3, draws))
    found = direct_overlaps(activations, logits, sets, shifts, rows=4)
    assert found.result_sets is not None
    several, own = found.result_sets
    for neuron in range(3):
        moved = [activations[neuron].roll(int(s)) * logits[neuron] for s in (0, *shifts[neuron])]
        ordered = top_prompts(torch.stack(moved))
        every = find_result_sets(ordered, ranks_by_result(ordered, sets), sets)
        results = answers[ordered.numpy()]
        catalogued = direct_overlaps(activations[[neuron]], logits[[neuron]], sets, shifts[[neuron]], rows=1)
        for i in range(draws + 1):
            assert bool(every.exists[i])
            chosen, k = every.heuristic(i, sets).results, int(every.size[i])
            counts = np.isin(results[:, :k], chosen).sum(1)
            expected = (counts.sum() - counts[i] + k * k / len(sets) + 0.5) / (draws + 1)
            above = float(neg_log10_p(torch.tensor(counts[i]), torch.tensor(k), torch.tensor(expected)))
            if i == 0:
                assert several.heuristic(neuron, sets).results == chosen
                numbers = [float(x[neuron, 0]) for x in (own.size, own.overlap, own.expected, own.neg_log10_p)]
                assert numbers == pytest.approx([k, counts[0], expected, above])
            else:
                assert float(found.null[neuron, i - 1]) >= above - 1e-9
        assert torch.equal(catalogued.null[0], found.null[neuron])


def test_without_a_multi_result_heuristic() -> None:
    """0/1 and 1/1: all results together are not a set, so the null comes from the catalogue alone."""
    sets = catalogue("/", 1, LIMIT)
    assert len(sets) == 2
    found = direct_overlaps(torch.tensor([[1.0, 2.0]]), torch.ones(1, 2), sets, np.array([[1, 1]]), rows=8)
    assert found.result_sets is not None
    assert not found.result_sets[0].exists.any()
    # One of two in its own ranking, the other one in the others: chance and half a prompt are expected.
    assert (found.null < 0.5).all()
    neurons = NeuronBatch(np.ones((1, 2, 2), dtype=np.float16), np.ones((1, 2), dtype=np.float32))
    tables = classified(neurons, sets, 2)
    for table in (tables.matches, tables.best):
        assert "multi-result" not in table.kind.tolist()
    kinds = {
        "row": "int64",
        "sign": "int8",
        "size": "int32",
        "overlap": "int32",
        "direct": "bool",
        "neg_log10_p_hypergeom": "float64",
    }
    assert {name: str(table[name].dtype) for name in kinds} == kinds


def test_needs_both_operands_by_hand() -> None:
    """p below 0.001 against either operand alone, with half a prompt added over ONE_OPERAND_DRAWS permutations."""
    size = torch.tensor([20])

    def both(overlap: int, *left: float) -> bool:
        return bool(needs_both_operands(torch.tensor([overlap]), size, torch.tensor(left)[:, None])[0])

    def enough(left: float) -> int:
        """The smallest overlap whose Chernoff bound is 0.001, from the formula."""
        mean = left + 0.5 / 4
        bounds = [
            x * np.log10(x / mean) + (20 - x) * np.log10(max(20 - x, 1e-9) / (20 - mean)) if x > mean else 0.0
            for x in range(21)
        ]
        return next(x for x, bound in enumerate(bounds) if bound >= 3)

    for left in (0.0, 1.0, 4.0):
        least = enough(left)
        assert both(least, left, left)
        assert both(least, left, 0.0)
        assert not both(least - 1, left, 0.0)
        assert not both(least - 1, 0.0, left)
    # 3 of 3 where 0.3 are expected: one chance in a thousand, exactly.
    three, left = torch.tensor([3]), torch.full((2, 1), 0.175, dtype=torch.float64)
    assert needs_both_operands(three, three, left).tolist() == [True]
