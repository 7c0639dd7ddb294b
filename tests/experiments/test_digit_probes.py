"""Probes of digits and carries: on the digit adder, whose carry is known, and against plain counting."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from arithscope.experiments.digit_probes import (
    FEWEST,
    DigitProbes,
    digit_probes,
    known_at,
    probed_places,
    variables_of,
)
from arithscope.experiments.whole_answers import WholeAnswers, whole_answers
from arithscope.models.model import Model
from arithscope.pipeline.registry import stage_of
from arithscope.pipeline.store import RunFolder, RunWriter
from arithscope.prompts import Layout, Stratum, carry_into, random_source, sample
from arithscope.results.run import Run, run_layouts
from arithscope.settings import SampleSizes
from arithscope.utils.progress import Silent
from arithscope.verify.verify import Verification
from tests.contexts import context
from tests.families import STRATA, small
from tests.hand_built_digits import (
    CARRY_HEAD,
    CARRYING_LAYER,
    CARRYING_POSITION,
    LAYERS,
    LONG_SUMS,
    SHORT_SUMS,
    SUMMING_LAYER,
    UNITS_HEAD,
    carry_adder,
)
from tests.notes import RecordedNotes
from tests.stats.test_discriminants import plain_scores

CARRY = "carry into tens"
DIFFERENCES = Stratum((10, 99), (10, 99), (10, 89), Layout((1, 0), (1, 0), (1, 0)))
DIGITS = {"digits": 3, "three_chunks": 5, "right_grouped": 5}  # of answers of 100…198 and 11000…11198


def all_right(model: Model, operators: tuple[str, ...]) -> WholeAnswers:
    """Answers as if all were right."""
    found = whole_answers(context(model, operators=operators))
    return replace(found, prompts=found.prompts.assign(correct=True))


def probed(model: Model, answers: WholeAnswers, size: int = 2500, operators: tuple[str, ...] = ("+",)) -> DigitProbes:
    sizes = SampleSizes(50, 32, 8, size)
    return digit_probes(context(model, None, answers, operators=operators, custom_sizes=sizes))


@cache
def of_adder(stratum: Stratum) -> DigitProbes:
    model = carry_adder().at(stratum.every_step()[-1])
    return probed(model, whole_answers(context(model, operators=("+",))))


def accuracies(found: DigitProbes, variable: str) -> pd.Series[float]:
    return found.table[found.table.variable == variable].set_index(["position", "layer"]).value


def knowable(stratum: Stratum, seen: int) -> float:
    """Share of the prompts of whose first `seen` digits the most frequent carry is theirs: no probe can do better."""
    prompts = stratum.prompts("+")
    carries: dict[Any, Counter[int]] = defaultdict(Counter)
    for a, b, carry in zip(prompts.op1, prompts.op2, carry_into(prompts, 1), strict=True):
        carries[f"{a}{b}"[:seen]][int(carry)] += 1
    return sum(max(counts.values()) for counts in carries.values()) / len(prompts)


@pytest.mark.parametrize("stratum", [LONG_SUMS, SHORT_SUMS])
def test_the_carry_of_the_adder_can_be_read_where_it_is(stratum: Stratum) -> None:
    """From where the units of both operands are together (the carry is a threshold of a linear function of these), or the carry
    has been copied to. Before, at best what the digits up to there say about it."""
    value, final = accuracies(of_adder(stratum), CARRY), len(stratum.tokens.answer) - 1
    for layer in range(LAYERS):
        at_op2 = value[CARRYING_POSITION, layer]
        if layer >= CARRYING_LAYER:
            assert at_op2 == 1.0
        elif layer >= UNITS_HEAD[0]:
            assert at_op2 > 0.95
        else:
            assert at_op2 < 0.85  # the units of op2 alone
        for position in ("last", f"answer.{final}"):
            if layer >= CARRY_HEAD[0]:
                assert value[position, layer] == 1.0
        for seen, position in enumerate(("op1.1", "op1.2", "op2.1"), start=1):
            assert value[position, layer] < knowable(stratum, seen) + 0.05
    assert not of_adder(stratum).first.query(f"variable == '{CARRY}'").given.any()


@pytest.mark.parametrize("stratum", [LONG_SUMS, SHORT_SUMS])
def test_the_first_layers_of_the_adder(stratum: Stratum) -> None:
    found, final = of_adder(stratum), f"answer.{len(stratum.tokens.answer) - 1}"
    layer = found.first.set_index(["variable", "position"]).layer
    assert layer[CARRY, CARRYING_POSITION] == UNITS_HEAD[0]
    assert layer[CARRY, "last"] <= CARRY_HEAD[0]  # the distractors may bring a faint trace of it before
    assert layer["answer units", final] in (SUMMING_LAYER, SUMMING_LAYER - 1)
    assert layer["answer units", "op1.1"] == -1
    summary = found.summary()["+"]
    assert summary["carry_into_tens_first_readable"] == f"{CARRYING_POSITION} L{UNITS_HEAD[0]}"
    assert summary["carry_into_tens_best"]["value"] == 1.0
    assert summary["answer_tens_first_readable"] != "nowhere"


def test_permuted_labels_are_at_chance() -> None:
    found = of_adder(LONG_SUMS)
    error = (0.25 / found.table.n.iloc[0]) ** 0.5
    for _, rows in found.first.groupby("variable"):
        assert rows.shuffled.max() < rows.chance.iloc[0] + 5 * error
        assert rows.best.max() > rows.chance.iloc[0] + 10 * error
    assert (found.table.shuffled > 0).any()


@pytest.mark.parametrize("numbers", list(STRATA))
def test_every_digit_is_probed_whatever_token_holds_it(numbers: str) -> None:
    stratum = STRATA[numbers]
    prompts = stratum.prompts("+")
    values = {}
    names = ("units", "tens", "hundreds", "thousands", "ten thousands")
    for i, name in enumerate(names[: DIGITS[numbers]]):
        values[f"answer {name}"] = [int(str(x)[-1 - i]) for x in prompts.answer]
    for i, name in ((1, "tens"), (2, "hundreds")):
        below = 10**i
        values[f"carry into {name}"] = [
            int(a % below + b % below >= below) for a, b in zip(prompts.op1, prompts.op2, strict=True)
        ]
    expected = {name: x for name, x in values.items() if len(set(x)) > 1}
    found = variables_of(prompts, "+", stratum)
    assert {name: x.tolist() for name, x in found.items()} == expected
    model = small("llama", "sdpa", numbers=numbers).at(stratum.every_step()[-1])
    table = probed(model, all_right(model, ("+",)), 400).table
    assert set(table.variable) == set(expected)
    assert list(dict.fromkeys(table.position)) == list(model.positions.named())
    assert len(table) == len(expected) * len(model.positions.names) * model.sizes.layers
    # The token of the last positions is part of the answer; in this layout, the first of two or three.
    assert (
        table[table.position == model.positions.final_name].value.max() > table[table.position == "op1.1"].value.max()
    )


def test_accuracies_are_those_of_plain_passes_and_least_squares() -> None:
    """The states are the library's, and the discriminants of stats/test_discriminants.py; only the first prompts train."""
    model = small("qwen2", "sdpa", numbers="digits").at(LONG_SUMS.at_step(3))
    prompts = sample(LONG_SUMS.prompts("+"), 120, random_source(0, "some"))
    labels, training = [prompts.answer % 10, carry_into(prompts, 1)], 90
    places = [("op1.2", 0), ("op2.2", 1), ("answer.2", 0)]
    right = probed_places(model, prompts, training, labels, places, advance=lambda n: None)
    with torch.no_grad():
        hidden = model.hf_model(input_ids=model.encode(prompts), output_hidden_states=True).hidden_states
    for (position, layer), found in zip(places, right.tolist(), strict=True):
        states = hidden[layer + 1][:, model.positions.named()[position]].double().numpy()
        for own, n in zip(labels, found, strict=True):
            given = plain_scores(states, np.arange(training), own[:training]).argmax(1)
            assert n == (given == own)[training:].sum()


