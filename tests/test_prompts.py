from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithscope.errors import UserError
from arithscope.prompts import (
    OPERATORS,
    UNDEFINED,
    Prompts,
    Template,
    counterfactuals,
    disjoint_samples,
    legal_prompts,
    operand_grid,
    operator_indices,
    parse_prompt,
    random_source,
    read_words,
    sample,
    template_from_json,
)

operands = st.integers(0, 999)
rows = st.lists(st.tuples(operands, st.integers(0, 3), operands), min_size=1, max_size=60)


def table(triples: list[tuple[int, int, int]]) -> Prompts:
    a, o, b = zip(*triples, strict=True)
    return Prompts(np.array(a), np.array(o), np.array(b))


def plain_answer(a: int, operator: str, b: int) -> int | None:
    """The oracle: Python's exact integers."""
    if operator == "/":
        return a // b if b else None
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


def triples(prompts: Prompts) -> set[tuple[int, int, int]]:
    return set(zip(prompts.op1.tolist(), prompts.operator.tolist(), prompts.op2.tolist(), strict=True))


@given(rows)
def test_answers_are_exact(rows: list[tuple[int, int, int]]) -> None:
    expected = [plain_answer(a, OPERATORS[o], b) for a, o, b in rows]
    assert table(rows).answer.tolist() == [UNDEFINED if e is None else e for e in expected]


def test_division_is_integer_division() -> None:
    assert table([(7, 3, 2), (6, 3, 7), (5, 3, 0)]).answer.tolist() == [3, 0, UNDEFINED]


@given(rows, st.integers(1, 1000))
def test_legal_prompts_follow_the_definition(rows: list[tuple[int, int, int]], limit: int) -> None:
    def legal(a: int, operator: str, b: int) -> bool:
        result = plain_answer(a, operator, b)
        return result is not None and all(0 <= x < limit for x in (a, b, result))

    assert table(rows).legal(limit).tolist() == [legal(a, OPERATORS[o], b) for a, o, b in rows]


def test_the_grid_holds_every_pair_once_in_order() -> None:
    prompts = operand_grid("-+", 4)
    expected = [(a, o, b) for o in (0, 1) for a in range(5) for b in range(5)]
    assert list(zip(prompts.op1.tolist(), prompts.operator.tolist(), prompts.op2.tolist(), strict=True)) == expected


def test_sizes_of_the_papers_setting() -> None:
    assert len(operand_grid("+-*/", 300)) == 362_404
    counted = {o: len(legal_prompts(o, 300, 1000)) for o in OPERATORS}
    brute = {
        o: sum(
            plain_answer(a, o, b) is not None and 0 <= plain_answer(a, o, b) < 1000  # type: ignore[operator]
            for a in range(301)
            for b in range(301)
        )
        for o in OPERATORS
    }
    assert counted == brute


@given(st.integers(0, 10_000), st.lists(st.integers(0, 80), min_size=1, max_size=4))
def test_disjoint_samples_share_nothing(seed: int, sizes: list[int]) -> None:
    prompts = operand_grid("+", 9)
    parts = disjoint_samples(prompts, sizes, random_source(seed, "test"))
    drawn = [t for part in parts for t in triples(part)]
    assert len(drawn) == len(set(drawn)) == sum(map(len, parts))
    assert set(drawn) <= triples(prompts)
    if sum(sizes) <= len(prompts):
        assert [len(p) for p in parts] == sizes
    else:
        assert all(len(p) <= size for p, size in zip(parts, sizes, strict=True))
        assert len(drawn) > len(prompts) - len(sizes)


def test_samples_depend_on_seed_and_purpose_only() -> None:
    prompts = operand_grid("+", 20)

    def draw(seed: int, purpose: str) -> list[int]:
        return sample(prompts, 5, random_source(seed, purpose)).op1.tolist()

    assert draw(1, "a") == draw(1, "a")
    assert draw(1, "a") != draw(1, "b")
    assert draw(1, "a") != draw(2, "a")
    assert len(sample(prompts, 10**6, random_source(0, "x"))) == len(prompts)


