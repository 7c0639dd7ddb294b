"""Which components the answer steps share: attention heads of their circuits, and top neurons.

Steps may have different answer layers, so neurons are compared in the layers that both steps study. Beside each overlap stands
that of random sets of the same sizes, with the expected intersection: heads drawn from all heads, neurons from those layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.localize import component_name
from arithscope.experiments.overlap import in_common_layers
from arithscope.experiments.topk import TopK
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.models.model import Sizes

HEADS, NEURONS = "heads", "neurons"
Components = set[tuple[int, int]]  # (layer, head or neuron)


@dataclass(frozen=True)
class StepResults:
    """Circuits and top neurons of the answer steps that were studied, by step from 1; and the keys of these results."""

    circuits: dict[int, Circuit]
    neurons: dict[int, TopK]
    keys: list[str]


@dataclass(frozen=True, repr=False)
class StepOverlap(Result):
    """Intersection over union (IoU) of what two answer steps use."""

    table: pd.DataFrame = schema.table(
        "Overlap of each pair of answer steps.",
        schema.OPERATOR,
        schema.integer("step", "answer step, from 1", key=True),
        schema.integer("other", "a later answer step", key=True),
        schema.text("components", "`heads` of the circuits or top `neurons`", key=True),
        schema.number("iou", "intersection over union; NaN if neither step has any"),
        schema.number("expected", "IoU of random sets of the same sizes, with their expected intersection"),
        schema.number("shared", "components that both steps use"),
        schema.number("size", "components of the step, in layers that both study"),
        schema.number("other_size", "components of the other step, in these layers"),
    )
    heads: pd.DataFrame = schema.table(
        "Every head that is in a circuit, with the steps that use it.",
        *schema.HEAD_KEY,
        schema.listing("steps", "answer steps whose circuit has it"),
    )
    steps: list[int] = schema.value("answer steps that were studied")
    keys: list[str] = schema.value("keys of the results that are compared")

    def summary(self) -> dict[str, Any]:
        out: dict[str, dict[str, Any]] = {}
        for row in self.table.to_dict("records"):
            name = f"{row['components']}_iou_{row['step']}_{row['other']}"
            out.setdefault(str(row["operator"]), {}).update({name: row["iou"], f"{name}_expected": row["expected"]})
        for operator, rows in self.heads.groupby("operator", sort=False):
            shared = rows[rows.steps.map(len) == len(self.steps)]
            out.setdefault(str(operator), {})["heads_of_all_steps"] = [
                *map(component_name, shared.layer, shared["head"])
            ]
        return out


@stage(needs=(WholeAnswers,), given=(StepResults,), joins_steps=True)
def step_overlap(ctx: Context) -> StepOverlap:
    """Heads and neurons that the answer steps share, beside what random sets of these sizes would share."""
    found = ctx.results[StepResults]
    pairs = StepOverlap.frame("table", _pairs(found, ctx.model.sizes))
    used: dict[tuple[str, int, int], list[int]] = {}
    for step, circuit in found.circuits.items():
        for operator in circuit.operators:
            for head in sorted(circuit.chosen(operator)):
                used.setdefault((operator, *head), []).append(step)
    rows = [
        dict(zip(("operator", "layer", "head"), key, strict=True), steps=steps) for key, steps in sorted(used.items())
    ]
    return StepOverlap(pairs, StepOverlap.frame("heads", rows), list(found.circuits), found.keys)


def _pairs(found: StepResults, sizes: Sizes) -> Iterator[dict[str, Any]]:
    heads = {step: {o: set(x.chosen(o)) for o in x.operators} for step, x in found.circuits.items()}
    neurons = {step: {o: x.chosen(o) for o in x.operators} for step, x in found.neurons.items()}
    for name, sets, in_layer in ((HEADS, heads, sizes.heads), (NEURONS, neurons, sizes.neurons)):
        for step, other in combinations(sorted(sets), 2):
            for operator in [o for o in sets[step] if o in sets[other]]:
                both = {"one": sets[step][operator], "other": sets[other][operator]}
                if name == NEURONS:
                    both = in_common_layers(both)
                one, two = both.values()
                key = {"operator": operator, "step": step, "other": other, "components": name}
                layers = sizes.layers if name == HEADS else len({layer for layer, _ in one | two})
                yield {**key, **compared(one, two, layers * in_layer), "size": len(one), "other_size": len(two)}


def compared(one: Components, other: Components, available: int) -> dict[str, float]:
    """Overlap of two sets, and that expected of random sets of these sizes among the available components."""
    shared, union = len(one & other), len(one | other)
    by_chance = len(one) * len(other) / available if available else 0.0
    largest = len(one) + len(other) - by_chance
    nan = float("nan")
    return {
        "iou": shared / union if union else nan,
        "expected": by_chance / largest if union else nan,
        "shared": shared,
    }
