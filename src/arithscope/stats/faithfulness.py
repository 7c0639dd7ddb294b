"""How much of a model's behaviour a circuit keeps: normalised logits and faithfulness (Eq. 2 of the paper)."""

import numpy as np
from jaxtyping import Float

from arithscope.stats.effects import Logits, PerPrompt, Tokens, token_logits
from arithscope.stats.intervals import Floats, Mean, Rows, unit_means

SMALLEST_SPAN = 1e-3  # of |NL(M) − NL(∅)|; a prompt with less has nothing to explain

NL = Float[np.ndarray, " prompts"]


def normalized_logit(logits: Logits, answer: Tokens) -> PerPrompt:
    """NL, a lenient proxy for accuracy: the answer's logit relative to the largest logit.

        (z(r) − mean z) / (max z − mean z)

    1 exactly where the answer is the argmax, below 1 elsewhere. Logits are centred over the vocabulary, which makes the
    ratio invariant to adding a constant to the logits and the denominator positive. Also invariant to scaling.
    """
    mean = logits.mean(-1)
    return (token_logits(logits, answer) - mean) / (logits.amax(-1) - mean)


def faithfulness(circuit: Rows, empty: NL, model: NL) -> list[Mean]:
    """How far each circuit gets from the empty circuit to the whole model, in NL, averaged over prompts.

        mean over prompts of  (NL(c) − NL(∅)) / (NL(M) − NL(∅))

    0 for the empty circuit, 1 for the whole model, negative for a circuit worse than none; at most 1 on prompts that the
    model answers correctly, since NL(M) = 1 is the maximum there. Invariant to shifting and scaling NL. Prompts with a
    denominator below SMALLEST_SPAN are left out, and `n` counts the others.
    """
    return unit_means(faithfulness_by_prompt(circuit, empty, model))


def faithfulness_by_prompt(circuit: Rows, empty: NL, model: NL) -> Floats:
    """Faithfulness of each circuit on each prompt that has one."""
    span = model - empty
    kept = np.abs(span) >= SMALLEST_SPAN
    return (circuit - empty)[:, kept] / span[kept]