def test_borrows_are_probed_and_operators_are_sampled_alike() -> None:
    model = small("llama", "sdpa", numbers="digits").at(DIFFERENCES.at_step(2))
    found = probed(model, all_right(model, ("+", "-")), 501, operators=("+", "-"))
    assert set(found.table[found.table.operator == "-"].variable) == {"answer units", "answer tens", "borrow into tens"}
    assert set(found.table[found.table.operator == "+"].variable) == {"answer units", "answer tens", "carry into tens"}
    assert set(found.table.n) == {50}  # of 250 prompts of each operator


@pytest.mark.parametrize("numbers", ["digits", "three_chunks"])
def test_what_tokens_determine_is_found_by_looking_at_all_prompts(numbers: str) -> None:
    stratum = STRATA[numbers]
    model = small("llama", "sdpa", numbers=numbers).at(stratum.every_step()[-1])
    prompts = stratum.prompts("+")
    ids, named = model.encode(prompts).tolist(), model.positions.named()
    found, seen = known_at(model, "+"), set()
    for name, values in variables_of(prompts, "+", stratum).items():
        for position, at in named.items():
            for start, flag in (
                (0, found[position, name].determined),
                (named["last"] + 1, found[position, name].given),
            ):
                after: dict[Any, set[int]] = defaultdict(set)
                for row, value in zip(ids, values.tolist(), strict=True):
                    after[tuple(row[start : at + 1])].add(value)
                assert flag == all(len(x) == 1 for x in after.values())
                seen.add((start > 0, flag))
    assert len(seen) == 4


