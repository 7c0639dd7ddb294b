"""What a tokenizer does to a prompt, found out by encoding whole texts.

One slot of a prompt (op1, operator, op2, answer) is varied at a time; the tokens that change are the slot's. Nothing is assumed
about how numbers are cut: into digits, chunks of three from the left or from the right, or not at all.
"""

from collections.abc import Sequence
from itertools import accumulate, chain, count
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.models.chat import surroundings_of
from arithscope.prompts import OPERATORS, Ints, Place, Template
from arithscope.prompts.stratum import Places, Range, place_of

_REFERENCE = {"op1": "1", "operator": "+", "op2": "2", "answer": "3"}
NUMBERS = ("op1", "op2", "answer")  # slots that hold numbers
_BLOCK = 128  # numbers tried at a time while looking for the single-token limit


class TokenizerReader:
    """Reads how a tokenizer cuts prompts of one template.

    Attributes:
        has_bos: Whether prompts begin with a BOS token.
        surroundings: What a chat template writes around the text of a prompt.
        reference: Tokens of the template with one-digit numbers and an answer.
        where: Position of each slot's token in the reference.
    """

    def __init__(self, tokenizer: Any, template: Template):
        self.tokenizer, self.template = tokenizer, template
        self.has_bos = tokenizer.bos_token_id is not None
        self.surroundings = surroundings_of(tokenizer, template)
        self._slots = {**_REFERENCE, "operator": self._reference_operator()}
        text = self._text(self._slots)
        [self.reference] = self.encode_texts([text])
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in self.reference[int(self.has_bos) :]:
            advice = "choose a --template and --prefix that it can read"
            raise UserError(f"The tokenizer does not know every character of {text!r}; {advice}.")
        self.where = where = {slot: self._locate(slot) for slot in self._slots}
        last = len(self.reference) - 1
        if where["answer"] != last or not where["op1"] < where["operator"] < where["op2"] < last - 1:
            tokens = " ".join(repr(t) for t in tokenizer.convert_ids_to_tokens(self.reference))
            advice = f"choose another template in which all these are separate tokens, such as {template.respaced()}"
            raise UserError(f"The tokenizer joins parts of the prompt, reading {text!r} as {tokens}; {advice}.")

    def encode_texts(self, texts: list[str]) -> list[list[int]]:
        """Tokens of whole texts, after BOS."""
        options = dict(add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)
        bos = [self.tokenizer.bos_token_id] if self.has_bos else []
        return [bos + list(row) for row in self.tokenizer(texts, **options)["input_ids"]]

    def whole_text(self, text: str, answer: int | str) -> str:
        """A prompt with its answer, as the model gets it after BOS."""
        return f"{self.surroundings.around(text)}{answer}"

    def decode(self, rows: list[list[int]]) -> list[str]:
        # No rows would be read as one empty row.
        return list(self.tokenizer.batch_decode(rows, skip_special_tokens=False)) if rows else []

    def operator_tokens(self) -> dict[str, int]:
        """The token of each operator that is a single one."""
        signs = zip(OPERATORS, self._encode_slot("operator", OPERATORS), strict=True)
        tokens = {operator: self._single_token("operator", row) for operator, row in signs}
        return {operator: token for operator, token in tokens.items() if token is not None}

    def whole_numbers(self, slot: str) -> list[int]:
        """Tokens of 0, 1, 2… in this slot, up to the first number that is not a distinct single token."""
        tokens: dict[int, None] = {}  # an ordered set
        blocks = ([str(n) for n in range(start, start + _BLOCK)] for start in count(0, _BLOCK))
        for row in chain.from_iterable(self._encode_slot(slot, block) for block in blocks):
            token = self._single_token(slot, row)
            if token is None or token in tokens:
                break
            tokens[token] = None
        return list(tokens)

    def number_tokens(self, slot: str, numbers: Sequence[str]) -> list[list[int] | None]:
        """Tokens of numbers in this slot; None where other parts of the prompt change with the number."""
        before, after = self.reference[: self.where[slot]], self.reference[self.where[slot] + 1 :]
        found: list[list[int] | None] = []
        for row in self._encode_slot(slot, numbers):
            end = len(row) - len(after)
            same = end > len(before) and row[: len(before)] == before and row[end:] == after
            own = row[len(before) : end]
            found.append(own if same and self.tokenizer.unk_token_id not in own else None)
        return found

    def places(self, slot: str, numbers: Ints) -> list[Places | None]:
        """Which digits each token of these numbers holds; None for a number that is not cut between its digits."""
        texts = [str(n) for n in numbers.tolist()]
        rows = self.number_tokens(slot, texts)
        distinct = sorted({token for row in rows if row for token in row})
        digits = {t: digits_of(text) for t, text in zip(distinct, self.decode([[t] for t in distinct]), strict=True)}
        found: list[Places | None] = []
        for text, row in zip(texts, rows, strict=True):
            parts = [digits[token] for token in row or []]
            proper = all(parts) and "".join(parts) == text
            ends = list(accumulate(len(part) for part in reversed(parts)))
            found.append(tuple(reversed([0, *ends[:-1]])) if proper else None)
        return found

    def token_tables(self, slot: str, between: Range, places: Places) -> list[Ints]:
        """For each token of the numbers in a range, the token of each of its values; −1 for values that none of them has.

        Raises:
            UserError: If a number is not cut into these places.
        """
        tables = []
        for index in range(len(places)):
            size, examples = _values(place_of(places, index), between)
            table = np.full(size, -1, dtype=np.int64)
            texts = [str(n) for n in examples.values()]
            for value, text, row in zip(examples, texts, self.number_tokens(slot, texts), strict=True):
                if row is None or len(row) != len(places):
                    shown = "joins with what surrounds it" if row is None else f"is cut into {len(row)} tokens"
                    others = f"but others of {between[0]}…{between[1]} into {len(places)}"
                    raise UserError(
                        f"As {slot}, {text} {shown}, {others}; choose other operands or another --template."
                    )
                table[value] = row[index]
            tables.append(table)
        return tables

    def _text(self, slots: dict[str, str]) -> str:
        text = self.template.render(slots["op1"], slots["operator"], slots["op2"])
        return self.whole_text(text, slots["answer"])

    def _reference_operator(self) -> str:
        """The operator of the reference prompt: `+`, or if that is a word, the first with the fewest tokens, all known."""
        if self.template.sign("+") == "+":
            return "+"
        rows = self.encode_texts([self._text({**_REFERENCE, "operator": operator}) for operator in OPERATORS])
        order = [(self.tokenizer.unk_token_id in row, len(row)) for row in rows]
        return OPERATORS[order.index(min(order))]

    def _encode_slot(self, slot: str, values: Sequence[str]) -> list[list[int]]:
        """Tokens of the reference prompt with other values in one slot."""
        return self.encode_texts([self._text({**self._slots, slot: value}) for value in values])

    def _locate(self, slot: str) -> int:
        """Position of the one token that changes when only this slot does."""
        operators = [operator for operator in OPERATORS if operator != self._slots["operator"]]
        others = {"op1": "456", "op2": "567", "answer": "678", "operator": operators}
        for row in self._encode_slot(slot, others[slot]):
            differs = [i for i, (a, b) in enumerate(zip(self.reference, row, strict=False)) if a != b]
            if len(row) == len(self.reference) and len(differs) == 1:
                return differs[0]
        problem = f"No single token of {self._text(self._slots)!r} stands for its {slot}; this tokenizer and template"
        raise UserError(f"{problem} cannot be used together, so try another --template (with or without spaces).")

    def _single_token(self, slot: str, row: list[int]) -> int | None:
        """The token in a slot if it is known and the row is otherwise equal to the reference."""
        at, reference = self.where[slot], self.reference
        same = len(row) == len(reference) and row[:at] == reference[:at] and row[at + 1 :] == reference[at + 1 :]
        return row[at] if same and row[at] != self.tokenizer.unk_token_id else None


def _values(place: Place, between: Range) -> tuple[int, dict[int, int]]:
    """How many values a token can have, and for each that occurs the smallest number of a range with it."""
    (low, high), unit = between, 10**place.low
    if place.high is None:  # the first token, which has no leading zeros
        return high // unit + 1, {value: max(low, value * unit) for value in range(low // unit, high // unit + 1)}
    cycle, smallest = 10**place.high, {}
    for value in range(cycle // unit):
        start = low // cycle * cycle + value * unit
        smallest[value] = max(low, start) if start + unit > low else start + cycle
    return cycle // unit, {value: n for value, n in smallest.items() if n <= high}


def digits_of(text: str) -> str:
    """The decimal digits in a token's text."""
    return "".join(letter for letter in text if letter.isdecimal())
