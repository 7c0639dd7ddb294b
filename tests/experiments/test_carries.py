"""The stage `carries` must find the carry of the hand-built digit adder where it is, and nowhere else."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from arithscope.experiments.carries import CARRY, DIGIT, EVALUATION, SAME_CARRY, Carries, _Known, carries, layer_span
from arithscope.experiments.localize import MLP
from arithscope.experiments.whole_answers import whole_answers
from arithscope.models.hooks import EMBEDDINGS
from arithscope.prompts import Layout, Prompts, Stratum
from tests.contexts import context
from tests.hand_built_digits import (
    CARRY_HEAD,
    CARRYING_LAYER,
    CARRYING_POSITION,
    LAYERS,
    LONG_SUMS,
    SHORT_SUMS,
    UNITS_HEAD,
    carry_adder,
)

TENS = {LONG_SUMS: (2, "answer.1"), SHORT_SUMS: (1, "last")}  # the step that asks for them, and where


@cache
def found(stratum: Stratum) -> Carries:
    model = carry_adder().at(stratum.every_step()[-1])
    ctx = context(model, operators=("+",))
    ctx.results.add(whole_answers(ctx))
    return carries(ctx)


@pytest.mark.parametrize("stratum", [LONG_SUMS, SHORT_SUMS])
def test_the_carry_is_found_where_it_is_and_nowhere_else(stratum: Stratum) -> None:
    """Until the units head has copied op1's units, the carry is where the digit that differs stands. The MLP that makes it does
    so at op2.2, where it stays until the carry head has copied it to where the tens are predicted."""
    step, answering = TENS[stratum]
    rows = found(stratum).exchange
    rows = rows[(rows.sources == CARRY) & (rows["sample"] == EVALUATION)]
    assert set(rows.step) == {step}  # no carry goes into the units, and the hundreds have no other token
    follows = rows.set_index(["position", "layer"]).value
    units = follows["op1.2"] + follows[CARRYING_POSITION]
    for layer in range(EMBEDDINGS, LAYERS):
        copied, moved = layer >= UNITS_HEAD[0], layer >= CARRY_HEAD[0]
        expected = dict.fromkeys(set(rows.position), 0.0)
        expected[answering if moved else CARRYING_POSITION] = 1.0
        for position, share in expected.items():
            if not copied and position in ("op1.2", CARRYING_POSITION):
                assert units[layer] == 1.0
            else:
                assert follows[position, layer] == share, (position, layer)
    assert UNITS_HEAD[0] < CARRYING_LAYER < CARRY_HEAD[0]


@pytest.mark.parametrize("stratum", [LONG_SUMS, SHORT_SUMS])
def test_controls_move_nothing(stratum: Stratum) -> None:
    rows = found(stratum).exchange
    rows = rows[rows.sources == SAME_CARRY]
    assert len(rows)
    assert (rows.value == 0).all()


@pytest.mark.parametrize("stratum", [LONG_SUMS, SHORT_SUMS])
def test_the_path_of_the_carry(stratum: Stratum) -> None:
    step, answering = TENS[stratum]
    *_, held, copied = found(stratum).path("+", step, CARRY)
    assert copied == (answering, CARRY_HEAD[0], LAYERS - 1)
    assert (held[0], held[2]) == (CARRYING_POSITION, CARRY_HEAD[0] - 1)
    assert held[1] <= CARRYING_LAYER
    [*_, (position, _, last)] = found(stratum).path("+", step, DIGIT)
    assert (position, last) == (answering, LAYERS - 1)


@pytest.mark.parametrize("stratum", [LONG_SUMS, SHORT_SUMS])
def test_the_components_of_the_carry(stratum: Stratum) -> None:
    """Patching moves the answer at the MLP that makes the carry, at the heads that bring it and its digits, and after them."""
    step, answering = TENS[stratum]
    rows = found(stratum).components
    rows = rows[(rows.measure == "log_ratio") & (rows.step == step)]
    effect = rows.set_index(["position", "layer", "head"]).value
    assert effect[CARRYING_POSITION, CARRYING_LAYER, MLP] > 0.9 * effect.max()
    assert effect[answering, *CARRY_HEAD] > 0.9 * effect.max()
    matters = {(CARRYING_POSITION, *UNITS_HEAD), (answering, *CARRY_HEAD), (CARRYING_POSITION, CARRYING_LAYER, MLP)}
    others = effect[
        [key not in matters and not (key[0] == answering and key[1] > CARRY_HEAD[0]) for key in effect.index]
    ]
    assert others.abs().max() < 0.05 * effect.max()


def test_layers_in_words() -> None:
    assert layer_span(EMBEDDINGS, EMBEDDINGS) == "embeddings"
    assert layer_span(EMBEDDINGS, 1) == "embeddings–L1"
    assert (layer_span(2, 2), layer_span(0, 3)) == ("L2", "L0–L3")


def test_counterfactuals_beside_the_grid_are_not_taken_for_right() -> None:
    """Of three-digit operands the grid has a sample, and a counterfactual may have any."""
    stratum = Stratum((100, 999), (100, 999), (100, 999), Layout((2, 1, 0), (2, 1, 0), (2, 1, 0)))
    op1, op2 = stratum.sides
    beside = np.setdiff1d(np.arange(100, 999), op1)[0]
    numbers = np.array([op1[0], op1[1], beside]), np.zeros(3, dtype=np.int64), np.array([op2[0], op2[1], op2[0]])
    prompts = Prompts(*numbers)
    assert _Known(prompts[:1], stratum).includes(prompts).tolist() == [True, False, False]
