"""What each view of the explorer shows, as plain values and bytes, from a run's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.localize import MLP
from arithscope.explorer.run_registry import NotThere, Served
from arithscope.heuristics.kinds import kind_name, parse
from arithscope.prompts import operand_grid
from arithscope.results.comparison import CURVES, Comparison
from arithscope.results.run import Run


def described(served: Served) -> dict[str, Any]:
    """What a page needs to know of a run before it asks for anything else."""
    run = served.run
    there = run.stages
    classified = {"patterns", "classify"} <= set(there)
    return {
        "name": served.name,
        "model": run.manifest["model"],
        "version": run.manifest["version"],
        "created": run.manifest["created"],
        "operators": run.accuracy.operators if "accuracy" in there else [],
        "max_operand": run.max_operand,
        "limit": run.limit,
        "preset": run.configuration["preset"],
        "seed": run.configuration["seed"],
        "template": run.configuration["template"],
        "stages": there,
        "checkpoints": run.training.checkpoints if "training" in there else [],
        "neuron_layers": served.neurons.layers if classified else [],
        "kinds": [kind_name(*kind) for kind in served.neurons.kinds] if classified else [],
        "classified_operators": run.classify.operators if classified else [],
    }


def square_bytes(served: Served, operator: str) -> bytes:
    """Over the operand square, op1 by op1: the model's answers as int32, then the right answers' probabilities as float32."""
    if operator not in served.squares:
        raise NotThere(f"The run {served.name} did not ask prompts with {operator}.")
    answered, p = served.squares[operator]
    return answered.astype("<i4").tobytes() + p.astype("<f4").tobytes()


def neuron_page(served: Served, operator: str, layer: int, neuron: int) -> dict[str, Any]:
    """All that is known of a neuron but for its pattern, which is sent on its own."""
    served.needs("neurons")
    run = served.run
    found = run.neuron(layer, neuron, operator)
    p = found.pattern
    heuristics = found.heuristics.drop(columns=["operator", "layer", "neuron"], errors="ignore")
    best = found.best.drop(columns=["operator", "layer", "neuron"], errors="ignore")
    others = [o for o in run.operators if o != operator and run.place(layer, neuron, o) is not None]
    return {
        "name": found.name,
        "layer": layer,
        "neuron": neuron,
        "operator": operator,
        "effects": found.effects.to_dict("records"),
        "heuristics": heuristics.to_dict("records"),
        "best": best.to_dict("records"),
        "coverage": found.coverage,
        "top_for": others,
        "pattern": None
        if p is None
        else {
            "rank": p.rank,
            "op1": p.op1,
            "op2": p.op2,
            "result": p.result,
            "alignment": p.alignment,
            "direct": p.direct,
            "tokens": p.tokens,
            "logits": [round(float(x), 5) for x in p.logits],
        },
    }


def stored_pattern(run: Run, operator: str, layer: int, neuron: int) -> np.ndarray[Any, Any] | None:
    """A neuron's activations, if the run kept them."""
    if not {"neurons", "patterns"} <= set(run.stages):
        return None
    place = run.place(layer, neuron, operator)
    return None if place is None else run.patterns.activations[place]


def pattern_bytes(activations: np.ndarray[Any, Any]) -> bytes:
    """Op1 by op1, as float32."""
    return np.asarray(activations).astype("<f4").tobytes()


def prompts_of_heuristic(served: Served, operator: str, heuristic: str) -> bytes:
    """Over the operand square, op1 by op1: 1 for legal prompts that the heuristic holds for, 0 for all others."""
    try:
        rule = parse(heuristic)
    except UserError as error:
        raise NotThere(str(error)) from None
    prompts = operand_grid(operator, served.run.max_operand)
    legal = prompts.legal(served.run.limit)
    return (legal & rule.holds(prompts)).astype(np.uint8).tobytes()


def circuit(served: Served, operator: str, measure: str) -> dict[str, Any]:
    """Effects of all components, the circuit's heads with their attention, and how few suffice."""
    served.needs("localize", "circuit", "heads")
    run = served.run
    if operator not in run.circuit.operators:
        raise NotThere(f"The run {served.name} found no circuit for {operator}.")
    effects = run.localize.effects
    effects = effects[(effects.operator == operator) & (effects.measure == measure)]
    roles = run.heads.roles.reset_index(drop=True)
    roles = roles[roles.operator == operator]
    isolation = run.heads.isolation[run.heads.isolation.operator == operator]
    curve = run.circuit.curve[run.circuit.curve.operator == operator]
    return {
        "operator": operator,
        "measure": measure,
        "ranked_by": run.configuration["effect"],
        "positions": {str(position): _effect_maps(rows) for position, rows in effects.groupby("position", sort=False)},
        "labels": run.heads.positions,
        "heads": run.circuit.heads[run.circuit.heads.operator == operator].drop(columns="operator").to_dict("records"),
        "shared": [[layer, head] for layer, head in run.circuit.shared()],
        "roles": [
            {**row, "attention": run.heads.patterns[place].round(4).tolist()}
            for place, row in zip(roles.index, roles.drop(columns="operator").to_dict("records"), strict=True)
        ],
        "isolation": isolation.drop(columns="operator").to_dict("records"),
        "curve": curve.drop(columns="operator").to_dict("records"),
        "table": run.circuit.summary().get(operator, {}),
        "probe": _probe(run, operator),
    }


def _effect_maps(rows: pd.DataFrame) -> dict[str, Any]:
    """[layers][heads] of means and medians, and [layers] of the MLPs."""
    heads, mlps = rows[rows["head"] != MLP], rows[rows["head"] == MLP].sort_values("layer")
    maps = {
        name: heads.pivot(index="layer", columns="head", values=column).to_numpy().tolist()
        for name, column in (("heads", "value"), ("head_medians", "median"))
    }
    return {**maps, "mlps": mlps.value.tolist(), "mlp_medians": mlps["median"].tolist()}


def _probe(run: Run, operator: str) -> dict[str, Any] | None:
    if "probe" not in run.stages:
        return None
    table = run.probe.table
    rows = table[table.operator == operator].drop(columns="operator")
    return {"rows": rows.to_dict("records"), "first_answer_layer": run.probe.first_answer_layer}


def training(served: Served) -> dict[str, Any]:
    """The curves over checkpoints, and which checkpoints have patterns."""
    served.needs("training")
    found = served.run.training
    tables = ("accuracy", "present", "faithfulness", "knockout", "mutual_share")
    return {
        "checkpoints": found.checkpoints,
        **{name: getattr(found, name).to_dict("records") for name in tables},
    }


def comparison(found: Comparison, names: dict[str, str]) -> dict[str, Any]:
    """Every headline number and every curve of all runs, under the names that runs have here."""
    shown = {theirs: ours for ours, theirs in names.items()}
    curves = found.curves.assign(run=found.curves.run.map(shown))
    table = found.table.assign(run=found.table.run.map(shown))
    return {
        "runs": list(names),
        "table": table.to_dict("records"),
        "curves": {
            name: curves[curves.curve == name].drop(columns="curve").to_dict("records")
            for name in CURVES
            if (curves.curve == name).any()
        },
    }
