"""Rules where numbers have several tokens: which there are, their overlaps, calibration and names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue, stratum_catalogue
from arithscope.heuristics.kinds import Rule, parse, stratum_heuristics
from arithscope.heuristics.naming import Naming
from arithscope.heuristics.neuron_matching import NeuronBatch, NeuronMatches
from arithscope.heuristics.overlaps import count_overlaps, top_prompts
from arithscope.heuristics.variance import Coverage
from arithscope.prompts import OPERATORS, Layout, Stratum, whole_numbers
from tests.heuristics import brute, strata
from tests.heuristics.catalogues import pairs_of
from tests.heuristics.planted import classified, real_value_vectors

operators = pytest.mark.parametrize("operator", OPERATORS)
NEW = {"digit", "digit pair", "digit sum", "digit difference", "carry", "borrow"}
DRAWS = 8


@cache
def catalogue_of(operator: str) -> Catalogue:
    return stratum_catalogue(operator, strata.STRATA[operator])


def texts(operator: str, stratum: Stratum) -> list[str]:
    return [str(h) for h in stratum_heuristics(operator, stratum, stratum.prompts(operator).result)]


def about_digits(found: Sequence[str]) -> set[str]:
    return {text for text in found if parse(text).kind in NEW}


def digits(*variables: str) -> set[str]:
    return {f"{variable} = {digit}" for variable in variables for digit in range(10)}


def pairs(*places: str) -> set[str]:
    return {f"{place} of op1, op2 = {a}, {b}" for place in places for a in range(10) for b in range(10)}


OPERANDS = ("op1 units", "op1 tens", "op2 units", "op2 tens")


def test_rules_about_digits_of_sums() -> None:
    """The tens are asked for, so they are a rule about the result; the sum of the units is the answer's units digit."""
    assert about_digits(texts("+", strata.SUMS)) == {
        *digits(*OPERANDS, "answer units", "answer hundreds", "tens of op1 + op2 mod 10"),
        *pairs("units", "tens"),
        *(f"carry into {place} = {carry}" for place in ("tens", "hundreds") for carry in (0, 1)),
    }
    kept = {str(h) for group in catalogue_of("+").groups for h in group.heuristics}
    assert not {"carry into hundreds = 1", "answer hundreds = 1", "op1 tens = 0"} & kept  # for all prompts, or for none
    assert {"carry into tens = 0", "carry into tens = 1", "op1 tens = 9", "tens of op1, op2 = 9, 9"} <= kept


def test_rules_about_digits_of_differences() -> None:
    assert about_digits(texts("-", strata.DIFFERENCES)) == {
        *digits(*OPERANDS, "answer units", "tens of op1 - op2 mod 10"),
        *pairs("units", "tens"),
        *(f"borrow into {place} = {borrow}" for place in ("tens", "hundreds") for borrow in (0, 1)),
    }


def test_rules_about_digits_of_products_and_quotients() -> None:
    """They have no carry and no sum of digits. One operand has no tens, so that there are no pairs of tens."""
    one = ("op1 units", "op1 tens", "op2 units")
    assert about_digits(texts("*", strata.PRODUCTS)) == {
        *digits(*one, "answer units", "answer hundreds"),
        *pairs("units"),
    }
    assert about_digits(texts("/", strata.QUOTIENTS)) == {
        *digits(*one, "op1 hundreds", "answer units"),
        *pairs("units"),
    }


def test_no_digit_of_a_longer_token_that_is_asked_for_is_an_indirect_rule() -> None:
    found = about_digits(texts("+", strata.GROUPED))
    assert {text for text in found if text.startswith("answer")} == digits("answer thousands")
    # Asking for the first token, all digits above are asked for too.
    found = about_digits(texts("+", strata.GROUPED.at_step(1)))
    assert {text for text in found if text.startswith("answer")} == digits(
        "answer units", "answer tens", "answer hundreds"
    )


def test_rules_about_one_digit_of_the_result() -> None:
    found = [text for text in texts("+", strata.SUMS) if text.startswith("result")]
    assert found == [
        *(f"result in [{low}, {low + length}]" for length in (1, 2, 4) for low in range(10 - length)),
        *(f"result mod {n} = {m}" for n in (2, 3, 4, 5) for m in range(n)),
        *(f"result ~ 00{digit}" for digit in range(10)),
    ]
    # Differences of two-digit numbers have tens 1 to 8.
    found = [text for text in texts("-", strata.DIFFERENCES) if text.startswith("result in")]
    assert (found[0], found[-1]) == ("result in [1, 2]", "result in [4, 8]")