@given(rows, rows, st.integers(0, 1000))
def test_counterfactuals_have_another_answer(
    rows: list[tuple[int, int, int]], pool: list[tuple[int, int, int]], seed: int
) -> None:
    prompts, choices = table(rows), table(pool)
    possible = all((choices.answer != r).any() for r in prompts.answer)
    if not possible:
        with pytest.raises(UserError, match="counterfactual"):
            counterfactuals(prompts, choices, random_source(seed, "cf"))
        return
    drawn = counterfactuals(prompts, choices, random_source(seed, "cf"))
    assert len(drawn) == len(prompts)
    assert (drawn.answer != prompts.answer).all()
    assert triples(drawn) <= triples(choices)


def test_counterfactuals_are_uniform_over_the_allowed_ones() -> None:
    pool = table([(1, 0, 1), (2, 0, 0), (0, 0, 2), (3, 0, 0), (9, 1, 4), (2, 2, 4)])  # answers 2 2 2 3 5 8
    n = 30_000
    prompts = Prompts(np.full(n, 1), np.zeros(n), np.full(n, 2))  # answer 3
    drawn = counterfactuals(prompts, pool, random_source(0, "uniform"))
    keys, counts = np.unique(drawn.op1 * 100 + drawn.op2, return_counts=True)
    assert len(keys) == 5
    assert abs(counts / n - 0.2).max() < 0.02


def test_templates() -> None:
    assert table([(226, 1, 68)]).text(Template()) == ["226-68="]
    spaced = Template("{op1} {operator} {op2} = ", prefix="1 + 2 = 3\n")
    assert table([(4, 0, 5)]).text(spaced) == ["1 + 2 = 3\n4 + 5 = "]
    assert Template("{{{op1}{operator}{op2}}}").render(1, "+", 2) == "{1+2}"


@pytest.mark.parametrize(
    "text",
    ["", "{op1}{op2}=", "{op2}{operator}{op1}=", "{op1}{operator}{op2}{op2}", "{op1!r}{operator}{op2}", "{op1", "{}"],
)
def test_bad_templates_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="template"):
        Template(text)


letters = st.text(
    st.characters(codec="utf-8", exclude_categories=["N", "Z", "C"], exclude_characters="+-*/=,"), min_size=1
)
WORDS = st.dictionaries(st.sampled_from(OPERATORS), letters).filter(lambda words: len({*words.values()}) == len(words))


@given(WORDS)
def test_words_stand_for_operators(words: dict[str, str]) -> None:
    template = Template("{op1} {operator} {op2}", words=words)
    assert hash(template) == hash(Template("{op1} {operator} {op2}", words=tuple(reversed(words.items()))))
    for operator in OPERATORS:
        assert template.render(1, operator, 2) == f"1 {words.get(operator, operator)} 2"
    assert template == Template("{op1} {operator} {op2}", words=template.words)
    written = ", ".join(f"{operator}={word}" for operator, word in words.items())
    assert Template("{op1} {operator} {op2}", words=read_words(written)) == template


@given(WORDS, st.booleans(), st.text(st.characters(codec="utf-8", exclude_characters="{"), max_size=5))
def test_templates_are_stored_and_restored(words: dict[str, str], chat: bool, reply: str) -> None:
    template = Template("{op1} {operator} {op2}", "1+2=3\n", words, chat, reply if chat else "")
    stored = json.loads(json.dumps(template.as_json()))
    assert template_from_json({**stored, "seed": 0}) == template


