"""Asking a model some prompts, as it is or with neurons silenced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
import torch

from arithscope.errors import UserError
from arithscope.experiments.answers import Answers
from arithscope.experiments.samples import batches
from arithscope.prompts import Prompts, parse_prompt, together
from arithscope.subject.edits import editing, silencing
from arithscope.subject.subject import Subject


@torch.no_grad()
def ask(
    subject: Subject,
    prompts: str | Sequence[str] | Prompts,
    without: Iterable[tuple[int, int]] | pd.DataFrame = (),
) -> pd.DataFrame:
    """What the model answers: prompt, answer (the right one), predicted (−1 if the model's token is no number), correct,
    p_answer (the right answer's probability). `without`: neurons that are set to zero at the last position, as pairs (layer,
    neuron) or as a table with these columns."""
    asked = prompts if isinstance(prompts, Prompts) else _written(subject, prompts)
    gone = zip(without.layer, without.neuron, strict=True) if isinstance(without, pd.DataFrame) else without
    edits = silencing(subject, gone)
    answers = Answers(subject, asked)
    for rows, batch in batches(subject, asked, 0):
        with editing(subject, edits, len(batch)):
            answers.see(rows, subject.logits(subject.encode(batch)))
    template = subject.encoder.template
    return pd.DataFrame(
        {
            "prompt": [text.removeprefix(template.prefix) for text in asked.text(template)],
            "answer": asked.answer,
            "predicted": answers.predicted,
            "correct": answers.predicted == asked.answer,
            "p_answer": answers.p_answer,
        }
    )


def _written(subject: Subject, texts: str | Sequence[str]) -> Prompts:
    operators, limit = subject.encoder.operators, subject.limit
    texts = [texts] if isinstance(texts, str) else texts
    each = [parse_prompt(text, operators, limit - 1, limit) for text in texts]
    if not each:
        raise UserError("There is no prompt to ask; write one as in 226-68=.")
    return together(each)