def test_rules_about_operands() -> None:
    """Patterns have two fixed digits or more, and none beyond the highest place; one-digit operands have short ranges."""
    found = texts("*", strata.PRODUCTS)
    assert {t for t in found if t.startswith("op1 ~")} == {f"op1 ~ .{n:02d}" for n in range(100)}
    assert not any(t.startswith("op2 ~") for t in found)
    assert [t for t in found if t.startswith("op2 in")][:3] == ["op2 in [2, 3]", "op2 in [3, 4]", "op2 in [4, 5]"]
    assert [t for t in found if t.startswith("op1 in")][:3] == ["op1 in [0, 10]", "op1 in [10, 20]", "op1 in [20, 30]"]
    assert {t for t in texts("/", strata.QUOTIENTS) if t.startswith("op1 ~ ..")} == set()
    assert "op1 ~ 1.7" in texts("/", strata.QUOTIENTS)


def test_long_numbers_have_long_ranges() -> None:
    """Of five digits, in units of a hundred."""
    long = Stratum((10000, 99999), (10, 20), (10000, 99999), Layout((3, 0), (0,), (3, 0)), step=1)
    lows = [h for h in texts("+", long) if h.startswith("op1 in")]
    assert lows[:2] == ["op1 in [0, 1000]", "op1 in [1000, 2000]"]
    assert len(lows) < 300


@operators
def test_whole_numbers_have_no_rules_about_digits(operator: str) -> None:
    assert not about_digits(texts(operator, whole_numbers(30, 100)))


@operators
def test_the_catalogue_of_a_stratum_against_sets(operator: str) -> None:
    """Complete, without repetitions, with the right prompts; and the overlaps with random and with tied activations."""
    stratum = strata.small(operator)
    sets = stratum_catalogue(operator, stratum, both_operands=True)
    prompts, found = pairs_of(sets), dict[tuple[str, str, frozenset[brute.Prompt]], str]()
    for h in stratum_heuristics(operator, stratum, sets.prompts.result, both_operands=True):
        own = frozenset(strata.members(str(h), operator, stratum, prompts))
        if 0 < len(own) < len(prompts):
            found.setdefault((h.kind, h.on, own), str(h))
    members = {text: own for (_, _, own), text in found.items()}
    assert sorted(str(h) for group in sets.groups for h in group.heuristics) == sorted(members)
    random = np.random.default_rng(0)
    for values in (random.standard_normal(len(prompts)), random.integers(-1, 2, len(prompts)).astype(float)):
        ranked = top_prompts(torch.from_numpy(values)[None])
        order = sorted(range(len(prompts)), key=lambda i: (-values[i], i))
        for group in sets.groups:
            counted = zip(
                group.heuristics, group.sizes.tolist(), count_overlaps(ranked, group)[0].tolist(), strict=True
            )
            for h, size, overlap in counted:
                own = members[str(h)]
                assert (size, overlap) == (len(own), len(own & {prompts[i] for i in order[: len(own)]})), str(h)


@operators
def test_rules_at_a_place_share_a_variable(operator: str) -> None:
    """Pairs have one variable a place, with as many values as there are pairs; likewise the others."""
    for group in catalogue_of(operator).groups:
        start = 0
        for variable in group.variables:
            own = group.heuristics[start : (start := start + len(variable.holds))]
            assert {h.variable for h in own} == {variable.name}
            if own[0].kind in NEW:
                assert variable.holds.shape[1] <= len(own) + 1
                assert len(variable.upper) == len(own)
        kinds = [(group.heuristics[a].kind, group.heuristics[a].on) for a, _ in group.kind_spans]
        assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("operator", ["+", "-"])
