"""A small GPT-2 whose weights are set by hand, so that its circuit for addition is known: a ground truth for discovery.

It answers a + b for every prompt `BOS a op b =` with operands up to MAX_OPERAND, whatever the operator. The residual
stream is cut into blocks, and each holds a one-hot vector, or nothing:

    TOKEN      which token stands here (from the token embedding, at every position)
    POSITION   which position this is (from the position embedding, at every position)
    OP1, OP2   which operand was copied here (at the last position only)
    SUM        which number the answer is (at the last position only)

Three components do the work, all of them at the last position:

    OP1_HEAD               attends to op1 and copies its number from TOKEN into OP1
    OP2_HEAD               attends to op2 and copies its number from TOKEN into OP2
    MLP of ADDING_LAYER    has a neuron for each pair (a, b), which fires if OP1 holds a and OP2 holds b and then writes
                           a + b into SUM

The unembedding reads SUM. All other heads and neurons are distractors: random weights read the residual stream, so they
attend and fire differently on each prompt, but what they write back is too weak to matter.

LayerNorm does not get in the way: as each block holds a one-hot, a vector's mean and deviation are the same for all
prompts (apart from the distractors' traces), and the weights after a LayerNorm undo it.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from arithscope.models.model import Identity, Model
from arithscope.models.untrained import number_tokenizer, untrained_model

MAX_OPERAND = 30
LAYERS, HEADS = 5, 4
OP1_HEAD, OP2_HEAD = (1, 2), (2, 0)  # layer, head
ADDING_LAYER = 3

OPERANDS = MAX_OPERAND + 1
PAIRS = OPERANDS**2  # neurons a · OPERANDS + b of the adding layer; the rest of that layer are distractors
SUMS = 2 * MAX_OPERAND + 1
TOKENS = SUMS + 9  # the numbers, whose token ids are the numbers themselves; then operators, `=` and special tokens
BOS_POSITION, OP1_POSITION, OPERATOR_POSITION, OP2_POSITION, LAST_POSITION = POSITIONS = range(5)

HEAD_DIM = 50  # wide enough for the one-hot of an operand
WIDTH = HEADS * HEAD_DIM  # two entries more than the blocks need
NEURONS = 1024


def consecutive(*sizes: int) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]


TOKEN, POSITION, OP1, OP2, SUM = consecutive(TOKENS, len(POSITIONS), OPERANDS, OPERANDS, SUMS)

SINK_SCORE, TARGET_SCORE = 10.0, 20.0  # attention scores that differ by 10 put nearly all weight on one position
FIRING = 8.0  # a pair's neuron gets +8 if both operands are there, −8 if only one is: GELU gives 8 and 0
SUM_SIZE = 50.0  # all other one-hots have size 1: a briefly trained linear probe reads the sum, but not the operands
ANSWER_MARGIN = 6.5  # of the answer's logit over all others: a probability of about 0.9, which can fall and rise
READING, WRITING = 0.05, 0.001  # deviations of the distractors' weights, to and from the residual stream


@cache
def copy_and_add() -> Model:
    """The hand-built model, in float32 on the CPU."""
    tokenizer = number_tokenizer(SUMS)
    config = dict(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=NEURONS, n_positions=16, tie_word_embeddings=False
    )
    hf_model = untrained_model("gpt2", config, tokenizer)
    with torch.no_grad():
        clear(hf_model)
        _embed(hf_model)
        distract(hf_model)
        _copy(hf_model, OP1_HEAD, OP1_POSITION, OP1)
        _copy(hf_model, OP2_HEAD, OP2_POSITION, OP2)
        _add(hf_model)
        _unembed(hf_model)
    return Model(hf_model, tokenizer, Identity("copy and add", "", "copy and add", "numbers"))


def clear(hf_model: Any) -> None:
    """All weights 0, but the gains of the LayerNorms 1."""
    for parameter in hf_model.parameters():
        parameter.zero_()
    for module in hf_model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.weight.fill_(1.0)


def _embed(hf_model: Any) -> None:
    hf_model.transformer.wte.weight[:, TOKEN] = torch.eye(TOKENS)
    hf_model.transformer.wpe.weight[: len(POSITIONS), POSITION] = torch.eye(len(POSITIONS))


def distract(hf_model: Any, writing: float = WRITING) -> None:
    """Make every head and neuron a distractor; the circuit then overwrites its own."""
    generator = torch.Generator().manual_seed(0)
    for layer in hf_model.transformer.h:
        for reader, writer in ((layer.attn.c_attn, layer.attn.c_proj), (layer.mlp.c_fc, layer.mlp.c_proj)):
            reader.weight.normal_(0.0, READING, generator=generator)
            writer.weight.normal_(0.0, writing, generator=generator)


def _copy(hf_model: Any, head: tuple[int, int], source: int, target: slice) -> None:
    """Let a head copy the operand at position `source` to the last position, into the block `target`.

    Two entries of query and key fix the attention: at the last position it goes to `source`; at all others it goes to
    BOS, which holds no operand, so that nothing is copied there.
    """
    query, key, value = (torch.zeros(WIDTH, HEAD_DIM) for _ in range(3))
    query[POSITION.start + LAST_POSITION, 0] = TARGET_SCORE
    query[POSITION, 1] = SINK_SCORE  # each position has its one-hot, so this is a constant
    key[POSITION.start + source, 0] = 1.0
    key[POSITION.start + BOS_POSITION, 1] = 1.0
    value[:OPERANDS, :OPERANDS] = torch.eye(OPERANDS)

    layer, index = head
    attention = hf_model.transformer.h[layer].attn
    own = slice(index * HEAD_DIM, (index + 1) * HEAD_DIM)  # the head's part of queries, of keys and of values
    for part, weight in enumerate((query * sqrt(HEAD_DIM), key, value)):  # scores are divided by √HEAD_DIM
        columns = slice(part * WIDTH + own.start, part * WIDTH + own.stop)
        # One-hots here: token and position.
        attention.c_attn.weight[:, columns], attention.c_attn.bias[columns] = after_norm(weight, 1.0, 1.0)
    attention.c_proj.weight[own] = 0.0
    attention.c_proj.weight[own.start : own.start + OPERANDS, target] = torch.eye(OPERANDS)


def _add(hf_model: Any) -> None:
    """Neuron (a, b) gets FIRING · (2 · OP1[a] + 2 · OP2[b] − 3) and, firing, writes SUM_SIZE into SUM[a + b]."""
    pair = torch.arange(PAIRS)
    a, b = pair // OPERANDS, pair % OPERANDS
    weight = torch.zeros(WIDTH, PAIRS)
    weight[OP1.start + a, pair] = 2 * FIRING
    weight[OP2.start + b, pair] = 2 * FIRING

    mlp = hf_model.transformer.h[ADDING_LAYER].mlp
    # One-hots here: token, position and both operands.
    mlp.c_fc.weight[:, :PAIRS], mlp.c_fc.bias[:PAIRS] = after_norm(weight, 1.0, 1.0, 1.0, 1.0)
    mlp.c_fc.bias[:PAIRS] -= 3 * FIRING
    mlp.c_proj.weight[:PAIRS] = 0.0
    mlp.c_proj.weight[pair, SUM.start + a + b] = SUM_SIZE / FIRING


def _unembed(hf_model: Any) -> None:
    """The logit of each number is its entry of SUM, scaled so that the answer leads by ANSWER_MARGIN.

    The bias that would undo the LayerNorm's mean does not exist here; it is small, and the same for all numbers.
    """
    weight = torch.zeros(WIDTH, TOKENS)
    weight[SUM, :SUMS] = torch.eye(SUMS) * ANSWER_MARGIN / SUM_SIZE
    scaled, _ = after_norm(weight, 1.0, 1.0, 1.0, 1.0, SUM_SIZE)
    hf_model.lm_head.weight.copy_(scaled.T)


def after_norm(weight: Tensor, *one_hots: float) -> tuple[Tensor, Tensor]:
    """Weight and bias that, applied to LayerNorm(x), give x @ weight, for any x made of one-hots of the given sizes."""
    x = torch.zeros(len(weight))
    x[: len(one_hots)] = torch.tensor(one_hots)
    deviation = (x.var(correction=0) + 1e-5).sqrt()  # 1e-5 is the epsilon of GPT-2's LayerNorm
    return weight * deviation, x.mean() * weight.sum(0)
