"""Numbers of several tokens: which strata a tokenizer gives, and what their encoders make of prompts."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.models.engine.full_pass import FullPass
from arithscope.models.engine.interface import REPLAY, Engine
from arithscope.models.layouts import FEWEST_PROMPTS, find_strata, stratum_names
from arithscope.models.model import Identity, Model
from arithscope.models.tokenization import PromptEncoder
from arithscope.models.tokenizer_reader import digits_of
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import OPERATORS, Layout, Operands, Prompts, Stratum, Template, operand_grid, whole_numbers
from tests import tokenizers_for_tests as made
from tests.families import CONFIGS

PLAIN = Template()
SPACED = Template("{op1} {operator} {op2} = ", prefix="1 + 2 = 3\n")
FEW_SHOT = Template(prefix="12+34=46\n7-5=2\n")
SPACE_BEFORE_ANSWER = Template("{op1}{operator}{op2}= ")
DIGITS = made.digit_splitting()
LEFT, RIGHT = made.three_chunks(), made.right_grouped()
PAIRS = made.byte_level(100)
PIECES = made.sentence_piece()
WHOLE = number_tokenizer(1000)

TWO: Operands = ((10, 99), (10, 99))
THREE: Operands = ((100, 999), (100, 999))
FOUR: Operands = ((1000, 9999), (1000, 9999))


class Case(NamedTuple):
    tokenizer: Any
    template: Template
    operators: str
    operands: Operands
    op1: tuple[int, ...]
    op2: tuple[int, ...]
    answers: dict[tuple[int, int], tuple[int, ...]]  # range of answers: lowest digit of each token


# Lowest digits by hand, for example: 100…198 in single digits are hundreds, tens and units: 2, 1, 0.
OF_DIGITS = {(0, 9): (0,), (10, 99): (1, 0), (100, 198): (2, 1, 0)}
CASES = {
    "digits": Case(DIGITS, PLAIN, "+-", TWO, (1, 0), (1, 0), OF_DIGITS),
    "digits, spaces": Case(DIGITS, SPACED, "+-", TWO, (1, 0), (1, 0), OF_DIGITS),
    "digits, few-shot": Case(DIGITS, FEW_SHOT, "+-", TWO, (1, 0), (1, 0), OF_DIGITS),
    # 10/9 = 1 is the smallest quotient. At least 30 of them have one digit.
    "digits, quotients": Case(DIGITS, PLAIN, "/", ((10, 99), (1, 9)), (1, 0), (0,), {(1, 9): (0,), (10, 99): (1, 0)}),
    # Sums of 20…99 and of 100…198; without −, none has one digit.
    "pieces": Case(PIECES, PLAIN, "+", TWO, (1, 0), (1, 0), {(20, 99): (1, 0), (100, 198): (2, 1, 0)}),
    "pieces, spaces": Case(PIECES, SPACED, "+", TWO, (1, 0), (1, 0), {(20, 99): (1, 0), (100, 198): (2, 1, 0)}),
    "pieces, space before the answer": Case(PIECES, SPACE_BEFORE_ANSWER, "+-", TWO, (1, 0), (1, 0), OF_DIGITS),
    # 1001 is 100, 1 and 2998 is 299, 8.
    "left, sums": Case(LEFT, PLAIN, "+", ((1000, 1999), (1, 999)), (1, 0), (0,), {(1001, 2998): (1, 0)}),
    # 10000 is 100, 00 and 100000 is 100, 000: as many tokens, but other digits.
    "left, products": Case(
        LEFT, FEW_SHOT, "*", THREE, (0,), (0,), {(10_000, 99_999): (2, 0), (100_000, 998_001): (3, 0)}
    ),
    "left, long": Case(LEFT, SPACED, "+", FOUR, (1, 0), (1, 0), {(2000, 9999): (1, 0), (10_000, 19_998): (2, 0)}),
    # 10000 is 10, 000 and 998001 is 998, 001: thousands and the rest.
    "right, products": Case(RIGHT, PLAIN, "*", THREE, (0,), (0,), {(10_000, 998_001): (3, 0)}),
    "right, long": Case(RIGHT, SPACED, "+-", FOUR, (3, 0), (3, 0), {(0, 999): (0,), (1000, 19_998): (3, 0)}),
    # Pairs of digits are merged, the smaller ones first: 109 is 10, 9; 110 is 1, 10, since 10 comes before 11; 111 is 11, 1.
    "irregular": Case(
        PAIRS, PLAIN, "+", TWO, (0,), (0,), {(20, 99): (0,), (100, 109): (1, 0), (110, 110): (2, 0), (111, 198): (1, 0)}
    ),
    # A space belongs to the digit after it, which then does not merge before the other two have: " 1", 98; but " 10", 9.
    "irregular, spaces": Case(
        PAIRS, SPACED, "+", TWO, (0,), (0,), {(20, 99): (0,), (100, 109): (1, 0), (110, 198): (2, 0)}
    ),
    "whole": Case(WHOLE, PLAIN, "+-", THREE, (0,), (0,), {(0, 999): (0,)}),
}


def expected(case: Case) -> list[Stratum]:
    found = [Stratum(*case.operands, own, Layout(case.op1, case.op2, places)) for own, places in case.answers.items()]
    return sorted(found, key=lambda stratum: (stratum.steps, stratum.answers))


STEPS = [
    pytest.param(name, stratum.at_step(step), id=f"{name}, {stratum.layout_name} of {stratum.answers}, step {step}")
    for name, case in CASES.items()
    for stratum in expected(case)
    for step in range(1, stratum.steps + 1)
]


@cache
def whole_encoder(name: str) -> PromptEncoder:
    return PromptEncoder(CASES[name].tokenizer, CASES[name].template)


@cache
def encoder_at(name: str, stratum: Stratum) -> PromptEncoder:
    return whole_encoder(name).at(stratum)


@cache
def legal(stratum: Stratum, operators: str) -> Prompts:
    return stratum.prompts(operators)


def tokens_of(case: Case, text: str) -> list[int]:
    """The tokenizer's own view of a whole text."""
    bos = [case.tokenizer.bos_token_id] if case.tokenizer.bos_token_id is not None else []
    return bos + list(case.tokenizer(text, add_special_tokens=False)["input_ids"])


