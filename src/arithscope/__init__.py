"""arithscope: a microscope for arithmetic in language models.

    import arithscope

    run = arithscope.open("runs/tiny-llama")      # a finished run: run.circuit, run.neuron(4, 17, "+"), run.explain("226-68=")
    model = arithscope.load("tiny-llama")         # a model: embedded, a folder, a GGUF file or a hub id
    arithscope.ask(model, "226-68=")              # its answer, with or without some neurons
    lab = arithscope.Lab(model, operators="+")    # experiments in memory: lab.circuit, lab.classify
    arithscope.run(model, "runs/mine")            # all experiments, into a run folder
    arithscope.run_layouts(model, "runs/two", "10-99")  # numbers of several tokens, each token of the answer by itself

Names are imported when they are first used, so that `import arithscope` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.10.0"

if TYPE_CHECKING:
    from arithscope.errors import UserError as UserError
    from arithscope.models.load import LoadOptions as LoadOptions
    from arithscope.models.load import load as load
    from arithscope.models.model import Model as Model
    from arithscope.prompts.parse import parse_prompt as parse_prompt
    from arithscope.prompts.stratum import legal_prompts as legal_prompts
    from arithscope.prompts.table import Prompts as Prompts
    from arithscope.prompts.template import Template as Template
    from arithscope.results.comparison import compare as compare
    from arithscope.results.explanation import ask as ask
    from arithscope.results.lab import Lab as Lab
    from arithscope.results.neuron import Neuron as Neuron
    from arithscope.results.run import Run as Run
    from arithscope.results.run import open as open
    from arithscope.results.run import run as run
    from arithscope.results.run import run_layouts as run_layouts
    from arithscope.settings import SampleSizes as SampleSizes
    from arithscope.settings import Settings as Settings

_NAMES = {
    "errors": ["UserError"],
    "models.load": ["LoadOptions", "load"],
    "models.model": ["Model"],
    "prompts.parse": ["parse_prompt"],
    "prompts.stratum": ["legal_prompts"],
    "prompts.table": ["Prompts"],
    "prompts.template": ["Template"],
    "results.comparison": ["compare"],
    "results.explanation": ["ask"],
    "results.lab": ["Lab"],
    "results.neuron": ["Neuron"],
    "results.run": ["Run", "open", "run", "run_layouts"],
    "settings": ["SampleSizes", "Settings"],
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'arithscope' has no attribute {name!r}")
    return getattr(import_module(f"arithscope.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
