"""Whole answers against plain passes, one prompt at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from arithscope.experiments.means import means
from arithscope.experiments.whole_answers import WholeAnswers, measure_answers, whole_answers
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import untrained_model
from arithscope.prompts import OPERATORS, Layout, Stratum, Template, sample
from arithscope.prompts.samples import random_source
from tests.contexts import context
from tests.families import CONFIGS, FAMILY_AND_ATTENTION, STRATA, TOKENIZERS, small, small_at
from tests.hand_built_digits import LONG_SUMS, SHORT_SUMS, carry_adder
from tests.test_carries import columns, longest_chain

BOTH = Stratum((180, 209), (1, 9), (100, 999), Layout((2, 1, 0), (0,), (2, 1, 0)))  # sums, differences and products
FEW = Stratum((10, 19), (85, 95), (100, 114), Layout((1, 0), (1, 0), (2, 1, 0)))


def studied(model: Model, stratum: Stratum, operators: tuple[str, ...] = ("+",)) -> tuple[Model, WholeAnswers]:
    asked = model.at(stratum.every_step()[-1])
    return asked, whole_answers(context(asked, operators=operators))


@pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)
def test_log_probabilities_add_up_to_those_of_a_plain_pass(family: str, attention: str) -> None:
    """The oracle tokenizes the whole text and reads the probability of each token of the answer off one pass."""
    model, found = studied(small(family, attention, numbers="digits"), FEW)
    rows = np.arange(0, len(found.prompts), 17)
    for row in found.prompts.iloc[rows].to_dict("records"):
        text = f"{row['op1']}{row['operator']}{row['op2']}={row['answer']}"
        ids = torch.tensor([[model.tokenizer.bos_token_id, *model.tokenizer(text, add_special_tokens=False).input_ids]])
        with torch.no_grad():
            log_p = model.hf_model(ids).logits[0].float().log_softmax(-1)
        digits = len(str(row["answer"]))
        each = [float(log_p[-digits - 1 + i, int(ids[0, -digits + i])]) for i in range(digits)]
        assert row["log_p"] == pytest.approx(sum(each), abs=1e-4)
        predicted = [int(log_p[-digits - 1 + i].argmax()) for i in range(digits)]
        assert row["correct"] == (predicted == ids[0, -digits:].tolist())


@pytest.mark.parametrize("numbers", list(STRATA))
def test_each_step_has_the_means_and_answers_that_it_has_alone(numbers: str) -> None:
    _, found = studied(small("llama", "sdpa", numbers=numbers), STRATA[numbers])
    for step in range(1, found.stratum.steps + 1):
        alone, shared = means(context(small_at("llama", "sdpa", numbers, step))), found.means_at(step)
        for name in ("heads", "neurons", "p_answer"):
            np.testing.assert_allclose(getattr(shared, name), getattr(alone, name), atol=2e-5)
        assert (shared.predicted == alone.predicted).mean() > 0.999  # rounding may swap two that are close
        assert (shared.operators, shared.studied) == (alone.operators, alone.studied)


def test_free_running_is_plain_greedy_decoding() -> None:
    model, found = studied(small("qwen2", "sdpa", numbers="digits"), FEW)
    for i, row in enumerate(found.prompts.to_dict("records")):
        if i % 23:
            continue
        ids = model.tokenizer(f"{row['op1']}+{row['op2']}=", add_special_tokens=False).input_ids
        ids = [model.tokenizer.bos_token_id, *ids]
        for _ in range(3):
            with torch.no_grad():
                ids.append(int(model.hf_model(torch.tensor([ids])).logits[0, -1].argmax()))
        first, *later = model.tokenizer.convert_ids_to_tokens(ids[-3:])
        # Answers of this stratum begin with 1; another first token is none of theirs.
        values = [1 if first == "1" else -1, *(int(token) if token.isdecimal() else -1 for token in later)]
        assert row["free"] == (-1 if -1 in values else int("".join(map(str, values))))
        assert row["agrees"] == (values == found.predicted[:, i].tolist())


@pytest.mark.parametrize("stratum", [LONG_SUMS, SHORT_SUMS])
def test_the_digit_adder_is_always_right(stratum: Stratum) -> None:
    _, found = studied(carry_adder(), stratum)
    adds = found.prompts[found.prompts.operator == "+"]
    assert adds.correct.all()
    assert adds.agrees.all()
    assert (adds.free == adds.answer).all()
    assert found.right()[:, adds.index].all()
    summary: dict[str, Any] = found.summary()["+"]
    assert [summary[f"accuracy_{step + 1}"]["value"] for step in range(stratum.steps)] == [1.0] * stratum.steps


def test_measured_answers_are_those_of_the_stage() -> None:
    model, found = studied(small("llama", "sdpa", numbers="digits"), FEW)
    some = sample(FEW.prompts("+"), 20, random_source(0, "some")).asking(model.encoder.asked)
    right = measure_answers(model, some)
    by_operands = {(a, b): i for i, (a, b) in enumerate(zip(found.prompts.op1, found.prompts.op2, strict=True))}
    rows = [by_operands[pair] for pair in zip(some.op1.tolist(), some.op2.tolist(), strict=True)]
    assert set(found.prompts.operator) == {OPERATORS[0]}
    np.testing.assert_array_equal(right, found.right()[:, rows])


def test_accuracy_by_chain_is_that_of_plain_counting() -> None:
    """The oracle does schoolbook arithmetic, prompt by prompt. Products have no chains."""
    _, found = studied(small("llama", "sdpa", numbers="digits"), BOTH, ("+", "-", "*"))
    right = {"accuracy": found.right().all(0), **{f"accuracy_{i}": own for i, own in enumerate(found.right(), 1)}}
    assert set(found.prompts.operator) > set("+-*")
    counted: dict[tuple[str, int, str], list[bool]] = {}
    for i, row in found.prompts.iterrows():
        if row.operator in "+-":
            chain = longest_chain(columns(row.op1, row.operator, row.op2))
            for measure, own in right.items():
                counted.setdefault((row.operator, chain, measure), []).append(bool(own[i]))
    keys = ["operator", "chain", "measure"]
    rows = found.chains.set_index(keys)
    assert set(rows.index) == set(counted)
    assert {chain for _, chain, _ in counted} == {0, 1, 2}
    assert 0 < rows.value.max() < 1
    for key, values in counted.items():
        assert rows.loc[key, "value"] == pytest.approx(sum(values) / len(values))
        assert rows.loc[key, "n"] == len(values)
    summary = found.summary()
    assert [name for name in summary["-"] if "chain" in name] == [f"accuracy_chain_{n}" for n in range(3)]
    assert summary["+"]["accuracy_chain_1"]["value"] == rows.loc[("+", 1, "accuracy"), "value"]
    assert not any("chain" in name for o in ("*", "mean") for name in summary[o])


def test_without_sums_and_differences_there_are_no_chains() -> None:
    few = Stratum((10, 19), (2, 9), (20, 99), Layout((1, 0), (0,), (1, 0)))
    _, found = studied(small("llama", "sdpa", numbers="digits"), few, ("*",))
    assert len(found.chains) == 0
    assert list(found.chains) == found.columns("chains")


def test_tokens_that_only_the_model_has_are_no_digits() -> None:
    """Embeddings are often padded beyond the tokenizer's vocabulary, and a model may write any of them."""
    tokenizer = TOKENIZERS["digits"]()
    hf_model: Any = untrained_model("llama", CONFIGS["llama"], tokenizer, seed=1)
    hf_model.resize_token_embeddings(len(tokenizer) + 500)
    model = Model(hf_model, tokenizer, Identity("padded", "", "padded", "digits"), Template())
    _, found = studied(model, FEW)
    assert (found.prompts.free == -1).mean() > 0.9  # most of what it writes is no number
    assert found.prompts.stops.dtype == bool
