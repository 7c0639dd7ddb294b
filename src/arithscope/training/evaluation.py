"""How well a model in training answers, and its model card."""

import copy
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from arithscope.heuristics.kinds import Bools
from arithscope.prompts import Ints, Prompts, concatenate_prompts
from arithscope.stats.effects import log_probability
from arithscope.training.batches import IGNORED, Batch, Writer
from arithscope.training.corpus import TASKS, Draw
from arithscope.training.pairs import carries, digits, split_pairs
from arithscope.training.recipe import Recipe

ROWS = 16384  # prompts per forward pass
TEXTS = 2000  # of each other task
_TEMPLATES = Environment(
    loader=PackageLoader(__package__), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)


def answer_logits(model: Any, batch: Batch) -> tuple[Float[Tensor, "targets vocabulary"], Int[Tensor, " targets"]]:
    """Logits wherever a token is to be predicted, and these tokens."""
    tokens, targets = batch.tokens[:, :-1], batch.targets[:, :-1]  # nothing follows the last one
    hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    where = (targets != IGNORED).nonzero(as_tuple=True)
    return model.get_output_embeddings()(hidden[where]).float(), targets[where]


@torch.no_grad()
def answered(model: Any, batch: Batch) -> tuple[Bool[Tensor, " rows"], Float[Tensor, " rows"]]:
    """For each text, whether every token of the answer is the model's top token, and the probability of the answer.
    Given the right answer's first tokens, the model is right at every token exactly if it writes the answer by itself."""
    model.eval()
    device = next(model.parameters()).device
    batch = Batch(*(x.to(device) for x in batch))
    logits, targets = answer_logits(model, batch)
    rows = (batch.targets != IGNORED).nonzero()[:, 0]
    wrong, total = torch.zeros(2, len(batch.tokens), dtype=torch.double, device=device)
    wrong.index_add_(0, rows, (logits.argmax(-1) != targets).double())
    total.index_add_(0, rows, log_probability(logits, targets).double())
    return (wrong == 0).cpu(), total.exp().float().cpu()


def predict(model: Any, writer: Writer, prompts: Prompts) -> tuple[Bool[Tensor, " n"], Float[Tensor, " n"]]:
    """For each prompt of one operator, whether the model answers it correctly, and the answer's probability."""
    pieces = [answered(model, writer.prompts(prompts[start : start + ROWS])) for start in range(0, len(prompts), ROWS)]
    correct, probability = zip(*pieces, strict=True) if pieces else ((torch.zeros(0).bool(),), (torch.zeros(0),))
    return torch.cat(correct), torch.cat(probability)


def model_card(recipe: Recipe, model: torch.nn.Module, writer: Writer) -> str:
    """The model card as Markdown, measured on the weights as stored: rounded to half precision."""
    stored, data = copy.deepcopy(model).half().float(), recipe.data
    measured, lengths, chains = {}, {}, {}
    for operator, pairs in split_pairs(data, recipe.seed).items():
        outcomes = [predict(stored, writer, prompts) for prompts in pairs]
        counts = [(len(correct), int(correct.sum())) for correct, _ in outcomes]
        measured[operator] = *counts, sum(float(p[correct].double().sum()) for correct, p in outcomes)
        if data.digits:
            prompts, right = concatenate_prompts(pairs), torch.cat([correct for correct, _ in outcomes]).numpy()
            lengths[operator] = _counted(digits(prompts.op1), digits(prompts.op2), right)
            if operator == "+":
                chains = _counted(*carries(prompts.op1, prompts.op2), right)
    layouts = sorted({layout for counts in lengths.values() for layout in counts})
    parameters = sum(p.numel() for p in model.parameters())
    given = dict(recipe=recipe, data=data, schedule=recipe.schedule, parameters=parameters, measured=measured)
    by_digits = dict(lengths=lengths, layouts=layouts, chains=chains)
    return _TEMPLATES.get_template("model_card.md").render(given, **by_digits, tasks=_tasks(recipe, stored, writer))


def _tasks(recipe: Recipe, stored: torch.nn.Module, writer: Writer) -> dict[str, tuple[float, str | None, float]]:
    """For each other task: its share of a batch, an example, and the share of fresh texts that are completed correctly."""
    random, found = torch.Generator().manual_seed(recipe.seed), {}
    for name, share in recipe.data.tasks.items():
        texts = TASKS[name](Draw(TEXTS, recipe.data.numbers, random))
        correct, _ = answered(stored, writer.write(texts, TEXTS, random.device))
        found[name] = share, TASKS[name].__doc__, float(correct.double().mean())
    return found


def _counted(a: Ints, b: Ints, right: Bools) -> dict[tuple[int, int], tuple[int, int]]:
    """For each pair of values of a and b: prompts, and how many are answered correctly."""
    values, which = np.unique(np.stack([a, b]), axis=1, return_inverse=True)
    hits, sizes = np.bincount(which, right), np.bincount(which)
    return {(int(x), int(y)): (int(n), int(k)) for (x, y), n, k in zip(values.T, sizes, hits, strict=True)}
