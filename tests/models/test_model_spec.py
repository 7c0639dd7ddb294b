"""Models rebuilt from a spec and shared weights, as in the workers of a cluster."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arithscope.errors import UserError
from arithscope.models.load import model_spec, weights_of
from tests import units
from tests.families import FAMILY_AND_ATTENTION, small


@pytest.mark.parametrize(("family", "attention"), FAMILY_AND_ATTENTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rebuilt_model_equals_the_original(family: str, attention: str, dtype: torch.dtype) -> None:
    """Bitwise equal logits, from the same memory, with the same tied weights."""
    model, op1 = small(family, attention, dtype), np.arange(30)
    weights = weights_of(model)
    for array, *_ in weights.stored:
        array.flags.writeable = False  # as in shared memory
    again = model_spec(model).filled(weights, torch.device("cpu"))
    assert (units.logits(again, op1, advance=None) == units.logits(model, op1, advance=None)).all()
    assert {p.data_ptr() for p in again.hf_model.parameters()} == {p.data_ptr() for p in model.hf_model.parameters()}
    assert again.sizes == model.sizes
    assert repr(again) == repr(model)
    assert not any(p.requires_grad for p in again.hf_model.parameters())


def test_offloaded_weights_cannot_be_shared() -> None:
    with pytest.raises(UserError, match="quantised or offloaded"):
        weights_of(model_spec(small("llama")).empty())
