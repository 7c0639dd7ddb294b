"""The paper's numbers belong to rows of the report, and to models of the same family."""

from __future__ import annotations

import pytest

from arithscope.experiments.common.key_numbers import KEY_NUMBERS
from arithscope.report.paper_numbers import PAPER, paper_models


def test_the_numbers_belong_to_rows() -> None:
    for numbers in PAPER.values():
        assert numbers.keys() <= {(row.experiment, row.measure) for row in KEY_NUMBERS}


def test_the_papers_criterion_has_its_key_numbers() -> None:
    """Failures and knockouts by raw matches, the latter against the paper's control."""
    measures = {(row.experiment, row.measure) for row in KEY_NUMBERS}
    assert ("failures", "raw_contribution") in measures
    assert {("prompt_knockout", f"raw_{name}_25") for name in ("associated", "vs_other_heuristics")} <= measures


@pytest.mark.parametrize(
    ("family", "models"),
    [
        ("llama", ["Llama-3-8B", "Llama-3-70B"]),
        ("gpt_neox", ["Llama-3-8B", "Pythia-6.9B"]),
        ("gptj", ["Llama-3-8B", "GPT-J"]),
        ("gpt2", ["Llama-3-8B"]),
    ],
)
def test_models_of_the_same_family(family: str, models: list[str]) -> None:
    assert paper_models({"family": family}) == models
