"""Training data as tokens: arithmetic with its answers, and texts of the other tasks, drawn batch by batch."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.untrained import number_tokenizer
from arithscope.prompts import OPERATORS, Prompts
from arithscope.training.corpus import TASKS, WORDS, Draw, Drawn, Part, Texts
from arithscope.training.pairs import digits, split_pairs
from arithscope.training.recipe import DataRecipe, Recipe

IGNORED = -100  # target of a position at which nothing is to be predicted, as in torch's cross-entropy
_BLANK = -1  # a leading zero, which is not written


class Batch(NamedTuple):
    """Token ids, the token to predict at each position (or IGNORED), and where the sparsity penalty applies: in arithmetic,
    wherever a token of the answer is predicted, and at the last token of op2."""

    tokens: Int[Tensor, "rows length"]
    targets: Int[Tensor, "rows length"]
    penalised: Bool[Tensor, "rows length"]


class Writer:
    """Writes texts as rows of tokens, as the recipe's tokenizer reads them."""

    def __init__(self, data: DataRecipe):
        self.data = data
        self.tokenizer = number_tokenizer(data.numbers, WORDS if data.tasks else (), data.digits)
        self._places = len(str(data.numbers - 1)) if data.digits else 1
        self._words: dict[tuple[tuple[str, ...], torch.device], Tensor] = {}

    def tokens(self, part: Part, size: int, device: torch.device) -> Int[Tensor, "size width"]:
        """Tokens of one part of `size` texts; _BLANK where a number has fewer digits than others."""
        if isinstance(part, Drawn):
            return self._word_tokens(part.words, device)[part.which][:, None]
        if isinstance(part, str):
            return self._word_tokens((part,), device).expand(size, 1)
        if not self.data.digits:
            return part[:, None]  # numbers come first in the vocabulary
        powers = 10 ** torch.arange(self._places - 1, -1, -1, device=device)
        leading = (part[:, None] < powers) & (powers > 1)
        return torch.where(leading, _BLANK, part[:, None] // powers % 10)

    def _word_tokens(self, words: tuple[str, ...], device: torch.device) -> Int[Tensor, " words"]:
        """Kept on the device: copying them there for every batch would wait for the GPU each time."""
        if (words, device) not in self._words:
            self._words[words, device] = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(words)), device=device)
        return self._words[words, device]

    def write(self, texts: Texts, size: int, device: torch.device, arithmetic: bool = False) -> Batch:
        """The texts after a BOS token, padded at the end; from part `first` on, tokens are to be predicted."""
        columns = [self.tokens(part, size, device) for part in ("<bos>", *texts.parts)]
        rows = torch.cat(columns, dim=1)
        first = sum(column.shape[1] for column in columns[: texts.first + 1])
        wanted = torch.where(torch.arange(rows.shape[1], device=device) >= first, rows, IGNORED)
        if self.data.digits:  # close the gaps that leading zeros leave
            order = (rows == _BLANK).byte().argsort(dim=1, stable=True)
            rows, wanted = rows.gather(1, order), wanted.gather(1, order)
            wanted = wanted.masked_fill(rows == _BLANK, IGNORED)
            rows = rows.masked_fill(rows == _BLANK, self.tokenizer.pad_token_id)
        targets = torch.full_like(wanted, IGNORED)
        targets[:, :-1] = wanted[:, 1:]
        answering = targets != IGNORED
        penalised = answering | answering.roll(-1, dims=1)  # the token before "=" is the last one of op2
        return Batch(rows, targets, penalised & arithmetic)

    def prompts(self, prompts: Prompts) -> Batch:
        """Prompts of one operator, with their answers."""
        columns = (torch.from_numpy(x) for x in (prompts.op1, prompts.op2, prompts.answer))
        return self.arithmetic(OPERATORS[int(prompts.operator[0])], *columns)

    def arithmetic(self, operator: str, op1: Tensor, op2: Tensor, answers: Tensor) -> Batch:
        """Arithmetic of one operator; where numbers are written in digits, an end token follows."""
        end = ["<eos>"] if self.data.digits else []
        return self.write(Texts([op1, operator, op2, "=", answers, *end], 4), len(op1), op1.device, arithmetic=True)


class Batches:
    """`batches[step]`, drawn with replacement; it depends only on seed and step.

    Each task has its share of the rows, and arithmetic the rest: equally many for each operator, and for each pair of
    operand lengths where numbers are written in digits. A share `noise` of the answers is changed by up to ±`noise_width`.
    """

    def __init__(self, recipe: Recipe, writer: Writer, device: torch.device):
        self.recipe, self.writer, self.device = recipe, writer, device
        self._pools = {
            o: self._pool(seen) for o, (seen, _) in split_pairs(recipe.data, recipe.seed).items() if len(seen)
        }
        if not self._pools:
            raise UserError("The recipe leaves nothing to train on; give a larger share in [data.seen].")

    def _pool(self, seen: Prompts) -> tuple[Tensor, ...]:
        """Operands and answers sorted by layout, and where each layout begins and ends. Whole numbers have one layout."""
        layout = 10 * digits(seen.op1) + digits(seen.op2) if self.recipe.data.digits else np.zeros(len(seen), dtype=int)
        seen = seen[np.argsort(layout, kind="stable")]
        sizes = np.unique(layout, return_counts=True)[1]
        columns = seen.op1, seen.op2, seen.answer, np.cumsum(sizes) - sizes, sizes
        return tuple(torch.from_numpy(x).to(self.device) for x in columns)

    def __getitem__(self, step: int) -> Batch:
        data, schedule = self.recipe.data, self.recipe.schedule
        random = torch.Generator(self.device).manual_seed(self.recipe.seed * 1_000_003 + step)
        rows = {task: round(share * schedule.batch_size) for task, share in data.tasks.items()}
        each = max(1, (schedule.batch_size - sum(rows.values())) // len(self._pools))
        parts = [self._arithmetic(operator, Draw(each, data.numbers, random)) for operator in self._pools]
        for task, size in rows.items():
            if size:
                texts = TASKS[task](Draw(size, data.numbers, random))
                parts.append(self.writer.write(texts, size, self.device))
        return _stack(parts, self.writer.tokenizer.pad_token_id)

    def _arithmetic(self, operator: str, draw: Draw) -> Batch:
        data = self.recipe.data
        op1, op2, answers, starts, sizes = self._pools[operator]
        layout = draw.integers(0, len(sizes))
        rows = starts[layout] + draw.below(sizes[layout])
        offset = draw.integers(-data.noise_width, data.noise_width + 1)
        noisy = draw.share(data.noise)
        given = torch.where(noisy, (answers[rows] + offset).clamp(0, data.numbers - 1), answers[rows])
        return self.writer.arithmetic(operator, op1[rows], op2[rows], given)


def _stack(parts: list[Batch], padding: int) -> Batch:
    """One batch, padded at the end to the longest text."""
    length = max(part.tokens.shape[1] for part in parts)
    fields = zip(*parts, strict=True)
    filled = [
        torch.cat([torch.nn.functional.pad(x, (0, length - x.shape[1]), value=value) for x in field])
        for field, value in zip(fields, (padding, IGNORED, False), strict=True)
    ]
    return Batch(*filled)
