"""What runs in the processes of a cluster: a worker that has a subject and carries out units with it."""

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
class Named:
    """A subject that each worker loads itself."""

    name: str
    template: Template
    options: LoadOptions


@dataclass(frozen=True)
class Ready:
    """What a worker says when it has its subject. The hull is there if it was the worker that loaded it."""

    versions: dict[str, str]
    node: str  # Ray's name for it
    host: str  # the name that people know
    spec: ModelSpec | None


def versions() -> dict[str, str]:
    """What numbers depend on, and must be the same everywhere."""
    return {
        "arithscope": __version__,
        "Python": platform.python_version().rpartition(".")[0],
        "torch": torch.__version__.partition("+")[0],
        "transformers": version("transformers"),
    }


class Worker:
    """Lives in a process of its own, with a GPU, or on the CPU with some threads."""

    def __init__(self, device: str, threads: int):
        torch.set_num_threads(threads)
        self.device = torch.device(device)
        self.model: Model | None = None

    def take(self, source: ModelSpec | Named, weights: Weights | None) -> Ready:
        """Load a subject, or put it together, in the place of an earlier one."""
        self.model, spec = None, None
        gc.collect()  # a model is full of cycles, and the next one needs its memory
        if isinstance(source, Named):
            self.model = load(source.name, source.template, source.options)
            spec = model_spec(self.model)
        elif weights is not None:
            self.model = source.filled(weights, self.device)
        import ray

        return Ready(versions(), ray.get_runtime_context().get_node_id(), platform.node(), spec)

    def executor(self, function: Function, *unit: Any) -> tuple[Any, int, list[str]]:
        """What a unit returns, how many steps it counted, and what a person should know."""
        notes: list[str] = []
        return *run_unit(function, self.model, unit, lambda steps: None, notes.append), notes
