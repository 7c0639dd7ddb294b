"""Options of the commands, in the panels of their help pages. Imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from arithscope.utils.files import user_path

if TYPE_CHECKING:
    from arithscope.models.load import LoadOptions
    from arithscope.prompts import Template
    from arithscope.results.run import Run


def option(metavar: str, text: str, *, panel: str | None = None, parser: Callable[[str], Any] | None = None) -> Any:
    """An option with a value."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel, parser=parser)


def flag(name: str, text: str, *, panel: str | None = None) -> Any:
    """An option without a value, and without a --no- twin."""
    return typer.Option(name, help=text, rich_help_panel=panel)


def argument(metavar: str, text: str, parser: Callable[[str], Any] | None = None) -> Any:
    return typer.Argument(metavar=metavar, help=text, parser=parser)


study, samples, measures, machine, model_option = (
    partial(option, panel=panel) for panel in ("What to study", "Samples", "Measures", "Machine", "Model")
)
Device = Annotated[str, machine("DEVICE", "auto, cpu, cuda, cuda:N or mps.")]
DEVICE_MAP = "auto: spread the model over GPUs, CPU and disk; or a JSON file that maps modules to devices."
DeviceMap = Annotated[str | None, machine("MAP", DEVICE_MAP)]
AllowPickle = Annotated[bool, flag("--allow-pickle", "Also load weights that are not safetensors.", panel="Model")]
TrustRemoteCode = Annotated[bool, flag("--trust-remote-code", "Run code that comes with the model.", panel="Model")]
Operators = Annotated[str, study("OPERATORS", "Operators to study, any of +-*/.")]
MODEL = "An embedded model (see `arithscope models`), a folder, a .gguf file, or a Hugging Face id (@REVISION)."
ModelName = Annotated[str, argument("MODEL", MODEL)]
RunPath = Annotated[Path, argument("RUN", "A run folder.", user_path)]


@dataclass(frozen=True)
class ModelOptions:
    """How to load a model."""

    template: Annotated[str, study("TEXT", "How a prompt is written.")] = "{op1}{operator}{op2}="
    prefix: Annotated[str, study("TEXT", r"Text before every prompt, such as examples; \n is a line break.")] = ""
    dtype: Annotated[str, model_option("DTYPE", "auto, float32, bfloat16 or float16.")] = "auto"
    quantize: Annotated[str | None, model_option("BITS", "4bit or 8bit; needs the extra `quant`.")] = None
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False
    device: Device = "auto"
    device_map: DeviceMap = None

    def load_arguments(self) -> tuple[Template, LoadOptions]:
        from arithscope.models.load import LoadOptions
        from arithscope.prompts import Template

        options = vars(self).copy()
        texts = (options.pop(name).replace("\\n", "\n") for name in ("template", "prefix"))
        return Template(*texts), LoadOptions(**options)


@dataclass(frozen=True)
class RunOptions:
    """How to load the model of a finished run."""

    model: Annotated[str | None, model_option("MODEL", "Where the run's model is now, if it has moved.")] = None
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False
    device: Device = "auto"
    device_map: DeviceMap = None

    def open(self, folder: Path) -> Run:
        """Open a run. Its model is loaded when it is first needed."""
        from arithscope.models.load import LoadOptions
        from arithscope.results.run import Run

        options = vars(self).copy()
        return Run(folder, options.pop("model"), LoadOptions(**options))


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: the fields of a command's dataclass parameters become options of the command line."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(group := parameter.annotation):
            groups[parameter.name], hints = group, get_type_hints(group, include_extras=True)
            parameters += [
                parameter.replace(name=f.name, default=f.default, annotation=hints[f.name]) for f in fields(group)
            ]
        else:
            parameters.append(parameter)

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    expanded.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded
