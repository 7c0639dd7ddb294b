"""Replies that need a forward pass of the model: explanations, ablations, and activation maps that were not stored."""

from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import numpy as np

from arithscope.experiments.patterns import activation_map
from arithscope.explorer.request_models import AblationRequest, NotFound
from arithscope.explorer.run_registry import RunRegistry, ServedRun
from arithscope.heuristics.kinds import kind_name
from arithscope.prompts import OPERATORS
from arithscope.results.explanation import answer_without
from arithscope.results.run import explanation_as_json

CACHED_MAPS = 32  # activation maps computed here


class Inference:
    def __init__(self, registry: RunRegistry):
        self._registry = registry
        self._maps: OrderedDict[tuple[str, str, int, int], np.ndarray[Any, Any]] = OrderedDict()

    def explanation(self, served: ServedRun, prompt: str, criterion: str) -> dict[str, Any]:
        """A prompt explained by the heuristics that hold for it."""
        served.require("classify")
        served.run.prompt(prompt)  # raises before a model is loaded
        with self._registry.model(served.run):
            explanation = explanation_as_json(served.run.explain(prompt, criterion))
        kinds = [{**row, "name": kind_name(row["kind"], row["on"])} for row in explanation["kinds"]]
        return {**explanation, "kinds": kinds}

    def ablate(self, served: ServedRun, request: AblationRequest) -> dict[str, Any]:
        """The model's answer before and after zero-ablating neurons at the last position."""
        served.require("classify")
        run, prompt = served.run, served.run.prompt(request.prompt)
        operator = OPERATORS[int(prompt.operator[0])]
        matches = run.classify.matched(operator, request.criterion)
        if unknown := sorted(set(request.heuristics) - set(matches.heuristic)):
            raise NotFound(f"No neuron matches {unknown[0]!r} for {operator} ({request.criterion}).")
        matches = matches[matches.heuristic.isin(request.heuristics)]
        neurons = {*request.neurons, *zip(matches.layer.tolist(), matches.neuron.tolist(), strict=True)}
        with self._registry.model(run) as model:
            before, after = (answer_without(model, prompt, ablated) for ablated in ((), sorted(neurons)))
        right = int(prompt.answer[0])
        return {"right": right, "neurons": len(neurons), "before": asdict(before), "after": asdict(after)}

    def activation_map(
        self, served: ServedRun, operator: str, layer: int, neuron: int, checkpoint: str | None
    ) -> np.ndarray[Any, Any]:
        """A neuron's activations over the operand grid, at a checkpoint or in the final model: stored or computed now."""
        if checkpoint is not None and checkpoint not in served.checkpoints:
            known = ", ".join(served.checkpoints) or "none"
            raise NotFound(f"The run {served.name} has no checkpoint {checkpoint[:80]!r}; choose from: {known}.")
        run = served.run if checkpoint is None else served.checkpoints[checkpoint]
        sizes = run.manifest["model"]["sizes"]
        if layer >= sizes["layers"] or neuron >= sizes["neurons"]:
            raise NotFound(f"The model has no neuron L{layer}N{neuron}.")
        if operator not in run.operators:
            raise NotFound(f"The run {served.name} does not include {operator}.")
        if {"neurons", "patterns"} <= set(run.stages) and (row := run.map_row(layer, neuron, operator)) is not None:
            return run.patterns.activations[row]
        key = (str(run.path), operator, layer, neuron)
        with self._registry.model(run) as model:
            if key not in self._maps:
                self._maps[key] = activation_map(model, operator, layer, neuron, run.max_operand)
                if len(self._maps) > CACHED_MAPS:
                    self._maps.popitem(last=False)
            return self._maps[key]
