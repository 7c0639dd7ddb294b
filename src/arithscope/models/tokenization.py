"""From prompts to token ids, by tables that are read off the tokenizer.

Nothing is assumed about a tokenizer. Whole prompts with their answers are encoded, one slot (op1, operator, op2, answer)
is varied at a time, and the one token that changes is where that slot sits. The same comparison shows which numbers
keep a single token of their own. Encoding the operand square is then a table look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from arithscope.errors import UserError
from arithscope.prompts import OPERATORS, Prompts, Template, random_source

SLOTS = ("op1", "operator", "op2", "answer")
_REFERENCE = {"op1": "1", "operator": "+", "op2": "2", "answer": "3"}
_BLOCK = 128  # numbers tried at a time while looking for the single-token limit


@dataclass(frozen=True)
class Positions:
    """Token indices of the four named positions in an encoded prompt (BOS and prefix counted)."""

    op1: int
    operator: int
    op2: int
    last: int

    def named(self) -> dict[str, int]:
        return asdict(self)


class PromptEncoder:
    """Encodes prompts of one template with one tokenizer.

    limit      the single-token limit: every number 0…limit−1 is one token as op1, as op2 and as the answer
    length     tokens in a prompt, the same for all prompts, so nothing is ever padded
    positions  where op1, the operator, op2 and the last token are
    """

    def __init__(self, tokenizer: Any, template: Template):
        self.tokenizer, self.template = tokenizer, template
        self.has_bos = tokenizer.bos_token_id is not None
        reference = self._ids([_REFERENCE])[0]
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in reference[int(self.has_bos) :]:
            raise UserError(
                f"The tokenizer does not know every character of {self._text(_REFERENCE)!r}; "
                "choose a --template and --prefix that it can read."
            )
        where = {slot: self._locate(slot, reference) for slot in SLOTS}
        self.length = len(reference) - 1
        if where["answer"] != self.length or not where["op1"] < where["operator"] < where["op2"] < self.length - 1:
            shown = " ".join(repr(t) for t in tokenizer.convert_ids_to_tokens(reference))
            raise UserError(
                f"The tokenizer joins parts of the prompt, reading {self._text(_REFERENCE)!r} as {shown}; "
                "choose another --template in which op1, operator, op2, '=' and the answer are tokens of their own."
            )
        self.positions = Positions(where["op1"], where["operator"], where["op2"], self.length - 1)
        self._frame = reference[:-1]
        self._operators = {o: self._token("operator", o, reference, where) for o in OPERATORS}
        numbers = {slot: self._number_tokens(slot, reference, where) for slot in ("op1", "op2", "answer")}
        self.limit = min(len(tokens) for tokens in numbers.values())
        if self.limit < 2:
            raise UserError(
                "The tokenizer keeps not even 0 and 1 as single tokens in this template; try another --template (with or "
                "without spaces)."
            )
        self._op1, self._op2 = (np.array(numbers[s][: self.limit], dtype=np.int64) for s in ("op1", "op2"))
        self.answer_tokens: Int[Tensor, " limit"] = torch.tensor(numbers["answer"][: self.limit], dtype=torch.long)
        self._check_sample()

    @property
    def is_plain(self) -> bool:
        """Whether a prompt really is the paper's BOS + four tokens (without BOS where the tokenizer defines none)."""
        first = int(self.has_bos)
        return self.length == first + 4 and self.positions == Positions(first, first + 1, first + 2, first + 3)

    @property
    def labels(self) -> tuple[str, ...]:
        """What each position of a prompt is called: its name if it has one, else its token, numbered if it occurs again."""
        names = {index: name for name, index in self.positions.named().items()}
        tokens = self.tokens(self._frame)
        unnamed = [token for i, token in enumerate(tokens) if i not in names]
        numbered = (f"{token}:{i}" if unnamed.count(token) > 1 else token for i, token in enumerate(tokens))
        return tuple(names.get(i, label) for i, label in enumerate(numbered))

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that are one token of their own."""
        return tuple(o for o, token in self._operators.items() if token is not None)

    @property
    def top_token(self) -> int:
        """The largest token id that prompts and answers are made of."""
        signs = [token for token in self._operators.values() if token is not None]
        return max(*self._frame, *signs, *(int(x.max()) for x in (self._op1, self._op2, self.answer_tokens)))

    def examples(self) -> Prompts:
        """A few legal-looking prompts over all usable operators, large and small, for checks and for people to see."""
        top = min(self.limit - 1, 300)
        pairs = [(top * 3 // 4, top * 2 // 9), (2, top // 2), (top // 8, min(7, top)), (top, 3)]
        usable = [OPERATORS.index(o) for o in self.operators]
        picked = [usable[i % len(usable)] for i in range(len(pairs))] if usable else []
        pairs = pairs[: len(picked)]
        return Prompts(np.array([a for a, _ in pairs]), np.array(picked), np.array([b for _, b in pairs]))

    def check(self, operators: Sequence[str], max_operand: int) -> None:
        """Refuse operands and operators that are not single tokens."""
        if max_operand >= self.limit:
            raise UserError(
                f"The tokenizer keeps only the numbers 0…{self.limit - 1} as single tokens, so operands up to {max_operand} "
                f"cannot be studied; use --max-operand {self.limit - 1}."
            )
        missing = [o for o in operators if self._operators[o] is None]
        if missing:
            raise UserError(
                f"The operator {missing[0]!r} is not a single token in this template; "
                f"use --operators '{''.join(self.operators)}' or another --template."
            )

    def encode(self, prompts: Prompts) -> Int[Tensor, "batch length"]:
        """Token ids, every row of the same length. Operands must lie below the limit; answers need not be legal."""
        top = max(int(prompts.op1.max(initial=0)), int(prompts.op2.max(initial=0)))
        self.check([OPERATORS[i] for i in np.unique(prompts.operator)], top)
        ids = np.tile(np.array(self._frame, dtype=np.int64), (len(prompts), 1))
        ids[:, self.positions.op1] = self._op1[prompts.op1]
        ids[:, self.positions.op2] = self._op2[prompts.op2]
        table = np.array([-1 if self._operators[o] is None else self._operators[o] for o in OPERATORS], dtype=np.int64)
        ids[:, self.positions.operator] = table[prompts.operator]
        return torch.from_numpy(ids)

    def answers(self, prompts: Prompts) -> Int[Tensor, " batch"]:
        """The answer's token for each (legal) prompt."""
        return self.answer_tokens[torch.from_numpy(prompts.answer)]

    def tokens(self, ids: Sequence[int] | Tensor) -> list[str]:
        """Token strings, for people to read."""
        return list(self.tokenizer.convert_ids_to_tokens([int(i) for i in ids]))

    def disagreement(self, prompts: Prompts) -> str | None:
        """The first prompt whose table look-up differs from encoding its whole text, or None: the encoder's own check."""
        fast, slow = self.encode(prompts).tolist(), self._plain_ids(prompts)
        if slow == fast:
            return None
        row = next(i for i, (a, b) in enumerate(zip(slow, fast, strict=True)) if a != b)
        return prompts[[row]].text(self.template)[0]

    def _plain_ids(self, prompts: Prompts) -> list[list[int]]:
        """Whole prompts encoded as text, each with an answer behind it, whose token is then dropped."""
        answer = prompts.answer
        shown = np.where((answer >= 0) & (answer < self.limit), answer, 3).tolist()
        texts = [f"{text}{n}" for text, n in zip(prompts.text(self.template), shown, strict=True)]
        return [ids[:-1] for ids in self._ids_of(texts)]

    def _check_sample(self) -> None:
        """Compare table look-up and whole texts: every number beside every operator, with random partners."""
        random = random_source(0, "encoding check")
        usable = [OPERATORS.index(o) for o in self.operators]
        op1 = np.tile(np.arange(self.limit), len(usable))
        op2 = np.concatenate([random.permutation(self.limit) for _ in usable] or [op1])
        wrong = self.disagreement(Prompts(op1, np.repeat(usable, self.limit), op2))
        if wrong is not None:
            raise UserError(
                f"The tokenizer reads {wrong!r} in pieces that depend on the neighbouring numbers, so positions are "
                "not fixed; choose another --template, for example one with spaces."
            )

    def _text(self, filled: dict[str, str]) -> str:
        return self.template.render(filled["op1"], filled["operator"], filled["op2"]) + filled["answer"]

    def _ids(self, filled: Sequence[dict[str, str]]) -> list[list[int]]:
        return self._ids_of([self._text(f) for f in filled])

    def _ids_of(self, texts: list[str]) -> list[list[int]]:
        nothing_else = dict(add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)
        start = [self.tokenizer.bos_token_id] if self.has_bos else []
        return [start + list(row) for row in self.tokenizer(texts, **nothing_else)["input_ids"]]

    def _locate(self, slot: str, reference: list[int]) -> int:
        """The index of the one token that changes when only this slot does."""
        variants = {"op1": "456", "op2": "567", "answer": "678", "operator": "-*/"}[slot]
        for row in self._ids([{**_REFERENCE, slot: v} for v in variants]):
            differs = [i for i, (a, b) in enumerate(zip(reference, row, strict=False)) if a != b]
            if len(row) == len(reference) and len(differs) == 1:
                return differs[0]
        raise UserError(
            f"No single token of {self._text(_REFERENCE)!r} stands for its {slot}; this tokenizer and template cannot "
            "be used together, so try another --template (with or without spaces)."
        )

    def _token(self, slot: str, value: str, reference: list[int], where: dict[str, int]) -> int | None:
        return self._single(self._ids([{**_REFERENCE, slot: value}])[0], reference, where[slot])

    def _single(self, row: list[int], reference: list[int], at: int) -> int | None:
        """The token at `at` if the row is the reference but for that token, and the token is known."""
        same = len(row) == len(reference) and row[:at] == reference[:at] and row[at + 1 :] == reference[at + 1 :]
        return row[at] if same and row[at] != self.tokenizer.unk_token_id else None

    def _number_tokens(self, slot: str, reference: list[int], where: dict[str, int]) -> list[int]:
        """Tokens of 0, 1, 2… in this slot, up to the first number that has none of its own."""
        found: dict[int, None] = {}
        for start in count(0, _BLOCK):
            for row in self._ids([{**_REFERENCE, slot: str(n)} for n in range(start, start + _BLOCK)]):
                token = self._single(row, reference, where[slot])
                if token is None or token in found:
                    return list(found)
                found[token] = None
        raise AssertionError("unreachable")
