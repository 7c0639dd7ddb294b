"""Activation maps and value vectors against plain hooks; direct and indirect neurons."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from arithscope.experiments.patterns import TOP_TOKENS, patterns
from arithscope.experiments.topk import TopK
from arithscope.prompts import OPERATORS, Prompts, legal_prompts
from tests.contexts import context
from tests.experiments import plain
from tests.families import small


def top_neurons(rows: list[tuple[str, int, int]]) -> TopK:
    """A result with these top neurons: operator, layer, neuron."""
    table = pd.DataFrame(rows, columns=["operator", "layer", "neuron"])
    table["rank"], table["value"] = table.groupby(["operator", "layer"]).cumcount(), 1.0
    nothing = pd.DataFrame()
    return TopK(nothing, nothing, nothing, nothing, table.assign(mean_abs=1.0), {}, "mean", 0, {})


CHOSEN = [("+", 0, 3), ("+", 0, 1), ("+", 2, 7), ("-", 1, 0), ("-", 2, 7), ("/", 0, 3)]


@pytest.mark.parametrize(("family", "attention", "prefix"), [("llama", "sdpa", ""), ("gpt2", "sdpa", "7+5=12=")])
def test_activation_maps_equal_plain_hooks(family: str, attention: str, prefix: str) -> None:
    model = small(family, attention, prefix=prefix)
    found = patterns(context(model, None, top_neurons(CHOSEN), max_operand=12))
    assert found.activations.shape == (len(CHOSEN), 13, 13)
    assert found.activations.dtype == np.float16
    assert [tuple(row) for row in found.neurons[["operator", "layer", "neuron"]].to_numpy()] == CHOSEN
    unembedding = model.unembedding.weight.double()
    gain = model.final_norm.weight.double()
    for i, (operator, layer, neuron) in enumerate(CHOSEN):
        module = plain.mlp_module(model, layer)
        for a, b in ((0, 0), (3, 0), (12, 5), (7, 12)):  # a division by zero is a prompt too
            prompt = Prompts(np.array([a]), np.array([OPERATORS.index(operator)]), np.array([b]))
            want = float(plain.activation(model, prompt, module)[-1, neuron])
            assert float(found.activations[i, a, b]) == pytest.approx(want, rel=2e-3, abs=1e-4)
        unit = torch.zeros(1, model.sizes.neurons)
        unit[0, neuron] = 1.0
        with torch.no_grad():
            vector = (module(unit) - module(torch.zeros_like(unit)))[0].double()
        if family == "gpt2":
            vector = vector - vector.mean()
        logits = unembedding @ (vector * gain)
        numbers = logits[model.encoder.answer_tokens]
        assert found.logits[i] == pytest.approx(numbers.numpy(), abs=1e-4)
        assert list(found.neurons.tokens[i]) == numbers.argsort(descending=True)[:TOP_TOKENS].tolist()
        prompts = legal_prompts(operator, 12, model.limit)
        fired = found.activations[i][prompts.op1, prompts.op2].astype(float)
        correlation = np.corrcoef(fired, found.logits[i][prompts.answer])[0, 1]
        assert found.neurons.alignment[i] == pytest.approx(correlation, abs=1e-6)
        row = found.neurons.iloc[i]
        op1, op2, result = (row[f"variance_explained_{name}"] for name in ("op1", "op2", "result"))
        assert row.direct == (result > max(op1, op2) and row.alignment > 0)


def test_rows_of_each_operator() -> None:
    found = patterns(context(small("llama", "sdpa"), None, top_neurons(CHOSEN), max_operand=5))
    assert found.operators == ["+", "-", "/"]
    assert [found.rows(o) for o in found.operators] == [slice(0, 3), slice(3, 5), slice(5, 6)]
    assert found.summary()["+"]["neurons"] == 3
    assert (found.stratum.op1[1], found.limit) == (5, 40)
