"""From prompts to token ids, with tables built by probing the tokenizer.

Nothing is assumed about a tokenizer:

1. Whole prompts with their answers are encoded, varying one slot (op1, operator, op2, answer) at a time; the one token that
   changes is the slot's position.
2. The same comparison shows which numbers are single tokens in each slot. They make up a table per slot.
3. A sample of whole prompts is compared with the tables.
4. Every token is decoded: a tokenizer that replaces digits or operators would otherwise pass, as it also does so in 3.

Encoding the operand grid is then a table look-up. Where numbers take several tokens, each token has a table of its own
(`PromptEncoder.at`), read and checked in the same way.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.chat import Surroundings
from arithscope.models.tokenizer_reader import NUMBERS, TokenizerReader, digits_of
from arithscope.prompts import (
    OPERATORS,
    Ints,
    Place,
    Prompts,
    Stratum,
    Template,
    concatenate_prompts,
    legal_prompts,
    random_source,
    sample,
)
from arithscope.prompts.stratum import Places, place_of

_CHECKED = 2000  # prompts of a stratum whose tables are compared with whole texts


@dataclass(frozen=True)
class Positions:
    """Named token positions of an encoded prompt (BOS and prefix included), in their order: op1, operator, op2 and last.

    Where a number has several tokens, each has its own name: op1.1, op1.2. In later answer steps, the tokens of the answer so
    far follow: answer.1.
    """

    names: tuple[tuple[str, int], ...]

    def named(self) -> dict[str, int]:
        return dict(self.names)

    @cached_property
    def op1(self) -> int:
        """Where op1 begins, and with it what differs between prompts."""
        return self._first("op1")

    @cached_property
    def operator(self) -> int:
        return self._first("operator")

    @cached_property
    def op2(self) -> int:
        """Where op2 begins."""
        return self._first("op2")

    @property
    def final(self) -> int:
        """The last token, at which the next token of the answer is predicted."""
        return self.names[-1][1]

    @property
    def final_name(self) -> str:
        """`last` in the first step; `answer.1` in the second."""
        return self.names[-1][0]

    def _first(self, name: str) -> int:
        return next(at for each, at in self.names if each.partition(".")[0] == name)


class PromptEncoder:
    """Encodes prompts of one template with one tokenizer.

    Attributes:
        stratum: The prompts of several tokens a number that it encodes, and the answer step; None where numbers are whole.
        limit: The single-token limit: every number 0…limit−1 is one token as op1, as op2 and as the answer. In a stratum, the
            number of values that the token asked for can have.
        length: Number of tokens in a prompt, the same for all prompts, so nothing is ever padded.
        positions: Positions of op1, the operator, op2 and the last token.
        operators: The operators that are single tokens, and in a stratum have legal prompts.
    """

    def __init__(self, tokenizer: Any, template: Template):
        self.tokenizer, self.template = tokenizer, template
        self.stratum: Stratum | None = None
        reader = self._reader = TokenizerReader(tokenizer, template)
        self.has_bos, self.length = reader.has_bos, len(reader.reference) - 1
        self._operators = reader.operator_tokens()
        self.operators = tuple(self._operators)
        numbers = {slot: reader.whole_numbers(slot) for slot in NUMBERS}
        self.limit = min(len(tokens) for tokens in numbers.values())
        if self.limit < 2:
            advice = "try another --template (with or without spaces)"
            raise UserError(f"Not even 0 and 1 are single tokens in this template; {advice}.")
        # For each token of a number, the token of each of its values.
        self._tables = {slot: [np.array(tokens[: self.limit], dtype=np.int64)] for slot, tokens in numbers.items()}
        self.positions = self._positions()
        self._check_sample(self._every_number())
        self._check_decoded()

    def at(self, stratum: Stratum) -> "PromptEncoder":
        """The encoder of a stratum at its answer step.

        Raises:
            UserError: If the tokenizer does not cut every number of the stratum as its layout says.
        """
        other = copy.copy(self)
        other.stratum, layout = stratum, stratum.tokens
        ranges = {"op1": stratum.op1, "op2": stratum.op2, "answer": stratum.answers}
        other._tables = {slot: self._reader.token_tables(slot, ranges[slot], getattr(layout, slot)) for slot in NUMBERS}
        other.limit = stratum.limit
        other.length = len(self._reader.reference) - 1 + sum(layout.counts[:2]) - 2 + stratum.step - 1
        other.positions = other._positions()
        other.operators = tuple(o for o in self._operators if len(stratum.prompts(o)))
        if not other.operators:
            raise UserError(f"No prompt has operands {stratum.described()}; choose other operands.")
        other._check_sample(other._some_prompts(_CHECKED))
        other._check_decoded()
        return other

    def places(self, slot: str, numbers: Ints) -> list[Places | None]:
        """Which digits each token of these numbers holds as `op1`, `op2` or `answer`; None if it is not cut between digits."""
        return self._reader.places(slot, numbers)

    @property
    def surroundings(self) -> Surroundings:
        """What a chat template writes around the text of a prompt."""
        return self._reader.surroundings

    @property
    def answer_tokens(self) -> Int[Tensor, " limit"]:
        """The token of each number as an answer; in a stratum, of each value of the token that is asked for."""
        return torch.from_numpy(self._tables["answer"][self.step - 1])

    @property
    def step(self) -> int:
        return 1 if self.stratum is None else self.stratum.step

    @property
    def asked(self) -> Place:
        """What the token that is asked for says."""
        return Place() if self.stratum is None else self.stratum.asked

    def _places(self, slot: str) -> Places:
        """Which digits the tokens of a number hold."""
        return (0,) if self.stratum is None else getattr(self.stratum.tokens, slot)

    def _positions(self) -> Positions:
        names: list[tuple[str, int]] = []
        longer = 0  # tokens more than in the reference, so far
        for slot in ("op1", "operator", "op2"):
            count = 1 if slot == "operator" else len(self._places(slot))
            tokens = [slot] if count == 1 else [f"{slot}.{i + 1}" for i in range(count)]
            names += [(token, self._reader.where[slot] + longer + i) for i, token in enumerate(tokens)]
            longer += count - 1
        last = len(self._reader.reference) - 2 + longer
        return Positions((*names, *((f"answer.{i}" if i else "last", last + i) for i in range(self.step))))

    @property
    def is_plain(self) -> bool:
        """Whether a prompt is the paper's BOS + four tokens (without BOS if the tokenizer defines none)."""
        first = int(self.has_bos)
        return self.length == first + 4 and [at for _, at in self.positions.names] == list(range(first, first + 4))

    @property
    def labels(self) -> tuple[str, ...]:
        """Label of each position: its name if it has one, else its token, numbered if it occurs more than once."""
        shown = self._reader.reference[:-1] if self.stratum is None else self.encode(self._some_prompts(1))[0]
        names, tokens = {i: name for name, i in self.positions.named().items()}, self.tokens(shown)
        unnamed = [token for i, token in enumerate(tokens) if i not in names]
        numbered = (f"{token}:{i}" if unnamed.count(token) > 1 else token for i, token in enumerate(tokens))
        return tuple(names.get(i, label) for i, label in enumerate(numbered))

    @property
    def max_token(self) -> int:
        """The largest token id in prompts and answers."""
        numbers = (int(tokens.max()) for tables in self._tables.values() for tokens in tables)
        return max(*self._reader.reference, *self._operators.values(), *numbers)

    def examples(self) -> Prompts:
        """A few legal prompts of each usable operator, at least four in all if there are so many: for checks and display."""
        top, each = min(self.limit - 1, 300), -(-4 // max(1, len(self.operators)))
        if self.stratum is not None:
            return self._some_prompts(each)
        drawn = [
            sample(legal_prompts(o, top, self.limit), each, random_source(0, "examples", o)) for o in self.operators
        ]
        return concatenate_prompts(drawn) if drawn else Prompts(*np.empty((3, 0), dtype=np.int64))

    def check(self, operators: Sequence[str], max_operand: int) -> None:
        """Refuse operands and operators that are not single tokens."""
        if self.stratum is None and max_operand >= self.limit:
            several = "or for numbers of several tokens --digits or --operands (in Python, `run_layouts`)"
            problem = (
                f"so operands up to {max_operand} need another study; use --max-operand {self.limit - 1}, {several}"
            )
            raise UserError(f"The tokenizer has single tokens only for the numbers 0…{self.limit - 1}, {problem}.")
        self.check_operators(operators)

    def check_operators(self, operators: Sequence[str]) -> None:
        """Refuse operators that are not single tokens."""
        if missing := [o for o in operators if o not in self._operators]:
            others = f"--operators '{''.join(self._operators)}' or " if self._operators else ""
            advice = f"use {others}another --template"
            word = self.template.sign(missing[0])
            shown = f"operator {word!r}" if word == missing[0] else f"word {word!r} for the operator {missing[0]!r}"
            raise UserError(f"The {shown} is not a single token in this template; {advice}.")

    def legal(self, prompts: Prompts) -> NDArray[np.bool_]:
        """Mask of the prompts whose operands and answer have the tokens of this encoder."""
        return prompts.legal(self.limit) if self.stratum is None else self.stratum.legal(prompts)

    def encode(self, prompts: Prompts) -> Int[Tensor, "batch length"]:
        """Token ids, with the answer's tokens before the step. Operands must lie below the limit; answers need not be legal
        where numbers are whole, and in a stratum's first step."""
        given = self._tokens_of("answer", prompts.answer, self.step - 1)
        return torch.from_numpy(np.column_stack([self.encode_questions(prompts), *given]))

    def encode_answered(self, prompts: Prompts) -> Int[Tensor, "batch length"]:
        """Token ids of (legal) prompts with their whole answers."""
        return torch.from_numpy(
            np.column_stack([self.encode_questions(prompts), *self._tokens_of("answer", prompts.answer)])
        )

    def encode_questions(self, prompts: Prompts) -> Int[Tensor, "batch length"]:
        """Token ids of prompts without any token of the answer."""
        top = max(int(prompts.op1.max(initial=0)), int(prompts.op2.max(initial=0)))
        self.check([OPERATORS[i] for i in np.unique(prompts.operator)], top)
        signs = np.array([self._operators.get(o, -1) for o in OPERATORS], dtype=np.int64)
        slots = {"operator": [signs[prompts.operator]]}
        slots |= {slot: self._tokens_of(slot, getattr(prompts, slot)) for slot in ("op1", "op2")}
        columns: list[Any] = []
        for at, token in enumerate(self._reader.reference[:-1]):
            slot = next((slot for slot in slots if self._reader.where[slot] == at), None)
            columns += [np.full(len(prompts), token)] if slot is None else slots[slot]
        return torch.from_numpy(np.column_stack(columns))

    def _tokens_of(self, slot: str, numbers: Ints, count: int | None = None) -> list[Ints]:
        """For each token of a slot, or its first `count` tokens, the tokens of some numbers."""
        places, tables = self._places(slot), self._tables[slot][:count]
        return [table[place_of(places, i).of(numbers)] for i, table in enumerate(tables)]

    def shown(self, prompts: Prompts) -> list[str]:
        """The prompts as a reader sees them: without the prefix, and with the answer so far in later steps, `45+78=1`."""
        texts = prompts.text(replace(self.template, prefix=""))
        if self.step == 1:
            return texts
        written = prompts.answer // 10 ** self._places("answer")[self.step - 2]
        return [f"{text}{so_far}" for text, so_far in zip(texts, written.tolist(), strict=True)]

    def answers(self, prompts: Prompts) -> Int[Tensor, " batch"]:
        """The token that is asked for, for each (legal) prompt."""
        return self.answer_tokens[torch.from_numpy(prompts.result)]

    def tokens(self, ids: Sequence[int] | Tensor) -> list[str]:
        """Token strings, for display; empty for tokens that only the model has."""
        return [token or "" for token in self.tokenizer.convert_ids_to_tokens([int(i) for i in ids])]

    def first_mismatch(self, prompts: Prompts) -> str | None:
        """The first prompt whose table look-up differs from tokenizing its whole text; None if there is none. In a stratum,
        prompts must be legal and their answers are compared, too."""
        shown = np.where(self.legal(prompts), prompts.answer, 3)
        texts = prompts.text(self.template)
        written = zip(texts, shown.tolist(), strict=True)
        whole = self._reader.encode_texts([self._reader.whole_text(text, answer) for text, answer in written])
        looked_up = self.encode_questions(prompts).numpy()
        if self.stratum is None:
            whole = [tokens[:-1] for tokens in whole]  # without the answer's token
        else:
            looked_up = np.column_stack([looked_up, *self._tokens_of("answer", shown)])
        rows = zip(texts, whole, looked_up.tolist(), strict=True)
        return next((text for text, tokens, ids in rows if tokens != ids), None)

    def _every_number(self) -> Prompts:
        """Every number beside every operator, with random partners."""
        random = random_source(0, "encoding check")
        usable = [OPERATORS.index(o) for o in self.operators]
        op1 = np.tile(np.arange(self.limit), len(usable))
        op2 = np.concatenate([random.permutation(self.limit) for _ in usable] or [op1])
        return Prompts(op1, np.repeat(usable, self.limit), op2)

    def _some_prompts(self, each: int) -> Prompts:
        """Legal prompts of the stratum, at most `each` of each operator."""
        assert self.stratum is not None
        return concatenate_prompts(
            [sample(self.stratum.prompts(o), each, random_source(0, "examples", o)) for o in self.operators]
        )

    def _check_sample(self, prompts: Prompts) -> None:
        """Compare the tables with whole texts."""
        if (wrong := self.first_mismatch(prompts)) is not None:
            problem = "depends on the neighbouring numbers, so positions are not fixed"
            advice = "choose another --template, for example one with spaces"
            raise UserError(f"The tokenizer splits {wrong!r} in a way that {problem}; {advice}.")

    def _check_decoded(self) -> None:
        """Refuse a tokenizer that reads a number or an operator as another one."""
        for slot, tables in self._tables.items():
            for index, table in enumerate(tables):
                known = np.flatnonzero(table >= 0)
                for value, text in zip(known.tolist(), self._reader.decode([[t] for t in table[known]]), strict=True):
                    digits = digits_of(text)
                    if not digits or int(digits) != value:
                        raise _misread(f"the number {value} as {slot}" if not index else f"{value} in {slot}", text)
        for operator, text in zip(
            self._operators, self._reader.decode([[t] for t in self._operators.values()]), strict=True
        ):
            if self.template.sign(operator) not in text:
                raise _misread(f"the operator {operator}", text)
        examples = self.examples()
        texts = examples.text(replace(self.template, prefix=""))
        rows = np.column_stack([self.encode_questions(examples), *self._tokens_of("answer", examples.answer)]).tolist()
        after = self.surroundings.after
        for text, answer, whole in zip(texts, examples.answer, self._reader.decode(rows), strict=True):
            if not _symbols(whole, self.template).endswith(_symbols(f"{text}{after}{answer}", self.template)):
                raise _misread(f"{text}{answer}", whole)


def _symbols(text: str, template: Template) -> str:
    """Digits, operators and equals signs of a text. Decoding may change the rest: spaces, letters, the first token."""
    text = "".join(text.split())
    for operator, word in sorted(dict(template.words).items(), key=lambda pair: -len(pair[1])):
        text = text.replace(word, operator)  # longer words first, as they may hold shorter ones
    return "".join(str(int(x)) if x.isdecimal() else x for x in text if x.isdecimal() or x in (*OPERATORS, "="))


def _misread(what: str, text: str) -> UserError:
    advice = "so its answers would mean nothing; use the tokenizer with which the model was trained"
    return UserError(f"The tokenizer reads {what} as {text.strip()!r}, {advice}.")
