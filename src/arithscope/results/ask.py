"""Asks a model some prompts, as it is or with neurons zero-ablated."""

from collections.abc import Iterable, Sequence

import pandas as pd
import torch

from arithscope.errors import UserError
from arithscope.experiments.common.samples import batches
from arithscope.experiments.means import Answers
from arithscope.models.hooks import editing, zero_ablation_edits
from arithscope.models.model import Model
from arithscope.prompts import Prompts, concatenate_prompts, parse_prompt


@torch.no_grad()
def ask(
    model: Model, prompts: str | Sequence[str] | Prompts, without: Iterable[tuple[int, int]] | pd.DataFrame = ()
) -> pd.DataFrame:
    """Ask a model some prompts.

    Args:
        model: The model.
        prompts: Texts such as `226-68=`, or prompts.
        without: Neurons to zero-ablate at the last position: pairs (layer, neuron), or a table with these columns.

    Returns:
        One row per prompt: prompt, answer (the right one), predicted (−1 if the model's token is no number), correct, and
        p_answer (probability of the right answer).

    Raises:
        UserError: If a text is no prompt, or there is none.

    Example:
        >>> arithscope.ask(arithscope.load("tiny-llama"), ["226-68=", "23+14="])
    """
    parsed = prompts if isinstance(prompts, Prompts) else _parse(model, prompts)
    ablated = zip(without.layer, without.neuron, strict=True) if isinstance(without, pd.DataFrame) else without
    edits, answers = zero_ablation_edits(model, ablated), Answers(model, parsed)
    for rows, batch in batches(model, parsed, 0):
        with editing(model, edits, len(batch)):
            answers.observe(rows, model.logits(model.encode(batch)))
    template = model.encoder.template
    return pd.DataFrame(
        {
            "prompt": [text.removeprefix(template.prefix) for text in parsed.text(template)],
            "answer": parsed.answer,
            "predicted": answers.predicted,
            "correct": answers.predicted == parsed.answer,
            "p_answer": answers.p_answer,
        }
    )


def _parse(model: Model, texts: str | Sequence[str]) -> Prompts:
    operators, limit = model.encoder.operators, model.limit
    texts = [texts] if isinstance(texts, str) else texts
    prompts = [parse_prompt(text, operators, limit - 1, limit) for text in texts]
    if not prompts:
        raise UserError("There is no prompt to ask; write one as in 226-68=.")
    return concatenate_prompts(prompts)
