"""A digit adder whose carry is known: exchanging residual streams must find it where it is, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arithscope.experiments.common.exchange import exchanged_answers
from arithscope.models.hooks import EMBEDDINGS, capturing
from arithscope.models.model import Model
from arithscope.prompts import (
    Ints,
    Prompts,
    Stratum,
    carry_counterfactuals,
    carry_into,
    changed_digits,
    digit_counterfactuals,
    random_source,
    same_carry_controls,
    sample,
)
from tests.hand_built_digits import (
    ANSWER_UNITS_HEADS,
    CARRY,
    CARRY_HEAD,
    CARRYING_LAYER,
    CARRYING_POSITION,
    LAYERS,
    LONG_SUMS,
    SHORT_SUMS,
    UNITS_HEAD,
    carry_adder,
    holding,
)

EVERY_STEP = [s.at_step(step + 1) for s in (LONG_SUMS, SHORT_SUMS) for step in range(s.steps)]
TENS_STEPS = [LONG_SUMS.at_step(2), SHORT_SUMS.at_step(1)]
UNITS_STEPS = [LONG_SUMS.at_step(3), SHORT_SUMS.at_step(2)]
EVERY_LAYER = (EMBEDDINGS, *range(LAYERS))


def by_name(stratum: Stratum) -> str:
    return f"{stratum.layout_name}.{stratum.step}"


def answers(model: Model, prompts: Prompts, sources: Prompts) -> dict[tuple[str, int], Ints]:
    """Answers after exchanging every position after every layer."""
    found = {}
    for position in model.positions.named():
        rows = exchanged_answers(model, prompts, sources, position, EVERY_LAYER, advance=lambda n: None)
        found |= {(position, layer): row for layer, row in zip(EVERY_LAYER, rows, strict=True)}
    return found


@pytest.mark.parametrize("stratum", EVERY_STEP, ids=by_name)
def test_it_answers_every_prompt(stratum: Stratum) -> None:
    model, prompts = carry_adder().at(stratum), stratum.prompts("+")
    right = np.empty(len(prompts))
    for block in model.engine.sweep(model, prompts):
        probability = block.logits.softmax(-1).gather(1, model.answers(prompts[block.rows])[:, None])[:, 0]
        assert torch.equal(block.logits.argmax(-1), model.answers(prompts[block.rows]))
        right[block.rows] = probability
    assert right.min() > 0.8
    assert right.max() < 0.97


def test_some_answers() -> None:
    """The first digit is the hundreds or the tens; the second is what follows."""
    for a, b, stratum in ((45, 78, LONG_SUMS), (45, 38, SHORT_SUMS), (99, 99, LONG_SUMS), (10, 10, SHORT_SUMS)):
        digits = []
        for step in range(stratum.steps):
            model = carry_adder().at(stratum.at_step(step + 1))
            [token] = model.logits(model.encode(Prompts([a], [0], [b]))).argmax(-1).tolist()
            digits.append(model.tokenizer.convert_ids_to_tokens(token))
        assert "".join(digits) == str(a + b)


@pytest.mark.parametrize("stratum", EVERY_STEP, ids=by_name)
def test_the_carry_is_where_it_is_documented(stratum: Stratum) -> None:
    """Its block of the residual stream holds the carry at op2.2 once it has arisen, and at the answer once it is copied."""
    model, prompts = carry_adder().at(stratum), sample(stratum.prompts("+"), 200, random_source(0, "where"))
    with torch.no_grad(), capturing(model, residual=EVERY_LAYER) as seen:
        model.logits(model.encode(prompts))
    carry = torch.from_numpy(carry_into(prompts, 1))
    for name, at in model.positions.named().items():
        for layer in EVERY_LAYER:
            residual = seen.residual[layer][:, at]
            arisen = name == CARRYING_POSITION and layer >= CARRYING_LAYER
            copied = name in ("last", "answer.1", "answer.2") and layer >= CARRY_HEAD[0]
            assert holding(CARRY, residual).tolist() == [arisen or copied] * len(prompts)
            if arisen or copied:
                assert torch.equal(residual[:, CARRY].argmax(-1), carry)


def expected(stratum: Stratum, prompts: Prompts, sources: Prompts, position: str, layer: int, final: str) -> Ints:
    """The tens that the model must say after an exchange, by what it holds there."""
    own, other = carry_into(prompts, 1), carry_into(sources, 1)
    units1, units2 = prompts.op1 % 10, prompts.op2 % 10
    carry = own
    if position == "op1.2" and layer < UNITS_HEAD[0]:  # the units of op1, before they are copied to op2.2
        carry = (sources.op1 % 10 + units2 >= 10).astype(int)
    if position == "op2.2" and layer < UNITS_HEAD[0]:  # the units of op2 alone
        carry = (units1 + sources.op2 % 10 >= 10).astype(int)
    elif position == "op2.2" and layer < CARRY_HEAD[0]:  # both units, then also the carry
        carry = other
    if position == final and layer >= CARRY_HEAD[0]:
        carry = other
    return stratum.asked.of(prompts.answer + 10 * (carry - own))


@pytest.mark.parametrize("stratum", TENS_STEPS, ids=by_name)
def test_carry_counterfactuals_move_the_tens_exactly_where_the_carry_is(stratum: Stratum) -> None:
    model, pool = carry_adder().at(stratum), sample(stratum.prompts("+"), 120, random_source(0, "carry"))
    sources, found = carry_counterfactuals(pool, stratum, random_source(1, "carry"))
    prompts, final = pool[found], model.positions.final_name
    assert len(prompts) > 80
    assert final == {2: "answer.1", 1: "last"}[stratum.step]
    single = changed_digits(prompts, sources) == 1
    moves = {}
    for (position, layer), got in answers(model, prompts, sources).items():
        assert got.tolist() == expected(stratum, prompts, sources, position, layer, final).tolist(), (position, layer)
        moved = got != prompts.result
        moves[position, layer] = moved.mean()
        assert (got[moved] == sources.result[moved]).all()
    always = {("op2.2", layer) for layer in range(UNITS_HEAD[0], CARRY_HEAD[0])}
    always |= {(final, layer) for layer in range(CARRY_HEAD[0], LAYERS)}
    sometimes = {(position, layer) for position in ("op1.2", "op2.2") for layer in range(EMBEDDINGS, UNITS_HEAD[0])}
    assert {place for place, share in moves.items() if share == 1} == always
    assert {place for place, share in moves.items() if 0 < share < 1} == sometimes
    # Where one digit was changed, one of the two operands has it.
    some = answers(model, prompts[single], sources[single])
    for layer in range(EMBEDDINGS, UNITS_HEAD[0]):
        moved = [some[position, layer] != prompts[single].result for position in ("op1.2", "op2.2")]
        assert (moved[0] ^ moved[1]).all()


@pytest.mark.parametrize("stratum", TENS_STEPS, ids=by_name)
def test_controls_with_the_same_carry_move_nothing(stratum: Stratum) -> None:
    model, pool = carry_adder().at(stratum), sample(stratum.prompts("+"), 120, random_source(0, "carry"))
    sources, found = carry_counterfactuals(pool, stratum, random_source(1, "carry"))
    controls, controlled = same_carry_controls(pool[found], sources, stratum, random_source(2, "carry"))
    prompts = pool[found][controlled]
    # Of two changed digits, one alone may well change the carry.
    single = changed_digits(prompts, controls) == 1
    assert single.mean() > 0.9
    for place, got in answers(model, prompts[single], controls[single]).items():
        assert got.tolist() == prompts[single].result.tolist(), place


@pytest.mark.parametrize("stratum", UNITS_STEPS, ids=by_name)
def test_digit_counterfactuals_move_the_units_exactly_where_the_digit_is(stratum: Stratum) -> None:
    model, pool = carry_adder().at(stratum), sample(stratum.prompts("+"), 80, random_source(0, "digit"))
    sources, found = digit_counterfactuals(pool, stratum, random_source(1, "digit"))
    prompts = pool[found]
    assert len(prompts) > 60
    copied, changed = ANSWER_UNITS_HEADS[0][0], np.where(prompts.op1 != sources.op1, "op1.2", "op2.2")
    for (position, layer), got in answers(model, prompts, sources).items():
        there = (changed == position) & (layer < copied)
        if position == model.positions.final_name and layer >= copied:
            there = np.ones(len(prompts), dtype=bool)
        assert got.tolist() == np.where(there, sources.result, prompts.result).tolist(), (position, layer)