def cut(number: int, places: tuple[int, ...]) -> list[str]:
    """The digits of each token."""
    ends = [len(str(number)) - low for low in places]
    return [str(number)[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("name", CASES)
def test_the_strata_are_those_worked_out_by_hand(name: str) -> None:
    case = CASES[name]
    assert find_strata(whole_encoder(name), case.operators, case.operands) == expected(case)


@pytest.mark.parametrize(("name", "stratum"), STEPS)
@settings(max_examples=15)
@given(data=st.data())
def test_prompts_are_encoded_as_the_tokenizer_encodes_their_text(
    name: str, stratum: Stratum, data: st.DataObject
) -> None:
    """The whole text with its right answer, cut after the tokens of the answer that are given."""
    case, encoder = CASES[name], encoder_at(name, stratum)
    pool = legal(stratum, case.operators)
    rows = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=6))
    prompts = pool[rows]
    given_tokens = stratum.step - 1
    ids, answers = encoder.encode(prompts), encoder.answers(prompts)
    assert ids.shape == (len(rows), encoder.length)
    for i, (text, right) in enumerate(zip(prompts.text(case.template), prompts.answer.tolist(), strict=True)):
        whole = tokens_of(case, f"{text}{right}")
        question = len(whole) - stratum.steps
        assert ids[i].tolist() == whole[: question + given_tokens]
        assert answers[i] == whole[question + given_tokens]
        assert encoder.encode_questions(prompts)[i].tolist() == whole[:question]
        named = encoder.positions.named()
        for slot, places in zip(("op1", "op2", "answer"), vars(stratum.tokens).values(), strict=True):
            number = right if slot == "answer" else int(getattr(prompts, slot)[i])
            parts = cut(number, places)[:given_tokens] if slot == "answer" else cut(number, places)
            several = slot == "answer" or len(parts) > 1
            for j, digits in enumerate(parts):
                at = named.pop(f"{slot}.{j + 1}" if several else slot)
                assert digits_of(case.tokenizer.decode([int(ids[i, at])])) == digits
        assert OPERATORS[prompts.operator[i]] in case.tokenizer.decode([int(ids[i, named.pop("operator")])])
        assert named == {"last": question - 1}
        assert encoder.positions.final == encoder.length - 1
    values = [int(cut(right, stratum.tokens.answer)[given_tokens]) for right in prompts.answer.tolist()]
    assert encoder.answer_tokens[values].tolist() == answers.tolist()
    assert max(values) < encoder.limit == len(encoder.answer_tokens)


