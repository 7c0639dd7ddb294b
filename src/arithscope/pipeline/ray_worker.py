"""The worker process of a cluster: holds a model and runs units of work with it."""

from __future__ import annotations

import gc
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from arithscope import __version__
from arithscope.models.load import LoadOptions, load
from arithscope.models.model import Model
from arithscope.models.model_spec import ModelSpec, Weights, model_spec
from arithscope.prompts import Template
from arithscope.utils.executor import Function, run_unit


@dataclass(frozen=True)
class NamedModel:
    """A model that each worker loads itself."""

    name: str
    template: Template
    options: LoadOptions


@dataclass(frozen=True)
class Ready:
    """A worker's report that it has its model; with the model's spec if the worker loaded it."""

    versions: dict[str, str]
    node: str  # Ray's id
    host: str  # host name
    spec: ModelSpec | None


def versions() -> dict[str, str]:
    """Versions that numbers depend on, and that must agree on all nodes."""
    return {
        "arithscope": __version__,
        "Python": platform.python_version().rpartition(".")[0],
        "torch": torch.__version__.partition("+")[0],
        "transformers": version("transformers"),
    }


class Worker:
    """Runs in its own process, with a GPU or with some CPU threads."""

    def __init__(self, device: str, threads: int):
        torch.set_num_threads(threads)
        self.device = torch.device(device)
        self.model: Model | None = None

    def take(self, source: ModelSpec | NamedModel, weights: Weights | None) -> Ready:
        """Load a model, or build it from shared weights, in place of an earlier one."""
        self.model, spec = None, None
        gc.collect()  # models contain reference cycles, and the next one needs the memory
        if isinstance(source, NamedModel):
            self.model = load(source.name, source.template, source.options)
            spec = model_spec(self.model)
        elif weights is not None:
            self.model = source.filled(weights, self.device)
        import ray

        return Ready(versions(), ray.get_runtime_context().get_node_id(), platform.node(), spec)

    def run(self, function: Function, *unit: Any) -> tuple[Any, int, list[str]]:
        """The result of a unit, its number of steps, and notes for the user."""
        notes: list[str] = []
        return *run_unit(function, self.model, unit, lambda steps: None, notes.append), notes
