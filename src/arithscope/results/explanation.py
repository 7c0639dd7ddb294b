"""A model's answers to prompts (`ask`), and the explanation of one by the heuristics of a run."""

from collections.abc import Iterable, Sequence

import pandas as pd
import torch

from arithscope.errors import UserError
from arithscope.experiments.classify import Classification
from arithscope.experiments.common.association import association
from arithscope.experiments.common.explanation import Explanation as Explanation
from arithscope.experiments.common.explanation import explain
from arithscope.experiments.common.samples import batches
from arithscope.experiments.means import Answers
from arithscope.models.hooks import editing, zero_ablation_edits
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, concatenate_prompts, parse_in_stratum, whole_numbers


@torch.no_grad()
def ask(
    model: Model, prompts: str | Sequence[str] | Prompts, without: Iterable[tuple[int, int]] | pd.DataFrame = ()
) -> pd.DataFrame:
    """Get a model's answers to prompts.

    Args:
        model: The model.
        prompts: Texts such as `226-68=`, or `Prompts`.
        without: Neurons to zero-ablate at the last position: pairs (layer, neuron), or a table with these columns.

    Returns:
        One row per prompt: prompt, answer (the right one), predicted (−1 if the model's token is not a number), correct, and
        p_answer (probability of the right answer).

    Raises:
        UserError: If a text is not a prompt, or there are no prompts.

    Example:
        >>> arithscope.ask(arithscope.load("tiny-llama"), ["226-68=", "23+14="])
    """
    if not isinstance(prompts, Prompts):
        encoder = model.encoder
        stratum = encoder.stratum or whole_numbers(model.limit - 1, model.limit)
        texts = [prompts] if isinstance(prompts, str) else prompts
        if not (parsed := [parse_in_stratum(text, encoder.operators, stratum) for text in texts]):
            raise UserError("There is no prompt to ask; write one as in 226-68=.")
        prompts = concatenate_prompts(parsed)
    ablated = zip(without.layer, without.neuron, strict=True) if isinstance(without, pd.DataFrame) else without
    edits = zero_ablation_edits(model, ablated)
    answers = Answers(model, prompts)
    for rows, batch in batches(model, prompts, 0):
        with editing(model, edits, len(batch)):
            answers.observe(rows, model.logits(model.encode(batch)))
    return pd.DataFrame(
        {
            "prompt": model.encoder.shown(prompts),
            "answer": prompts.result,
            "predicted": answers.predicted,
            "correct": answers.predicted == prompts.result,
            "p_answer": answers.p_answer,
        }
    )


def explain_prompt(
    model: Model, classification: Classification, prompt: Prompts, criterion: str, seed: int
) -> Explanation:
    """Explain one prompt with the heuristics of a classification, by raw or calibrated matches."""
    operator = OPERATORS[int(prompt.operator[0])]
    return explain(model, association(classification, operator, criterion), prompt, criterion, seed)
