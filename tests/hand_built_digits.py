"""A small GPT-2 whose weights are set by hand, and which adds numbers of two digits, a token each: a known carry.

It answers `BOS a1 a2 op b1 b2 =` (whatever the operator) at every step, for sums of two digits and of three. The residual
stream is cut into blocks, and each holds a one-hot vector, or nothing:

    TOKEN, POSITION    which token stands here, and at which position (from the embeddings, everywhere)
    UNITS1             the units of op1 (at op2.2; later where answers are made)
    CARRY              whether the units carry (at op2.2; later where answers are made)
    TENS1, TENS2, UNITS2, TENS_SUM, UNITS_SUM, DIGIT     only where answers are made: last, answer.1 and answer.2

What happens, layer by layer:

    1  UNITS_HEAD          at op2.2, copies the units of op1
    2  MLP                 at op2.2, CARRY: a neuron for each pair of units. The carry arises here, and nowhere else
    3  TENS_HEADS          copy the tens of op1 and op2 to where answers are made
    4  CARRY_HEAD          copies CARRY from op2.2 to where answers are made
       ANSWER_UNITS_HEADS  copy the units of op1 and op2 there
    5  MLP                 TENS_SUM, of the tens and CARRY; UNITS_SUM, of the units, modulo 10
    6  MLP                 DIGIT: which digit is asked for depends on the position, and on whether TENS_SUM is 10 or more

Layer 0, and all other heads and neurons, are distractors, as in `hand_built`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from arithscope.models.model import Identity, Model
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import Layout, Stratum
from tests.hand_built import after_norm, clear, consecutive, distract

LONG_SUMS = Stratum((10, 99), (10, 99), (100, 198), Layout((1, 0), (1, 0), (2, 1, 0)))
SHORT_SUMS = Stratum((10, 99), (10, 99), (20, 99), Layout((1, 0), (1, 0), (1, 0)))

LAYERS, HEADS = 7, 4
UNITS_HEAD = (1, 2)  # layer, head
CARRYING_LAYER, CARRYING_POSITION = 2, "op2.2"  # where the carry arises
TENS_HEADS = (3, 0), (3, 3)  # of op1 and op2
CARRY_HEAD = (4, 1)
ANSWER_UNITS_HEADS = (4, 0), (4, 2)
SUMMING_LAYER, WRITING_LAYER = 5, 6

TOKENS = 19  # the digits, whose token ids are the digits themselves; then operators, `=` and special tokens
NAMES = ("bos", "op1.1", "op1.2", "operator", "op2.1", "op2.2", "last", "answer.1", "answer.2")
ANSWERING = LAST, ANSWER1, ANSWER2 = tuple(map(NAMES.index, NAMES[6:]))
HEAD_DIM = 32
WIDTH = HEADS * HEAD_DIM  # some entries more than the blocks need
NEURONS = 384

_SIZES = TOKENS, len(NAMES), 10, 10, 10, 10, 2, 20, 10, 10
TOKEN, POSITION, TENS1, TENS2, UNITS1, UNITS2, CARRY, TENS_SUM, UNITS_SUM, DIGIT = consecutive(*_SIZES)
DIGIT_TOKENS = slice(TOKEN.start, TOKEN.start + 10)

SINK_SCORE, TARGET_SCORE = 10.0, 30.0  # attention scores that differ by 20 put nearly all weight on one position
FIRING = 12.0  # a neuron gets +12 if all it looks for is there, −12 or less otherwise: GELU gives 12 and 0
WRITING = (
    0.0003  # deviation of the distractors' weights to the residual stream; neurons that look for three things add it up
)
ANSWER_MARGIN = 5.5  # of the answer's logit over all others: a probability of about 0.9


@cache
def carry_adder() -> Model:
    """The hand-built model, in float32 on the CPU. Use it `at` a step of LONG_SUMS or SHORT_SUMS."""
    tokenizer = number_tokenizer(10, digits=True)
    config = dict(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=NEURONS, n_positions=16, tie_word_embeddings=False
    )
    hf_model = untrained_model("gpt2", config, tokenizer)
    with torch.no_grad():
        clear(hf_model)
        hf_model.transformer.wte.weight[:, TOKEN] = torch.eye(TOKENS)
        hf_model.transformer.wpe.weight[: len(NAMES), POSITION] = torch.eye(len(NAMES))
        distract(hf_model, WRITING)
        _copy_everything(hf_model)
        _carry(hf_model)
        _sum(hf_model)
        _write(hf_model)
        weight = torch.zeros(WIDTH, TOKENS)
        weight[DIGIT, :10] = torch.eye(10) * ANSWER_MARGIN
        hf_model.lm_head.weight.copy_(after_norm(weight, *[1.0] * 10)[0].T)
    return Model(hf_model, tokenizer, Identity("carry adder", "", "carry adder", "digits"))


def _copy_everything(hf_model: Any) -> None:
    """Each head, with what it copies from where, and the number of one-hots there and where it is copied to."""
    op1_tens, op1_units, op2_tens, op2_units = (NAMES.index(name) for name in ("op1.1", "op1.2", "op2.1", "op2.2"))
    _copy(hf_model, UNITS_HEAD, op1_units, [op2_units], DIGIT_TOKENS, UNITS1, 2, 2)
    for head, source, block in zip(TENS_HEADS, (op1_tens, op2_tens), (TENS1, TENS2), strict=True):
        _copy(hf_model, head, source, ANSWERING, DIGIT_TOKENS, block, 2, 2)
    _copy(hf_model, CARRY_HEAD, op2_units, ANSWERING, CARRY, CARRY, 4, 4)
    _copy(hf_model, ANSWER_UNITS_HEADS[0], op1_units, ANSWERING, DIGIT_TOKENS, UNITS1, 2, 4)
    _copy(hf_model, ANSWER_UNITS_HEADS[1], op2_units, ANSWERING, DIGIT_TOKENS, UNITS2, 4, 4)


def _copy(
    hf_model: Any,
    head: tuple[int, int],
    source: int,
    targets: Sequence[int],
    read: slice,
    write: slice,
    one_hots_at_source: int,
    one_hots_at_targets: int,
) -> None:
    """Let a head copy a block from one position to others; elsewhere it attends to BOS, where the block is empty."""
    query, key, value = (torch.zeros(WIDTH, HEAD_DIM) for _ in range(3))
    query[[POSITION.start + target for target in targets], 0] = TARGET_SCORE
    query[POSITION, 1] = SINK_SCORE  # each position has its one-hot, so this is a constant
    key[POSITION.start + source, 0] = 1.0
    key[POSITION.start + NAMES.index("bos"), 1] = 1.0
    size = write.stop - write.start
    value[read, :size] = torch.eye(size)

    layer, index = head
    attention = hf_model.transformer.h[layer].attn
    own = slice(index * HEAD_DIM, (index + 1) * HEAD_DIM)  # the head's part of queries, of keys and of values
    counts = one_hots_at_targets, one_hots_at_source, one_hots_at_source
    parts = query * sqrt(HEAD_DIM), key, value  # scores are divided by √HEAD_DIM
    for part, (weight, count) in enumerate(zip(parts, counts, strict=True)):
        columns = slice(part * WIDTH + own.start, part * WIDTH + own.stop)
        attention.c_attn.weight[:, columns], attention.c_attn.bias[columns] = after_norm(weight, *[1.0] * count)
    attention.c_proj.weight[own] = 0.0
    attention.c_proj.weight[own.start : own.start + size, write] = torch.eye(size)


def _carry(hf_model: Any) -> None:
    """At op2.2, the units of op2 are the token itself. Three one-hots: token, position and the units of op1."""
    _look_up(hf_model, CARRYING_LAYER, 0, 3, (UNITS1, DIGIT_TOKENS), CARRY, lambda a, b: int(a + b >= 10))


def _sum(hf_model: Any) -> None:
    """Seven one-hots: token, position, both tens, both units and the carry."""
    used = _look_up(hf_model, SUMMING_LAYER, 0, 7, (TENS1, TENS2, CARRY), TENS_SUM, lambda a, b, carry: a + b + carry)
    _look_up(hf_model, SUMMING_LAYER, used, 7, (UNITS1, UNITS2), UNITS_SUM, lambda a, b: (a + b) % 10)


def _write(hf_model: Any) -> None:
    """Nine one-hots: those that were there, and both sums. What is asked for at each position:

    last        the hundreds, 1, if the tens make 10 or more; else the tens
    answer.1    the tens if the tens make 10 or more; else the units
    answer.2    the units
    """
    at_last, at_answer1, at_answer2 = (slice(POSITION.start + at, POSITION.start + at + 1) for at in ANSWERING)
    small, large = slice(TENS_SUM.start, TENS_SUM.start + 10), slice(TENS_SUM.start + 10, TENS_SUM.stop)
    used = 0
    for blocks, digit in (
        ((at_last, small), lambda _, tens: tens),
        ((at_last, large), lambda _, tens: 1),
        ((at_answer1, large), lambda _, tens: tens),
        ((at_answer1, small, UNITS_SUM), lambda _, tens, units: units),
        ((at_answer2, UNITS_SUM), lambda _, units: units),
    ):
        used = _look_up(hf_model, WRITING_LAYER, used, 9, blocks, DIGIT, digit)


def _look_up(
    hf_model: Any,
    layer: int,
    used: int,
    one_hots: int,
    blocks: Sequence[slice],
    write: slice,
    value: Callable[..., int],
) -> int:
    """Add a neuron for each combination of what the blocks can hold, which writes the one-hot of `value` of this combination.

    `used` is the number of neurons of the layer that are used already. Returns how many are used now.
    """
    sizes = [range(block.stop - block.start) for block in blocks]
    combinations = torch.cartesian_prod(*(torch.arange(len(size)) for size in sizes)).view(-1, len(blocks))
    own = slice(used, used + len(combinations))
    weight = torch.zeros(WIDTH, len(combinations))
    for block, held in zip(blocks, combinations.T, strict=True):
        weight[block.start + held, torch.arange(len(held))] = 2 * FIRING
    mlp = hf_model.transformer.h[layer].mlp
    mlp.c_fc.weight[:, own], mlp.c_fc.bias[own] = after_norm(weight, *[1.0] * one_hots)
    mlp.c_fc.bias[own] -= (2 * len(blocks) - 1) * FIRING
    mlp.c_proj.weight[own] = 0.0
    written = torch.tensor([value(*held) for held in combinations.tolist()])
    mlp.c_proj.weight[used + torch.arange(len(written)), write.start + written] = 1 / FIRING
    return own.stop


def holding(block: slice, residual: Tensor) -> Tensor:
    """Whether a block of residual streams [..., width] holds a one-hot."""
    return residual[..., block].sum(-1) > 0.5