@pytest.mark.parametrize("name", ["left, long", "right, long"])
@given(data=st.data())
def test_prompts_beside_the_sampled_grid_are_encoded_too(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    pairs = data.draw(
        st.lists(st.tuples(*(st.integers(*between) for between in case.operands)), min_size=1, max_size=6)
    )
    prompts = Prompts([a for a, _ in pairs], [0] * len(pairs), [b for _, b in pairs])
    for stratum in expected(case):
        own = prompts[stratum.legal(prompts)]
        encoder = encoder_at(name, stratum.at_step(stratum.steps))
        for text, right, ids in zip(own.text(case.template), own.answer, encoder.encode(own).tolist(), strict=True):
            assert ids == tokens_of(case, f"{text}{right}")[:-1]


@pytest.mark.parametrize("name", CASES)
def test_usable_operators_are_those_with_legal_prompts(name: str) -> None:
    for stratum in expected(CASES[name]):
        found = encoder_at(name, stratum)
        assert found.operators == tuple(o for o in OPERATORS if stratum.legal(stratum.grid(o)).any())
        examples = found.examples()
        assert stratum.legal(examples).all()
        assert {OPERATORS[i] for i in examples.operator} == set(found.operators)
        assert found.first_mismatch(examples) is None


def test_names_are_distinct() -> None:
    assert stratum_names(expected(CASES["digits"])) == ["2-2-1", "2-2-2", "2-2-3"]
    products = stratum_names(expected(CASES["left, products"]))
    assert products == ["1-1-2-answers-10000-99999", "1-1-2-answers-100000-998001"]
    for case in CASES.values():
        names = stratum_names(expected(case))
        assert len(set(names)) == len(names)


def test_labels_of_positions_name_the_tokens() -> None:
    last = expected(CASES["digits"])[-1].at_step(3)
    labels = encoder_at("digits", last).labels
    assert labels == ("<bos>", "op1.1", "op1.2", "operator", "op2.1", "op2.2", "last", "answer.1", "answer.2")
    assert not encoder_at("digits", last).is_plain


@pytest.mark.parametrize(
    ("tokenizer", "template"),
    [(WHOLE, PLAIN), (WHOLE, Template(prefix="1+2=3=")), (LEFT, SPACED), (RIGHT, FEW_SHOT), (PAIRS, SPACED)],
)
def test_one_token_a_number_is_the_study_of_whole_numbers(tokenizer: Any, template: Template) -> None:
    whole = PromptEncoder(tokenizer, template)
    top = min(whole.limit - 1, 300)
    studied = whole_numbers(top, whole.limit)
    stratum = Stratum(studied.op1, studied.op2, studied.answers, Layout())
    found, prompts = whole.at(stratum), studied.prompts(OPERATORS)
    assert len(prompts) > 1000
    assert (found.length, found.positions, found.labels, found.is_plain) == (
        whole.length,
        whole.positions,
        whole.labels,
        whole.is_plain,
    )
    assert (found.limit, found.operators, stratum.asked) == (whole.limit, whole.operators, studied.asked)
    assert (found.encode(prompts) == whole.encode(prompts)).all()
    assert (found.answers(prompts) == whole.answers(prompts)).all()
    assert (found.answer_tokens == whole.answer_tokens).all()
    grid = operand_grid(OPERATORS, top)
    assert (found.encode(grid) == whole.encode(grid)).all()  # answers need not be legal


def random_model(tokenizer: Any) -> Model:
    hf_model = untrained_model("llama", CONFIGS["llama"], tokenizer, seed=1)
    return Model(hf_model, tokenizer, Identity("chunks", "", "llama", "chunks"), PLAIN)


def test_a_model_at_a_stratum_shares_its_weights() -> None:
    model, stratum = random_model(LEFT), expected(CASES["left, long"])[-1]
    first = model.at(stratum)
    assert first is model.at(Stratum(*CASES["left, long"].operands, stratum.answers, stratum.layout))
    assert model.encoder.stratum is None
    assert first.hf_model is model.hf_model
    second = model.at(stratum.at_step(2))
    assert (second.encoder.step, second.encoder.length) == (2, first.encoder.length + 1)
    # The second token of 10000…19998 is 00…99, and not 0…99 as of whole numbers.
    assert model.token_numbers[LEFT.convert_tokens_to_ids(["7", "07", "42"])].tolist() == [7, -1, 42]
    assert first.token_numbers[LEFT.convert_tokens_to_ids(["7", "07", "142"])].tolist() == [-1, -1, 142]
    assert second.token_numbers[LEFT.convert_tokens_to_ids(["7", "07", "42"])].tolist() == [-1, 7, 42]


def refusal(tokenizer: Any, operators: str, operands: Operands, template: Template = PLAIN) -> str:
    """The one sentence with which operands are refused."""
    with pytest.raises(UserError) as caught:
        find_strata(PromptEncoder(tokenizer, template), operators, operands)
    text = str(caught.value)
    assert text[0].isupper()
    assert text.endswith(".")
    assert "\n" not in text
    assert ". " not in text
    return text


def test_operands_of_different_lengths_are_refused_with_advice() -> None:
    text = refusal(DIGITS, "+", ((0, 99), (10, 99)))
    assert text.startswith("As op1, 0…99 mixes numbers that the tokenizer cuts into different tokens")
    assert "use --operands 10-99." in text
    assert "As op2, 1…12345" in refusal(LEFT, "+", ((1, 9), (1, 12_345)))
    # Of a large range only some numbers are read, but always the first and the last of each length.
    assert "use --operands 10000-99999." in refusal(LEFT, "+", ((500, 99_999), (1, 9)))
    assert "use --operands 1000-9999." in refusal(DIGITS, "+", ((17, 9999), (10, 99)))
    assert "use --operands 111-198." in refusal(PAIRS, "+", ((100, 198), (10, 99)))


def test_operands_that_are_not_cut_between_their_digits_are_refused() -> None:
    text = refusal(WHOLE, "+", ((1, 2000), (1, 9)))
    assert "does not cut op1 between its digits for all of 1…2000" in text


@pytest.mark.parametrize(
    ("operators", "operands"),
    [
        ("+", ((10, 14), (10, 14))),  # 25 prompts
        ("-", ((1, 9), (10, 99))),  # all answers are negative
        ("/", ((10, 99), (0, 0))),
        ("+-", ((5, 5), (7, 7))),
    ],
)
def test_too_few_prompts_are_refused(operators: str, operands: Operands) -> None:
    shown = " and ".join(f"{low}…{high}" for low, high in operands)
    assert f"There are no {FEWEST_PROMPTS} prompts with operands {shown} whose" in refusal(DIGITS, operators, operands)


def test_groups_of_answers_with_too_few_prompts_are_left_out() -> None:
    """Of 10…39 + 10…85, the sums 100…124 have 325 prompts, and of 10…39 + 10…65 the sums 100…104 have 15."""
    many = find_strata(whole_encoder("digits"), "+", ((10, 39), (10, 85)))
    assert [s.answers for s in many] == [(20, 99), (100, 124)]
    few = find_strata(whole_encoder("digits"), "+", ((10, 39), (10, 65)))
    assert [s.answers for s in few] == [(20, 99)]


def test_answers_that_merge_with_the_equals_sign_are_refused() -> None:
    """`=45` is one token, though `=` and 4 are two."""
    tokenizer = made.word_tokenizer(
        r"=\d\d+|\d|.", [*map(str, range(10)), *made.SIGNS, *(f"={n}" for n in range(10, 99))]
    )
    assert "does not cut the answers 20…198 between their digits; use other operands, or another template" in refusal(
        tokenizer, "+", TWO
    )
    apart = PromptEncoder(tokenizer, Template("{op1}{operator}{op2} = "))
    assert [s.answers for s in find_strata(apart, "+", TWO)] == [(20, 99), (100, 198)]


def test_cuts_that_depend_on_the_neighbours_are_refused() -> None:
    """`5-3` is one token where another digit follows, which varying one number at a time does not show."""
    words = [*map(str, range(10)), *(f"5{o}{n}" for o in "+-" for n in range(30, 40)), *made.SIGNS]
    assert "neighbouring" in refusal(made.word_tokenizer(r"5[+-]3\d|\d|.", words), "+", TWO)


def test_a_stratum_that_the_tokenizer_cuts_in_another_way_is_refused() -> None:
    with pytest.raises(UserError, match="As op1, 10 is cut into 2 tokens, but others of 10…99 into 1; choose other"):
        whole_encoder("digits").at(Stratum(*TWO, (20, 99), Layout((0,), (1, 0), (1, 0))))
    with pytest.raises(UserError, match="No prompt has operands 10…99 and 10…99, answers 0…9"):
        PromptEncoder(made.word_tokenizer(r"\d|.", [*map(str, range(10)), "+", "="]), PLAIN).at(
            Stratum(*TWO, (0, 9), Layout((1, 0), (1, 0)))
        )


@pytest.mark.parametrize("engine", [REPLAY, FullPass()])
def test_one_pass_gives_the_logits_of_every_step(engine: Engine) -> None:
    """The model's own logits at each step, from prompts that end there."""
    model, stratum = random_model(DIGITS), expected(CASES["digits"])[-1]
    prompts = stratum.prompts("+")[::100]
    last = model.with_engine(engine).at(stratum.at_step(3))
    observed = torch.zeros(len(prompts), 3, model.sizes.vocabulary)
    last.engine.mean_activations(
        last, prompts, rows=7, observe=lambda rows, logits: observed.__setitem__(rows, logits), steps=3
    )
    for step in (1, 2, 3):
        own = model.at(stratum.at_step(step))
        with torch.no_grad():
            assert torch.allclose(observed[:, step - 1], own.logits(own.encode(prompts)), atol=1e-5)


def test_a_model_needs_the_tokens_of_a_stratum() -> None:
    """It has embeddings of 0…999, but not of 00…09, the second tokens of 10000…10009."""
    words = ["<bos>", "<unk>", *map(str, range(1000)), *made.SIGNS]
    tokenizer = made.word_tokenizer(r"\d{1,3}|.", [*words, *(f"0{n}" for n in range(10))])
    model = random_model(tokenizer)
    _, longest = expected(CASES["left, long"])
    assert model.at(longest).encoder.max_token == len(words) + 9
    hf_model: Any = untrained_model("llama", CONFIGS["llama"], tokenizer, seed=1)
    hf_model.resize_token_embeddings(len(words))
    small = Model(hf_model, tokenizer, model.identity, PLAIN)
    with pytest.raises(UserError, match=f"uses token {len(words) + 9}, but the model has only {len(words)} tokens"):
        small.at(longest)