@pytest.mark.parametrize(("values", "gated"), [("flat", False), ("random", True), ("real", False), ("real", True)])
def test_noise_is_not_classified_in_a_stratum(
    operator: str, values: str, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And p is uniform, or larger, as far as neurons and draws of the null can tell."""
    sets, n, null_draws = catalogue_of(operator), 400, 2000
    monkeypatch.setattr("arithscope.heuristics.calibration.INDIRECT_DRAWS", null_draws)
    random = np.random.default_rng(1).standard_normal((n, 10)).astype(np.float32)
    logits = {"flat": np.ones_like(random), "random": random, "real": real_value_vectors()[:n]}[values]
    found = classified(strata.noise(n, sets.stratum, logits, gated=gated), sets, DRAWS)
    assert found.matches[found.matches.calibrated].row.nunique() / n <= 0.05
    for level in (0.01, 0.05, 0.2):
        assert (found.neurons.p <= level).mean() <= level + 3 * np.sqrt(level / n + level / null_draws)


def candidates(sets: Catalogue, of_each: int) -> list[Rule]:
    """Random rules of each kind and number, with thirty prompts or more."""
    random, groups = np.random.default_rng(0), dict[tuple[str, str], list[Rule]]()
    for group in sets.groups:
        for h, k in zip(group.heuristics, group.sizes.tolist(), strict=True):
            if 30 <= k <= 0.6 * len(sets):
                groups.setdefault((h.kind, h.on), []).append(h)
    return [group[i] for group in groups.values() for i in random.integers(0, len(group), of_each)]


def beside_noise(sets: Catalogue, rules: Sequence[Rule]) -> tuple[NeuronBatch, NeuronMatches]:
    """Matches of planted neurons, among as many of noise."""
    signal = strata.planted(sets, rules, strength=5)
    random = np.random.default_rng(3).standard_normal(signal.logits.shape).astype(np.float32)
    other = strata.noise(len(rules), sets.stratum, random, seed=2)
    arrays = ((signal.activations, other.activations), (signal.logits, other.logits))
    batch = NeuronBatch(*map(np.concatenate, arrays))
    return batch, classified(batch, sets, DRAWS)


def names(sets: Catalogue, rules: Sequence[Rule]) -> list[tuple[Rule, list[Rule]]]:
    """Name and aliases of neurons that each do one of these rules; all must be calibrated matches."""
    batch, found = beside_noise(sets, rules)
    sure, naming, named = found.matches[found.matches.calibrated], Naming(sets), []
    _, on_answers = batch.on_prompts(range(len(rules)), sets)
    for row, rule in enumerate(rules):
        own = sure[sure.row == row].sort_values("neg_log10_p", ascending=False, kind="stable")
        assert str(rule) in own.heuristic.tolist(), str(rule)
        same = [parse(text) for text in own[own.direct == own.iloc[0].direct].heuristic]
        name = naming.name(batch.activations[row], on_answers[row].numpy(), 1, same)
        named.append((name.rule, name.aliases))
    return named


STEPS = [("+", strata.SUMS, 2), ("+", strata.SUMS, 3), ("-", strata.DIFFERENCES, 1), ("-", strata.DIFFERENCES, 2)]


@pytest.mark.parametrize(("operator", "stratum", "step"), [*STEPS, ("*", strata.MANY_PRODUCTS, 3)])
def test_planted_rules_of_every_kind_are_found_and_named(operator: str, stratum: Stratum, step: int) -> None:
    """The name is the rule itself, or a simpler one that holds for nearly the same prompts."""
    sets = stratum_catalogue(operator, stratum.at_step(step))
    rules = candidates(sets, of_each=3)
    kinds = {
        "digit",
        "digit pair",
        *{"+": ("digit sum", "carry"), "-": ("digit difference", "borrow")}.get(operator, ()),
    }
    assert kinds <= {rule.kind for rule in rules}
    named = names(sets, rules)
    for rule, (name, aliases) in zip(rules, named, strict=True):
        assert rule in (name, *aliases), (str(rule), str(name))
        if rule.kind in NEW and rule != name:
            assert name.kind in ("digit", "pattern"), (str(rule), str(name))
    exactly = [rule == name for rule, (name, _) in zip(rules, named, strict=True) if rule.kind in NEW]
    assert np.mean(exactly) > 0.7


def test_names_by_hand() -> None:
    """Carries, sums and most cells have no other name; a digit names a cell that it implies, and a range of ten."""
    sets = catalogue_of("-")
    wanted = {
        "borrow into tens = 1": "borrow into tens = 1",
        "borrow into tens = 0": "borrow into tens = 0",
        "units of op1, op2 = 4, 3": "units of op1, op2 = 4, 3",
        "tens of op1 - op2 mod 10 = 3": "tens of op1 - op2 mod 10 = 3",
        "answer units = 7": "answer units = 7",
        "op2 in [40, 50]": "op2 tens = 4",
        "tens of op1, op2 = 2, 1": "op1 tens = 2",
        "result ~ 004": "result ~ 004",
    }
    found = names(sets, [parse(text) for text in wanted])
    assert [str(name) for name, _ in found] == list(wanted.values())


def test_coverage_of_rules_about_digits() -> None:
    """A map that is a sum of a digit and a carry is covered by these two rules; against least squares."""
    sets, random = catalogue_of("+"), np.random.default_rng(0)
    rules = [
        parse("op1 tens = 4"),
        parse("carry into tens = 1"),
        parse("result ~ 003"),
        parse("units of op1, op2 = 4, 3"),
    ]
    columns: NDArray[np.float64] = np.stack([rule.holds(sets.prompts) for rule in rules], axis=1).astype(np.float64)
    field = columns[:, 0] + 2 * columns[:, 1] + random.standard_normal(len(sets))
    found = Coverage(sets)(
        field.astype(np.float32), rules, np.ones(4, dtype=np.bool_), np.array([True, False, False, False])
    )
    for used, share in zip((columns, columns[:, :1]), found, strict=True):
        design = np.column_stack([np.ones(len(sets)), used])
        left = field - design @ np.linalg.lstsq(design, field, rcond=None)[0]
        assert share == pytest.approx(1 - left.var() / field.var(), abs=1e-5)