def test_only_what_is_not_the_default_is_stored() -> None:
    assert Template().as_json() == {"template": "{op1}{operator}{op2}=", "prefix": ""}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("+", r"'\+' does not say which operator has which word"),
        ("plus", "'plus' does not say"),
        ("+=plus,", "'' does not say"),
        ("+=", "The word '' for . is empty"),
        ("+= ,-=minus", "The word '' for . is empty"),
        ("%=mod", "'%' is not an operator"),
        ("=plus", "'' is not an operator"),
        ("plus=+", "'plus' is not an operator"),
        ("+=plus,-=plus", "The word 'plus' is named twice"),
        ("+=plus,+=and", r"The operator '\+' is named twice"),
        ("+=plus2", "'plus2' for . holds a digit or a sign"),
        ("+=½", "holds a digit or a sign"),
        ("+=-", "holds a digit or a sign"),
        ("+=a=b", "holds a digit or a sign"),
    ],
)
def test_bad_words_are_refused_in_one_sentence(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Template(words=read_words(words))
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(reply="The answer is "), "use --reply together with --chat"),
        (dict(chat=True, reply="{op1} is "), "leave operands and operator out"),
        (dict(chat=True, reply="\ud800"), "not valid Unicode"),
        (dict(words={"+": "\ud800"}), "not valid Unicode"),
        (dict(words={"+": " plus"}), "spaces belong into the template"),
    ],
)
def test_bad_wordings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Template(**options)


@pytest.mark.parametrize("operators", ["", "x", "+%"])
def test_bad_operators_are_refused(operators: str) -> None:
    with pytest.raises(UserError, match="perator"):
        operator_indices(operators)


@given(
    st.sampled_from(OPERATORS),
    st.integers(0, 300),
    st.integers(0, 300),
    st.sampled_from(["{}{}{}=", "{} {} {}", " {}{} {} = "]),
)
def test_prompts_are_read_as_they_are_written(operator: str, a: int, b: int, form: str) -> None:
    text = form.format(a, operator, b)
    answer = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else -1}[operator]
    if 0 <= answer < 1000:
        prompt = parse_prompt(text, OPERATORS, 300, 1000)
        assert triples(prompt) == {(a, OPERATORS.index(operator), b)}
        assert prompt.answer.tolist() == [answer]
    else:
        with pytest.raises(UserError):
            parse_prompt(text, OPERATORS, 300, 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("226--68=", "'-68' is not a whole number"),
        ("12/0=", "divides by zero"),
        ("5000+1=", "beyond 300"),
        ("9" * 5000 + "+1=", "beyond 300"),
        ("two+3=", "'two' is not a whole number"),
        ("1.5+3=", "'1.5' is not a whole number"),
        ("007+3=", "'007' is not a whole number"),
        ("٣+3=", "'٣' is not a whole number"),
        ("12%5=", "none of the operators"),
        ("12^5=", "none of the operators"),
        ("", "The prompt is empty; write one as in 226-68=."),
        (" ", "The prompt is empty"),
        ("12+=", "an operand is missing"),
        ("-5+3=", "an operand is missing"),
        ("1+2+3=", "'2+3' is not a whole number"),
        ("1+2==", "'2=' is not a whole number"),
        ("68-226=", "'68-226=' gives -158"),
        ("300*4=", "'300*4=' gives 1200"),
        ("6*7=", "* was not studied"),
    ],
)
def test_bad_prompts_are_explained_in_one_sentence(text: str, message: str) -> None:
    operators = ["+", "-", "*", "/"] if text != "6*7=" else ["+", "-"]
    with pytest.raises(UserError) as error:
        parse_prompt(text, operators, 300, 1000)
    assert message in str(error.value)
    assert len(str(error.value)) < 200


@given(st.text(st.sampled_from("0123456789+-*/= .xé\n\0"), max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        prompt = parse_prompt(text, OPERATORS, 300, 1000)
    except UserError:
        return
    assert len(prompt) == 1
    assert prompt.legal(1000).all()
    a, o, b = next(iter(triples(prompt)))
    assert "".join(text.split()).rstrip("=") == f"{a}{OPERATORS[o]}{b}"


@pytest.mark.parametrize(
    ("written", "operator", "answer"), [("85−68", "-", 17), ("12 × 3 =", "*", 36), ("9÷2=", "/", 4)]
)
def test_printed_signs_are_read(written: str, operator: str, answer: int) -> None:
    found = parse_prompt(written, "+-*/", 300, 1000)
    assert (OPERATORS[found.operator[0]], found.answer.tolist()) == (operator, [answer])
