"""Effect of an intervention on a model's answer (Eq. 1 of the paper, and two variants), from logits alone."""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

EFFECTS = ("probability", "log_ratio", "logit")
MAX_LOG_RATIO = 80.0  # clamp before exp: e⁸⁰, and a sum of many such values, still fits into float32

CleanLogits = Float[Tensor, "batch vocabulary"]
Logits = Float[Tensor, "*variants batch vocabulary"]
Tokens = Int[Tensor, " batch"]
PerPrompt = Float[Tensor, "*variants batch"]
Landmarks = Float[Tensor, "3 *variants batch"]


def effects(before: CleanLogits, after: Logits, answer: Tokens, counterfactual: Tokens) -> dict[str, PerPrompt]:
    """How far an intervention moves the model from its answer r to the counterfactual answer r′, by three measures.

    P and z are probabilities and logits of the clean run (before), P* and z* those of the patched runs (after).

    probability: mean of the relative gain of r′ and the relative loss of r (Eq. 1),

        ½ · [ (P*(r′) − P(r′)) / P(r′)  +  (P(r) − P*(r)) / P*(r) ]

    At least −1, unbounded above. Computed from log-probabilities, so it stays finite where a probability underflows:
    P*/P = exp(log P* − log P), clamped at e⁸⁰.

    log_ratio: the same on a log scale, where no single prompt can dominate a mean,

        ½ · [ log P*(r′)/P(r′)  +  log P(r)/P*(r) ]

    Unbounded on both sides, antisymmetric in before and after, and equal to `probability` to first order around 0.

    logit: Eq. 1 on logits centred over the vocabulary (App. G). They may be negative, hence the absolute values,

        ½ · [ (z*(r′) − z(r′)) / |z(r′)|  +  (z(r) − z*(r)) / |z*(r)| ]

    All three are 0 where nothing changes and invariant to adding a constant to the logits of a prompt.

    Returns:
        Effects by measure, in the order of EFFECTS.
    """
    return effects_between(*(landmarks(logits, answer, counterfactual) for logits in (before, after)))


def effect(before: CleanLogits, after: Logits, answer: Tokens, counterfactual: Tokens) -> PerPrompt:
    """The paper's effect (Eq. 1): the `probability` measure of `effects`."""
    return effects(before, after, answer, counterfactual)["probability"]


def landmarks(logits: Logits, answer: Tokens, counterfactual: Tokens) -> Landmarks:
    """The three numbers that determine every effect: z(r), z(r′) and logsumexp(z), each minus mean(z).

    Invariant to adding a constant to the logits. Attribution methods estimate these, then call `effects_between`.
    """
    r, r2, sums = token_logits(logits, answer), token_logits(logits, counterfactual), _fused_sums(logits)
    # Without the kernel: z − log P is the logsumexp, and log_softmax makes fewer passes over the vocabulary.
    norm, mean = (r - log_probability(logits, answer), logits.mean(-1)) if sums is None else sums
    return torch.stack([r, r2, norm]) - mean


def effects_between(before: Float[Tensor, "3 batch"], after: Landmarks) -> dict[str, PerPrompt]:
    """`effects` from exact or estimated `landmarks`."""
    (r, r2, norm), (r_after, r2_after, norm_after) = before, after
    rise, fall, norm_change = r2_after - r2, r - r_after, norm_after - norm  # of the logits of r′ and r
    gain, loss = rise - norm_change, fall + norm_change  # of their log-probabilities
    return {
        "probability": 0.5 * (torch.expm1(gain.clamp(max=MAX_LOG_RATIO)) + torch.expm1(loss.clamp(max=MAX_LOG_RATIO))),
        "log_ratio": 0.5 * (gain + loss),
        "logit": 0.5 * (rise / r2.abs() + fall / r_after.abs()),
    }


def log_probability(logits: Logits, tokens: Tokens) -> PerPrompt:
    """Log-probability of one token per prompt. At most 0; invariant to adding a constant to the logits."""
    sums = _fused_sums(logits)
    return token_logits(logits.log_softmax(-1), tokens) if sums is None else token_logits(logits, tokens) - sums[0]


def token_logits(logits: Logits, tokens: Tokens) -> PerPrompt:
    """Logit of one token per prompt."""
    return logits.gather(-1, tokens.expand(logits.shape[:-1])[..., None])[..., 0]


@cache
def runs_kernels(device: torch.device) -> bool:
    """Whether Triton kernels (they need a C compiler) run on `device`; if not, callers fall back to slower PyTorch code."""
    if device.type != "cuda":
        return False
    try:
        from arithscope.stats.triton_sums import sums

        sums(torch.zeros(1, 2, device=device))
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True


def _fused_sums(logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "2 *rows"] | None:
    """logsumexp and mean over the vocabulary in one pass, or None where the kernel cannot run (it has no gradient)."""
    if logits.dtype != torch.float32 or logits.requires_grad or not runs_kernels(logits.device):
        return None
    from arithscope.stats.triton_sums import sums

    return sums(logits)