def test_layers_are_first_by_the_rule() -> None:
    """By hand from the table: three quarters of the way from chance to the best where it is not given, and above all permuted
    labels."""
    found = of_adder(LONG_SUMS)
    assert found.first[found.first.given].position.unique().tolist() == ["answer.2"]
    for (variable, position), [row] in (
        (k, x.to_dict("records")) for k, x in found.first.groupby(["variable", "position"])
    ):
        own = found.table[found.table.variable == variable]
        told = found.first[(found.first.variable == variable) & found.first.given].position
        enough = 0.25 * row["chance"] + 0.75 * own[~own.position.isin(told)].value.max()
        here = own[own.position == position].sort_values("layer")
        passed = [x.layer for x in here.itertuples() if x.value >= enough and x.value > own.shuffled.max()]
        assert row["layer"] == (passed[0] if passed else -1)
        assert (row["best"], row["shuffled"]) == (here.value.max(), here.shuffled.max())
    assert {-1, 0, UNITS_HEAD[0], CARRY_HEAD[0]} <= set(found.first.layer)


def test_numbers_do_not_depend_on_batches_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = carry_adder().at(LONG_SUMS.at_step(3))
    answers = whole_answers(context(model, operators=("+",)))
    before = probed(model, answers, 300)
    for module in ("experiments.common.samples", "models.engine.sweep"):
        monkeypatch.setattr(f"arithscope.{module}.rows_that_fit", lambda *args, **options: 11)
    monkeypatch.setattr("arithscope.experiments.digit_probes.storage", lambda model: 1)
    after = probed(model, answers, 300)
    pd.testing.assert_frame_equal(before.table, after.table)
    pd.testing.assert_frame_equal(before.first, after.first)
    monkeypatch.setattr("arithscope.experiments.digit_probes.LAYERS_IN_UNIT", 2)
    keys = ["variable", "position", "layer"]
    units = probed(model, answers, 300).table.sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(before.table.sort_values(keys, ignore_index=True), units)


def test_few_correct_prompts_are_left_out_with_a_note() -> None:
    model = small("llama", "sdpa", numbers="digits").at(LONG_SUMS.at_step(3))
    answers, notes = all_right(model, ("+",)), RecordedNotes()
    correct = np.arange(len(answers.prompts)) < FEWEST - 1
    few = replace(answers, prompts=answers.prompts.assign(correct=correct))
    found = digit_probes(context(model, None, few, operators=("+",), progress=notes))
    assert (len(found.table), len(found.first), found.summary()) == (0, 0, {})
    assert notes.notes == ["digit_probes: + is left out, as it has 49 of the 50 prompts it needs"]


def test_a_run_of_a_layout_has_it_and_verifies(tmp_path: Path) -> None:
    runs = run_layouts("tiny-digits", tmp_path / "run", "40-69,30-59", stages=["digit_probes"], operators=("+",))
    assert set(runs) == {"2-2-2", "2-2-3"}
    run = runs["2-2-3"]
    assert set(run.stages) == {"whole_answers", "digit_probes"}
    for seed in range(2):
        verdicts = {v.about: v for v in Verification(run, seed).check_stages(Silent())}
        assert all(v.agrees for v in verdicts.values()), verdicts
        assert "rows of table" in verdicts["digit_probes"].text
    folder = RunFolder(run.path)
    stored = folder.read(DigitProbes)
    keys = {name: folder.key(name) or "" for name in run.stages}
    for changed in (
        replace(stored, table=stored.table.assign(value=stored.table.value - 0.1)),
        replace(stored, table=stored.table.assign(shuffled=stored.table.shuffled + 0.1)),
        replace(stored, first=stored.first.assign(layer=1 - stored.first.layer)),
    ):
        RunWriter(run.path, keys).write("digit_probes", changed, 1.0)
        assert not Verification(Run(run.path), 0).check_stage(stage_of(DigitProbes)).agrees
