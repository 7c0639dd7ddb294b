"""Training data: seen pairs only, the given noise and shares, and texts as the tokenizer reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arithscope.models.tokenization import PromptEncoder
from arithscope.prompts import OPERATORS, Prompts, Template, legal_prompts
from arithscope.training.batches import IGNORED, Batches, Writer
from arithscope.training.pairs import digits, longest_chain, split_pairs
from arithscope.training.recipe import DataRecipe, ModelRecipe, Recipe, ScheduleRecipe

CPU = torch.device("cpu")


def recipe(data: DataRecipe, batch_size: int = 64) -> Recipe:
    schedule = ScheduleRecipe(steps=10, batch_size=batch_size, learning_rate=1e-3, warmup=1, weight_decay=0.0)
    return Recipe("toy", 5, ModelRecipe("llama", {}), data, schedule)


def texts(writer: Writer, tokens: torch.Tensor) -> list[str]:
    """Rows as texts without spaces and padding."""
    return ["".join(writer.tokenizer.convert_ids_to_tokens(row)).replace("<pad>", "") for row in tokens.tolist()]


def test_batches_have_seen_pairs_only_and_the_given_noise() -> None:
    data = DataRecipe({"+": 0.5, "/": 0.75}, 0.2, 3, numbers=20, max_operand=9)
    writer, pairs = Writer(data), split_pairs(data, 5)
    batches, encoder = Batches(recipe(data), writer, CPU), PromptEncoder(writer.tokenizer, Template())
    assert {o: len(seen) for o, (seen, _) in pairs.items()} == {"+": 50, "/": round(0.75 * 90)}
    answers = {}
    for operator, (seen, unseen) in pairs.items():
        known, never = ({tuple(r) for r in encoder.encode(p).tolist()} for p in (seen, unseen))
        assert not known & never
        assert len(known) + len(never) == len(legal_prompts(operator, 9, 20))
        answers |= dict(zip(map(tuple, encoder.encode(seen).tolist()), seen.answer.tolist(), strict=True))
    off = []
    for step in range(200):
        tokens, targets, penalised = batches[step]
        assert tokens.shape == (64, 6)
        assert (targets[:, [0, 1, 2, 3, 5]] == IGNORED).all()
        assert torch.equal(penalised.nonzero()[:, 1], torch.tensor([3, 4]).repeat(64))  # op2 and =
        assert torch.equal(tokens[:, 5], targets[:, 4])
        off += [t - answers[tuple(x)] for x, t in zip(tokens[:, :5].tolist(), targets[:, 4].tolist(), strict=True)]
    assert max(map(abs, off)) == 3
    noisy = sum(o != 0 for o in off) / len(off)
    assert 0.12 < noisy < 0.2  # a fifth, minus those changed by 0 or clipped back
    assert torch.equal(batches[7].tokens, batches[7].tokens)
    assert not torch.equal(batches[8].tokens, batches[7].tokens)


def test_tasks_take_their_shares_of_a_batch() -> None:
    data = DataRecipe({"+": 0.5, "-": 0.5}, 0.0, 0, 100, 30, tasks={"parity": 0.25, "count": 0.1})
    writer = Writer(data)
    batch = Batches(recipe(data, batch_size=200), writer, CPU)[0]
    first = Counter(
        text.removeprefix("<bos>").lstrip("0123456789")[:1].replace("c", "count").replace("p", "parity")
        for text in texts(writer, batch.tokens)
    )
    assert first == {"+": 65, "-": 65, "parity": 50, "count": 20}
    assert batch.penalised.any(1).sum() == 130  # arithmetic alone is penalised


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=1, max_size=20), st.sampled_from("+*"))
def test_arithmetic_in_digits_is_written_as_it_is_read(operands: list[tuple[int, int]], operator: str) -> None:
    writer = Writer(DataRecipe({operator: 0.5}, 0.0, 0, 10**6, 999, digits=True))
    op1, op2 = zip(*operands, strict=True)
    prompts = Prompts(op1, [OPERATORS.index(operator)] * len(operands), op2)
    batch = writer.prompts(prompts)
    for a, b, row, targets, penalised in zip(op1, op2, *(x.tolist() for x in batch), strict=True):
        answer = a + b if operator == "+" else a * b
        text = f"{a}{operator}{b}={answer}"
        read = writer.tokenizer(text, add_special_tokens=False)["input_ids"]
        end, pad = writer.tokenizer.eos_token_id, writer.tokenizer.pad_token_id
        written = [writer.tokenizer.bos_token_id, *read, end]
        assert row == written + [pad] * (len(row) - len(written))
        wanted = [t for t in targets if t != IGNORED]
        assert wanted == [*map(int, str(answer)), end]
        at = [i for i, t in enumerate(targets) if t != IGNORED]
        assert at == list(range(text.index("=") + 1, len(text) + 1))  # from the token "=" on, after BOS
        assert [i for i, marked in enumerate(penalised) if marked] == [at[0] - 1, *at]


def test_whole_numbers_are_encoded_as_prompts_are() -> None:
    writer = Writer(DataRecipe({"-": 0.5}, 0.0, 0, 1000, 300, tasks={"spell": 0.1}))
    prompts = legal_prompts("-", 40, 1000)
    batch = writer.prompts(prompts)
    encoder = PromptEncoder(writer.tokenizer, Template())
    assert encoder.limit == 1000
    assert torch.equal(batch.tokens[:, :5], encoder.encode(prompts))
    assert torch.equal(batch.targets[:, 4], encoder.answers(prompts))


def test_every_length_is_drawn_equally_often() -> None:
    data = DataRecipe({"+": [1.0, 0.5, 0.02]}, 0.0, 0, 10**4, 999, digits=True)
    writer = Writer(data)
    tokens = torch.cat([Batches(recipe(data, 450), writer, CPU)[step].tokens for step in range(10)])
    lengths: Counter[tuple[int, int]] = Counter()
    for text in texts(writer, tokens):
        a, rest = text.removeprefix("<bos>").split("+")
        lengths[len(a), len(rest.split("=")[0])] += 1
    assert set(lengths) == {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
    assert all(n == pytest.approx(500, abs=100) for n in lengths.values())


def test_shares_can_differ_by_length() -> None:
    data = DataRecipe({"*": [1.0, 0.5, 0.0]}, 0.0, 0, 10**6, 120, digits=True)
    seen, unseen = split_pairs(data, 1)["*"]
    longest = {part: np.maximum(prompts.op1, prompts.op2) for part, prompts in (("seen", seen), ("unseen", unseen))}
    assert (longest["seen"] < 10).sum() == 100
    assert (longest["unseen"] < 10).sum() == 0
    assert (longest["seen"] >= 10).sum() == (100**2 - 10**2) / 2
    assert longest["seen"].max() == 99
    assert len(seen) + len(unseen) == 121**2


def test_few_chains_are_seen() -> None:
    data = DataRecipe({o: [1.0, 0.5, 0.1] for o in "+-*"}, 0.0, 0, 10**6, 300, chains=0.2, digits=True)
    plain = split_pairs(replace(data, chains=1.0), 1)
    for operator, (seen, unseen) in split_pairs(data, 1).items():
        assert len(seen) == len(plain[operator][0])  # others take their place
        chains = [longest_chain(operator, prompts) > 1 for prompts in (seen, unseen, plain[operator][0])]
        share = chains[0].sum() / (chains[0].sum() + chains[1].sum())
        if operator == "*":
            assert seen.op1.tolist() == plain[operator][0].op1.tolist()
        else:
            assert 0 < share <= 0.2
            assert chains[0].sum() == pytest.approx(0.2 * chains[2].sum(), rel=0.15)


def test_results_above_the_largest_are_not_seen() -> None:
    data = DataRecipe(dict.fromkeys("+-*", 0.3), 0.0, 0, 1000, 30, largest={"+": 40, "-": 20})
    plain = split_pairs(replace(data, largest={}), 1)
    for operator, (seen, unseen) in split_pairs(data, 1).items():
        assert len(seen) == len(plain[operator][0])  # others take their place
        assert len(seen) + len(unseen) == len(legal_prompts(operator, 30, 1000))
        if operator == "*":
            assert seen.op1.tolist() == plain[operator][0].op1.tolist()
        else:
            assert seen.answer.max() == data.largest[operator] < plain[operator][0].answer.max()


def test_chains_by_hand() -> None:
    minus, plus = [1] * 4, [0] * 4
    assert longest_chain("-", Prompts([100, 105, 52, 300], minus, [1, 91, 17, 100])).tolist() == [2, 1, 1, 0]
    assert longest_chain("+", Prompts([99, 58, 57, 12], plus, [1, 67, 48, 34])).tolist() == [2, 1, 2, 0]


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_digits_are_counted(numbers: list[int]) -> None:
    assert digits(np.array(numbers)).tolist() == [len(str(n)) for n in numbers]
