"""From prompts to token ids, with tables built by probing the tokenizer.

Nothing is assumed about a tokenizer:

1. Whole prompts with their answers are encoded, varying one slot (op1, operator, op2, answer) at a time; the one token that
   changes is the slot's position.
2. The same comparison shows which numbers are single tokens in each slot. They make up a table per slot.
3. A sample of whole prompts is compared with the tables.
4. Every token is decoded: a tokenizer that replaces digits or operators would otherwise pass, as it also does so in 3.

Encoding the operand grid is then a table look-up.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from arithscope.errors import UserError
from arithscope.prompts import OPERATORS, Prompts, Template, concatenate_prompts, legal_prompts, random_source, sample

_REFERENCE = {"op1": "1", "operator": "+", "op2": "2", "answer": "3"}
_BLOCK = 128  # numbers tried at a time while looking for the single-token limit


@dataclass(frozen=True)
class Positions:
    """Token positions of op1, operator, op2 and the last token in an encoded prompt (BOS and prefix included)."""

    op1: int
    operator: int
    op2: int
    last: int

    def named(self) -> dict[str, int]:
        return asdict(self)


class PromptEncoder:
    """Encodes prompts of one template with one tokenizer.

    Attributes:
        limit: The single-token limit: every number 0…limit−1 is one token as op1, as op2 and as the answer.
        length: Number of tokens in a prompt, the same for all prompts, so nothing is ever padded.
        positions: Positions of op1, the operator, op2 and the last token.
        operators: The operators that are single tokens.
        answer_tokens: The token of each number as an answer.
    """

    def __init__(self, tokenizer: Any, template: Template):
        self.tokenizer, self.template = tokenizer, template
        self.has_bos = tokenizer.bos_token_id is not None
        text = self._text(_REFERENCE)
        [reference] = self._encode_texts([text])
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in reference[int(self.has_bos) :]:
            advice = "choose a --template and --prefix that it can read"
            raise UserError(f"The tokenizer does not know every character of {text!r}; {advice}.")
        where = {slot: self._locate(slot, reference) for slot in _REFERENCE}
        self.length = len(reference) - 1
        if where["answer"] != self.length or not where["op1"] < where["operator"] < where["op2"] < self.length - 1:
            tokens = " ".join(repr(t) for t in tokenizer.convert_ids_to_tokens(reference))
            advice = "choose another --template in which op1, operator, op2, '=' and the answer are separate tokens"
            raise UserError(f"The tokenizer joins parts of the prompt, reading {text!r} as {tokens}; {advice}.")
        self.positions = Positions(where["op1"], where["operator"], where["op2"], self.length - 1)
        self._frame = reference[:-1]
        rows = self._encode_slot("operator", OPERATORS)
        signs = [self._single_token(row, reference, where["operator"]) for row in rows]
        self._operators = {o: token for o, token in zip(OPERATORS, signs, strict=True) if token is not None}
        self.operators = tuple(self._operators)
        numbers = {slot: self._number_tokens(slot, reference, where[slot]) for slot in ("op1", "op2", "answer")}
        self.limit = min(len(tokens) for tokens in numbers.values())
        if self.limit < 2:
            advice = "try another --template (with or without spaces)"
            raise UserError(f"Not even 0 and 1 are single tokens in this template; {advice}.")
        self._op1, self._op2 = (np.array(numbers[s][: self.limit], dtype=np.int64) for s in ("op1", "op2"))
        self.answer_tokens: Int[Tensor, " limit"] = torch.tensor(numbers["answer"][: self.limit], dtype=torch.long)
        self._check_sample()
        self._check_decoded()

    @property
    def is_plain(self) -> bool:
        """Whether a prompt is the paper's BOS + four tokens (without BOS if the tokenizer defines none)."""
        first = int(self.has_bos)
        return self.length == first + 4 and self.positions == Positions(*range(first, first + 4))

    @property
    def labels(self) -> tuple[str, ...]:
        """Label of each position: its name if it has one, else its token, numbered if it occurs more than once."""
        names, tokens = {i: name for name, i in self.positions.named().items()}, self.tokens(self._frame)
        unnamed = [token for i, token in enumerate(tokens) if i not in names]
        numbered = (f"{token}:{i}" if unnamed.count(token) > 1 else token for i, token in enumerate(tokens))
        return tuple(names.get(i, label) for i, label in enumerate(numbered))

    @property
    def max_token(self) -> int:
        """The largest token id in prompts and answers."""
        numbers = (int(tokens.max()) for tokens in (self._op1, self._op2, self.answer_tokens))
        return max(*self._frame, *self._operators.values(), *numbers)

    def examples(self) -> Prompts:
        """A few legal prompts of each usable operator, at least four in all if there are so many: for checks and display."""
        top, each = min(self.limit - 1, 300), -(-4 // max(1, len(self.operators)))
        drawn = [
            sample(legal_prompts(o, top, self.limit), each, random_source(0, "examples", o)) for o in self.operators
        ]
        return concatenate_prompts(drawn) if drawn else Prompts(*np.empty((3, 0), dtype=np.int64))

    def check(self, operators: Sequence[str], max_operand: int) -> None:
        """Refuse operands and operators that are not single tokens."""
        if max_operand >= self.limit:
            problem = f"so operands up to {max_operand} cannot be studied; use --max-operand {self.limit - 1}"
            raise UserError(f"The tokenizer has single tokens only for the numbers 0…{self.limit - 1}, {problem}.")
        if missing := [o for o in operators if o not in self._operators]:
            advice = f"use --operators '{''.join(self.operators)}' or another --template"
            raise UserError(f"The operator {missing[0]!r} is not a single token in this template; {advice}.")

    def encode(self, prompts: Prompts) -> Int[Tensor, "batch length"]:
        """Token ids. Operands must lie below the limit; answers need not be legal."""
        top = max(int(prompts.op1.max(initial=0)), int(prompts.op2.max(initial=0)))
        self.check([OPERATORS[i] for i in np.unique(prompts.operator)], top)
        ids = np.tile(np.array(self._frame, dtype=np.int64), (len(prompts), 1))
        ids[:, self.positions.op1] = self._op1[prompts.op1]
        ids[:, self.positions.op2] = self._op2[prompts.op2]
        table = np.array([self._operators.get(o, -1) for o in OPERATORS], dtype=np.int64)
        ids[:, self.positions.operator] = table[prompts.operator]
        return torch.from_numpy(ids)

    def answers(self, prompts: Prompts) -> Int[Tensor, " batch"]:
        """The answer's token for each (legal) prompt."""
        return self.answer_tokens[torch.from_numpy(prompts.answer)]

    def tokens(self, ids: Sequence[int] | Tensor) -> list[str]:
        """Token strings, for display."""
        return list(self.tokenizer.convert_ids_to_tokens([int(i) for i in ids]))

    def first_mismatch(self, prompts: Prompts) -> str | None:
        """The first prompt whose table look-up differs from tokenizing its whole text; None if there is none."""
        answer = prompts.answer
        shown = np.where((answer >= 0) & (answer < self.limit), answer, 3).tolist()
        texts = prompts.text(self.template)
        whole = self._encode_texts([f"{text}{n}" for text, n in zip(texts, shown, strict=True)])
        rows = zip(texts, whole, self.encode(prompts).tolist(), strict=True)
        return next((text for text, tokens, ids in rows if tokens[:-1] != ids), None)  # without the answer's token

    def _check_sample(self) -> None:
        """Compare the tables with whole texts: every number beside every operator, with random partners."""
        random = random_source(0, "encoding check")
        usable = [OPERATORS.index(o) for o in self.operators]
        op1 = np.tile(np.arange(self.limit), len(usable))
        op2 = np.concatenate([random.permutation(self.limit) for _ in usable] or [op1])
        if (wrong := self.first_mismatch(Prompts(op1, np.repeat(usable, self.limit), op2))) is not None:
            problem = "depends on the neighbouring numbers, so positions are not fixed"
            advice = "choose another --template, for example one with spaces"
            raise UserError(f"The tokenizer splits {wrong!r} in a way that {problem}; {advice}.")

    def _check_decoded(self) -> None:
        """Refuse a tokenizer that reads a number or an operator as another one."""
        tables = self._op1.tolist(), self._op2.tolist(), self.answer_tokens.tolist()
        for slot, tokens in zip(("op1", "op2", "answer"), tables, strict=True):
            for number, text in enumerate(self._decode([[token] for token in tokens])):
                digits = "".join(letter for letter in text if letter.isdecimal())
                if not digits or int(digits) != number:
                    raise _misread(f"the number {number} as {slot}", text)
        for operator, text in zip(self.operators, self._decode([[t] for t in self._operators.values()]), strict=True):
            if operator not in text:
                raise _misread(f"the operator {operator}", text)
        examples = self.examples()
        texts = examples.text(replace(self.template, prefix=""))
        rows = torch.cat([self.encode(examples), self.answers(examples)[:, None]], dim=1).tolist()
        for text, answer, whole in zip(texts, examples.answer, self._decode(rows), strict=True):
            if not _symbols(whole).endswith(_symbols(f"{text}{answer}")):
                raise _misread(f"{text}{answer}", whole)

    def _decode(self, rows: list[list[int]]) -> list[str]:
        return list(self.tokenizer.batch_decode(rows, skip_special_tokens=False))

    def _text(self, slots: dict[str, str]) -> str:
        return self.template.render(slots["op1"], slots["operator"], slots["op2"]) + slots["answer"]

    def _encode_slot(self, slot: str, values: Sequence[str]) -> list[list[int]]:
        """Tokens of the reference prompt with other values in one slot."""
        return self._encode_texts([self._text({**_REFERENCE, slot: value}) for value in values])

    def _encode_texts(self, texts: list[str]) -> list[list[int]]:
        options = dict(add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)
        bos = [self.tokenizer.bos_token_id] if self.has_bos else []
        return [bos + list(row) for row in self.tokenizer(texts, **options)["input_ids"]]

    def _locate(self, slot: str, reference: list[int]) -> int:
        """Position of the one token that changes when only this slot does."""
        for row in self._encode_slot(slot, {"op1": "456", "op2": "567", "answer": "678", "operator": "-*/"}[slot]):
            differs = [i for i, (a, b) in enumerate(zip(reference, row, strict=False)) if a != b]
            if len(row) == len(reference) and len(differs) == 1:
                return differs[0]
        problem = f"No single token of {self._text(_REFERENCE)!r} stands for its {slot}; this tokenizer and template"
        raise UserError(f"{problem} cannot be used together, so try another --template (with or without spaces).")

    def _single_token(self, row: list[int], reference: list[int], at: int) -> int | None:
        """The token at `at` if it is known and the row is otherwise equal to the reference."""
        same = len(row) == len(reference) and row[:at] == reference[:at] and row[at + 1 :] == reference[at + 1 :]
        return row[at] if same and row[at] != self.tokenizer.unk_token_id else None

    def _number_tokens(self, slot: str, reference: list[int], at: int) -> list[int]:
        """Tokens of 0, 1, 2… in this slot, up to the first number that is not a distinct single token."""
        tokens: dict[int, None] = {}  # an ordered set
        blocks = ([str(n) for n in range(start, start + _BLOCK)] for start in count(0, _BLOCK))
        for row in chain.from_iterable(self._encode_slot(slot, block) for block in blocks):
            token = self._single_token(row, reference, at)
            if token is None or token in tokens:
                break
            tokens[token] = None
        return list(tokens)


def _symbols(text: str) -> str:
    """Digits, operators and equals signs of a text. Decoding may change the rest: spaces, letters, the first token."""
    return "".join(str(int(x)) if x.isdecimal() else x for x in text if x.isdecimal() or x in (*OPERATORS, "="))


def _misread(what: str, text: str) -> UserError:
    advice = "so its answers would mean nothing; use the tokenizer with which the model was trained"
    return UserError(f"The tokenizer reads {what} as {text.strip()!r}, {advice}.")
