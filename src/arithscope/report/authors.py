"""What the paper's authors report, for comparison. Of Llama-3-8B, unless it says otherwise; measured by the paper's own
definitions, which differ from ours in some points (docs/experiments.md)."""

from __future__ import annotations

# By experiment and measure, as in summary.json. What is not here the authors did not report.
AUTHORS: dict[tuple[str, str], str] = {
    ("accuracy", "accuracy"): "+ .97, − .96, × .84, ÷ .92",
    ("circuit", "heads"): "+ 6, − 6, × 20, ÷ 6",
    ("circuit", "faithfulness"): "+ .97, − .98, × .90, ÷ .96",
    ("circuit", "shared_heads"): "L2H2 (operator), L15H13 (op2), L16H21 (op1)",
    ("probe", "first_answer_layer"): "16 of 32",
    ("topk", "k"): "200 of 14,336",
    ("classify", "raw_share"): ".91",
    ("overlap", "mean_iou"): ".54",
    ("knockout", "raw_associated"): "29 points less, from .95",
    ("training", "raw_mutual_share"): ".79 (checkpoints of Pythia)",
}
