"""Neurons are named by the simplest rule that fits: planted maps, and sets and regressions one by one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from arithscope.heuristics.catalogue import Catalogue, catalogue
from arithscope.heuristics.kinds import RULES, VARIABLES, Range, Rule, parse
from arithscope.heuristics.naming import Domain, Naming, RuleSets, simplicity
from arithscope.heuristics.neuron_matching import NeuronBatch
from arithscope.prompts import operand_grid
from tests.heuristics import brute
from tests.heuristics.catalogues import CATALOGUES, MAX_OPERAND, operators, pairs_of
from tests.heuristics.planted import classified

FULL, LIMIT = 300, 1000


@cache
def whole(operator: str) -> tuple[Catalogue, Naming]:
    sets = catalogue(operator, FULL, LIMIT)
    return sets, Naming(sets)


def named(
    operator: str, field: NDArray[np.float64], logits: NDArray[np.float64], gated: bool = False
) -> tuple[str, str, int, list[str]]:
    """Match a map beside maps of noise; its name, its best match, the sign and the aliases."""
    sets, naming = whole(operator)
    random = np.random.default_rng(0)
    maps = np.stack([field, *np.zeros((4, *field.shape))]) + random.standard_normal((5, *field.shape)) / 10
    batch = NeuronBatch(maps.astype(np.float16), np.tile(logits, (5, 1)).astype(np.float32), gated)
    matches = classified(batch, sets, 8).matches
    own = matches[(matches.row == 0) & matches.calibrated]
    own = own.sort_values("neg_log10_p", ascending=False, kind="stable")
    best = own.iloc[0]
    same = own[(own.direct == best.direct) & (own.sign == best.sign)]
    _, on_answers = batch.on_prompts(range(1), sets)
    rules = [parse(text) for text in same.heuristic]
    found = naming.name(batch.activations[0], on_answers[0].numpy(), int(best.sign), rules)
    return str(found.rule), str(best.heuristic), int(best.sign), [str(alias) for alias in found.aliases]


def planted(operator: str, text: str) -> NDArray[np.float64]:
    return parse(text).holds(operand_grid(operator, FULL)).reshape(FULL + 1, -1).astype(np.float64)


FLAT = np.ones(LIMIT)


def test_a_plateau_of_quotients_that_are_1() -> None:
    promoted = np.where(np.arange(LIMIT) == 1, 3.0, 0.5)
    name, _, _, aliases = named("/", planted("/", "result ~ 001"), promoted)
    assert name == "result ~ 001"
    assert "result mod 11 = 1" in aliases


def test_a_simpler_rule_names_the_neuron_even_if_it_fits_a_little_less() -> None:
    """The neuron also fires where the result is 10 or 19, so that `result mod 9 = 1` fits it best; nearly all its prompts have
    the result 1."""
    promoted = np.where(np.isin(np.arange(LIMIT), [1, 10, 19]), 3.0, 0.5)
    name, _, _, aliases = named("/", planted("/", "result mod 9 = 1"), promoted)
    assert name == "result ~ 001"
    assert "result mod 9 = 1" in aliases


def test_products_with_a_first_operand_of_0() -> None:
    name, _, _, aliases = named("*", planted("*", "op1 ~ 000"), FLAT)
    assert name == "op1 ~ 000"
    assert "op1 ~ .00" in aliases


def test_the_corner_of_small_operands() -> None:
    name, best, _, aliases = named("-", planted("-", "op1, op2 in [0, 50]"), FLAT)
    assert best == "op1 in [0, 50]"
    assert name == "op1, op2 in [0, 50]"
    assert "op1 in [0, 50]" in aliases


def test_a_stripe_keeps_its_name() -> None:
    name, best, _, aliases = named("-", planted("-", "op1 in [0, 50]"), FLAT)
    assert name == best == "op1 in [0, 50]"
    assert "op1, op2 in [0, 50]" in aliases


def test_a_neuron_that_fires_negatively() -> None:
    name, _, sign, _ = named("-", -planted("-", "op1, op2 in [0, 50]"), FLAT, gated=True)
    assert (name, sign) == ("op1, op2 in [0, 50]", -1)


@operators
def test_coinciding_rules_against_sets(operator: str) -> None:
    """Every pair of rules, for every fifth rule; single numbers and forms of both operands are among them."""
    sets = CATALOGUES[operator]
    prompts = pairs_of(sets)
    for direct in (False, True):
        pool = RuleSets(sets, Domain(sets.prompts, VARIABLES), direct)
        members = {rule: brute.members(str(rule), operator, prompts) for rule in pool.rules}
        assert {str(r) for r in pool.rules} >= ({"result ~ 007"} if direct else {"op1 ~ 007", "op1, op2 in [0, 10]"})
        found = 0
        for rule in pool.rules[::5]:
            own = members[rule]
            want = {
                str(other)
                for other, theirs in members.items()
                if other != rule and own and 10 * len(own & theirs) >= 9 * len(own | theirs)
            }
            if own:
                assert {str(other) for other in pool.coinciding(rule)} == want
            found += len(want)
        assert found > 10


def test_sets_of_results_have_aliases_too() -> None:
    sets = CATALOGUES["/"]
    pool = RuleSets(sets, Domain(sets.prompts, VARIABLES), True)
    rule, other = parse("result in {0, 1}"), parse("result in {0, 1, 22}")
    assert [str(r) for r in pool.coinciding(rule, [other])][-1] == "result in {0, 1, 22}"
    assert other not in pool.coinciding(rule)


@pytest.mark.parametrize("whole_square", [False, True])
@operators
def test_fits_against_regressions(operator: str, whole_square: bool) -> None:
    """R² is the squared correlation with the indicator, if that is positive."""
    sets, random = CATALOGUES[operator], np.random.default_rng(1)
    size = MAX_OPERAND + 1
    pairs = [(a, b) for a in range(size) for b in range(size)] if whole_square else pairs_of(sets)
    prompts = operand_grid(operator, MAX_OPERAND) if whole_square else sets.prompts
    texts = ["op1 in [0, 10]", "op2 mod 3 = 1", "op1 ~ .1.", "op1 = op2", "op1, op2 in [10, 20]", "op2 ~ 005"]
    texts += [] if whole_square else ["result mod 2 = 0", "result ~ 003", "result in [0, 10]", "result in {1, 2}"]
    domain = Domain(prompts, ("op1", "op2") if whole_square else VARIABLES)
    values = random.standard_normal(len(pairs)) + (prompts.op1 > 12)
    fits = domain.fits(values, [parse(text) for text in texts])
    signs = set()
    for text, fit in zip(texts, fits, strict=True):
        holds = brute.rule(text)
        indicator = [holds(a, b, brute.answer(operator, a, b)) for a, b in pairs]
        assert domain.holds(parse(text)).tolist() == indicator
        correlation = float(np.corrcoef(values, indicator)[0, 1])
        assert fit == pytest.approx(max(correlation, 0.0) ** 2, abs=1e-12)
        signs.add(correlation > 0)
    assert signs == {False, True}
    # Constant values, and a rule that always holds.
    assert domain.fits(np.ones(len(pairs)), [parse(texts[0])]).tolist() == [0.0]
    assert domain.fits(values, [Range("op1", 0, 500)]).tolist() == [0.0]


@operators
def test_a_name_fits_or_nearly_coincides_with_a_rule_that_does(operator: str) -> None:
    """Whatever the map: the name, or a match that nearly coincides with it, is as good a fit as any match."""
    sets, random, size = CATALOGUES[operator], np.random.default_rng(3), MAX_OPERAND + 1
    naming, legal = Naming(sets), Domain(sets.prompts, VARIABLES)
    for group in sets.groups:
        for _ in range(20):
            matches = [group.heuristics[i] for i in random.choice(len(group.heuristics), 5, replace=False)]
            field, logits = random.standard_normal((size, size)), random.standard_normal(len(sets))
            found = naming.name(field, logits, 1, matches)
            values = field.ravel()[sets.grid_index.numpy()] * (logits if matches[0].direct else 1)
            fits = legal.fits(values, matches)
            assert found.fit == pytest.approx(legal.fits(values, [found.rule])[0])
            rules = RuleSets(sets, legal, matches[0].direct)
            same = [found.rule, *found.aliases]
            assert legal.fits(values, same).max() >= 0.9 * fits.max() - 1e-12
            assert set(same) & {*matches, *rules.coinciding(matches[0])}
            if fits.max() == 0:
                assert set(same) & {matches[0], *rules.coinciding(matches[0])}
            assert found.rule not in found.aliases


def test_order_of_simplicity() -> None:
    texts = [
        "op1 tens = 4",
        "op2 units = 0",
        "answer tens = 4",
        "op1 ~ 000",
        "op2 ~ 017",
        "op1 = op2",
        "borrow into tens = 1",
        "carry into tens = 0",
        "carry into hundreds = 1",
        "op1 in [0, 100]",
        "op1 in [0, 50]",
        "op2 in [0, 50]",
        "op2 mod 3 = 1",
        "op1 mod 15 = 1",
        "tens of op1 + op2 mod 10 = 7",
        "hundreds of op1 - op2 mod 10 = 0",
        "units of op1, op2 = 9, 9",
        "tens of op1, op2 = 4, 3",
        "op1 ~ ..5",
        "op1 ~ .05",
        "result in {1, 2}",
        "result in {1, 2, 3}",
        "op1, op2 in [0, 30]",
        "op1, op2 in [0, 10]",
        "op1, op2 mod 2 = 0",
    ]
    keys = [simplicity(parse(text)) for text in texts]
    assert keys == sorted(set(keys))

    class Other(Rule):
        def __str__(self) -> str:
            return "another kind"

    assert simplicity(Other()) > keys[-1]
    assert simplicity(parse("op1 ~ 000")) < simplicity(*RULES) < simplicity(parse("op1 in [0, 100]"))
