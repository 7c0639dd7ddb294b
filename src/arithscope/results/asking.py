"""Asking a model some prompts, as it is or with neurons silenced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
import torch

from arithscope.errors import UserError
from arithscope.experiments.common.answers import Answers
from arithscope.experiments.common.samples import batches
from arithscope.models.hooks import editing, zero_ablation
from arithscope.models.model import Model
from arithscope.prompts import Prompts, parse_prompt, together


@torch.no_grad()
def ask(
    model: Model,
    prompts: str | Sequence[str] | Prompts,
    without: Iterable[tuple[int, int]] | pd.DataFrame = (),
) -> pd.DataFrame:
    """What the model answers: prompt, answer (the right one), predicted (−1 if the model's token is no number), correct,
    p_answer (the right answer's probability). `without`: neurons that are set to zero at the last position, as pairs (layer,
    neuron) or as a table with these columns."""
    asked = prompts if isinstance(prompts, Prompts) else _written(model, prompts)
    gone = zip(without.layer, without.neuron, strict=True) if isinstance(without, pd.DataFrame) else without
    edits = zero_ablation(model, gone)
    answers = Answers(model, asked)
    for rows, batch in batches(model, asked, 0):
        with editing(model, edits, len(batch)):
            answers.see(rows, model.logits(model.encode(batch)))
    template = model.encoder.template
    return pd.DataFrame(
        {
            "prompt": [text.removeprefix(template.prefix) for text in asked.text(template)],
            "answer": asked.answer,
            "predicted": answers.predicted,
            "correct": answers.predicted == asked.answer,
            "p_answer": answers.p_answer,
        }
    )


def _written(model: Model, texts: str | Sequence[str]) -> Prompts:
    operators, limit = model.encoder.operators, model.limit
    texts = [texts] if isinstance(texts, str) else texts
    each = [parse_prompt(text, operators, limit - 1, limit) for text in texts]
    if not each:
        raise UserError("There is no prompt to ask; write one as in 226-68=.")
    return together(each)
