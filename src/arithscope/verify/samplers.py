"""For every stage, who recomputes a sample of it: `check(inputs, stored result, tally)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arithscope.verify.circuits import check_bag, check_circuit, check_heads, check_mlp0, check_topk
from arithscope.verify.compare import Tally
from arithscope.verify.effects import check_localize, check_neurons
from arithscope.verify.inputs import Inputs
from arithscope.verify.knockouts import check_knockout, check_prompt_knockout
from arithscope.verify.matches import check_classify
from arithscope.verify.sweeps import check_means, check_patterns, check_probe
from arithscope.verify.tabulated import check_accuracy, check_failures, check_overlap, check_stability, check_training

Sampler = Callable[[Inputs, Any, Tally], None]

SAMPLERS: dict[str, Sampler] = {
    "means": check_means,
    "accuracy": check_accuracy,
    "localize": check_localize,
    "circuit": check_circuit,
    "probe": check_probe,
    "heads": check_heads,
    "mlp0": check_mlp0,
    "neurons": check_neurons,
    "topk": check_topk,
    "patterns": check_patterns,
    "classify": check_classify,
    "overlap": check_overlap,
    "knockout": check_knockout,
    "prompt_knockout": check_prompt_knockout,
    "failures": check_failures,
    "bag": check_bag,
    "training": check_training,
    "stability": check_stability,
}


def sampler_of(stage: str) -> Sampler:
    if stage not in SAMPLERS:
        raise NotImplementedError(
            f"The stage {stage!r} has no sampler: write check_{stage}(inputs, stored, tally), which recomputes some of what "
            "the stage stores and tells the tally, and name it in SAMPLERS (arithscope/verify/samplers.py). If the stage only "
            "puts together what others found, recompute it whole, as in arithscope/verify/tabulated.py."
        )
    return SAMPLERS[stage]
