"""What the paper reports of the models it studies, by experiment and measure as in summary.json.

Llama-3-8B is always shown, beside the paper's models of the same family as the one under study. Some of the paper's definitions
differ from ours (docs/experiments.md).
"""

from collections.abc import Mapping
from typing import Any

LLAMA_8B, LLAMA_70B, PYTHIA, GPT_J = "Llama-3-8B", "Llama-3-70B", "Pythia-6.9B", "GPT-J"
_ACCURACY, _OVER_PROMPTS = ("accuracy", "accuracy"), ("accuracy", "accuracy_over_prompts")
_FIRST_LAYER = ("probe", "first_answer_layer")
PAPER: dict[str, dict[tuple[str, str], str]] = {
    LLAMA_8B: {
        _ACCURACY: "+ .97, − .96, × .84, ÷ .92",
        _OVER_PROMPTS: ".95",
        ("circuit", "heads"): "+ 6, − 6, × 20, ÷ 6",
        ("circuit", "faithfulness"): "+ .97, − .98, × .90, ÷ .96",
        ("circuit", "shared_heads"): "L2H2 (operator), L15H13 (op2), L16H21 (op1)",
        _FIRST_LAYER: "16 of 32",
        ("topk", "k"): "200 of 14,336",
        ("classify", "raw_share"): ".91",
        ("overlap", "mean_iou"): ".54",
        ("knockout", "raw_associated"): "29 points less, from .95",
    },
    LLAMA_70B: {_ACCURACY: "+ .97, − .99, × .99, ÷ .73", _OVER_PROMPTS: ".88", _FIRST_LAYER: "39 of 80"},
    PYTHIA: {
        _ACCURACY: "+ .30, − .04, × .27, ÷ .75",
        _OVER_PROMPTS: ".43",
        _FIRST_LAYER: "14 of 32",
        ("training", "raw_mutual_share"): ".79",
    },
    GPT_J: {_ACCURACY: "+ .23, − .09, × .46, ÷ .64", _OVER_PROMPTS: ".37", _FIRST_LAYER: "17 of 28"},
}
_FAMILIES = {"llama": LLAMA_70B, "gpt_neox": PYTHIA, "gptj": GPT_J}  # the paper's other models, by family


def paper_models(model: Mapping[str, Any]) -> list[str]:
    """The paper's models to show beside a model, given by its description in the manifest."""
    other = _FAMILIES.get(str(model["family"]))
    return [LLAMA_8B] + ([other] if other else [])
