"""What the explorer computes with the model while a person waits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from arithscope.experiments.patterns import activation_map
from arithscope.explorer.run_registry import NotThere, RunRegistry, Served
from arithscope.explorer.views import stored_pattern
from arithscope.heuristics.kinds import kind_name
from arithscope.pipeline.store import plain
from arithscope.prompts import OPERATORS
from arithscope.results.explanation import answer_without
from arithscope.results.run import Run, explanation_as_json

KEPT_PATTERNS = 32  # that were computed here


class Live:
    def __init__(self, run_registry: RunRegistry):
        self._shelf = run_registry
        self._patterns: OrderedDict[tuple[str, str, int, int], np.ndarray[Any, Any]] = OrderedDict()

    def explanation(self, served: Served, prompt: str, criterion: str) -> dict[str, Any]:
        """A prompt explained by the run's heuristics."""
        served.needs("classify")
        served.run.prompt(prompt)  # complain before a model is loaded
        with self._shelf.model(served.run):
            found = explanation_as_json(served.run.explain(prompt, criterion))
        kinds = [{**row, "name": kind_name(row["kind"], row["on"])} for row in found["kinds"]]
        return {**found, "kinds": kinds}

    def ablated(
        self,
        served: Served,
        prompt: str,
        criterion: str,
        neurons: Sequence[tuple[int, int]],
        heuristics: Sequence[str],
    ) -> dict[str, Any]:
        """What the model says without some neurons, and without all those that match some heuristics."""
        served.needs("classify")
        run = served.run
        asked = run.prompt(prompt)
        operator = OPERATORS[int(asked.operator[0])]
        matches = run.classify.matched(operator, criterion)
        unknown = sorted(set(heuristics) - set(matches.heuristic))
        if unknown:
            raise NotThere(f"No neuron matches {unknown[0]!r} for {operator} ({criterion}).")
        own = matches[matches.heuristic.isin(list(heuristics))]
        off = {*neurons, *zip(own.layer.tolist(), own.neuron.tolist(), strict=True)}
        with self._shelf.model(run) as model:
            before = answer_without(model, asked, [])
            after = answer_without(model, asked, sorted(off))
        [right] = asked.answer.tolist()
        return plain({"right": right, "neurons": len(off), "before": asdict(before), "after": asdict(after)})

    def pattern(self, served: Served, operator: str, layer: int, neuron: int, checkpoint: str | None) -> Any:
        """A neuron's pattern, of the final model or of a checkpoint: as it was stored, or else computed now."""
        run = served.run if checkpoint is None else self._checkpoint(served, checkpoint)
        sizes = run.manifest["model"]["sizes"]
        if layer >= sizes["layers"] or neuron >= sizes["neurons"]:
            raise NotThere(f"The subject has no neuron L{layer}N{neuron}.")
        if operator not in run.operators:
            raise NotThere(f"The run {served.name} did not study {operator}.")
        found = stored_pattern(run, operator, layer, neuron)
        if found is not None:
            return found
        key = (str(run.path), operator, layer, neuron)
        with self._shelf.model(run) as model:
            if key not in self._patterns:
                self._patterns[key] = activation_map(model, operator, layer, neuron, run.max_operand)
                while len(self._patterns) > KEPT_PATTERNS:
                    self._patterns.popitem(last=False)
            return self._patterns[key]

    def _checkpoint(self, served: Served, name: str) -> Run:
        if name not in served.checkpoints:
            known = ", ".join(served.checkpoints) or "it followed none"
            raise NotThere(f"The run {served.name} has no checkpoint {name[:80]!r}: {known}.")
        return served.checkpoints[name]
