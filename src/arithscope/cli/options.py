"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arithscope.utils.paths import user_path

if TYPE_CHECKING:
    from arithscope.models.load import LoadOptions
    from arithscope.prompts import Template
    from arithscope.results.run import Run


def path_option(said: str) -> Any:
    """An option that names a file or a folder."""
    return typer.Option(metavar="PATH", parser=user_path, help=said)


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="An embedded subject (see `arithscope subjects`), a folder, a .gguf file, or a hub id, with @REVISION.",
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", parser=user_path)]
ModelNow = Annotated[
    str | None, typer.Option("--model", help="Where the run's subject is now, if it is not where it was.")
]
Operators = Annotated[str, typer.Option(help="Which of + - * / to study, written together.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
TemplateText = Annotated[str, typer.Option(help="How a prompt is written.")]
Prefix = Annotated[str, typer.Option(help=r"Text before every prompt: few-shot examples, say. \n is a line break.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(help="auto spreads a model over GPUs, CPU and disk; or a JSON file with a place for each part."),
]
Quantize = Annotated[str | None, typer.Option(help="4bit or 8bit; needs the extra `quant`.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Also load weights that are not safetensors.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with a model.")]
ClusterAddress = Annotated[
    str | None,
    typer.Option(help="Spread the work over a Ray cluster: its address, or local; needs the extra `cluster`."),
]


def how_to_load(
    template: str,
    prefix: str,
    device: str,
    dtype: str,
    device_map: str | None,
    quantize: str | None,
    allow_pickle: bool,
    trust_remote_code: bool,
) -> tuple[Template, LoadOptions]:
    """What such options say of loading a subject."""
    from arithscope.models.load import LoadOptions
    from arithscope.prompts import Template

    written = Template(template.replace("\\n", "\n"), prefix.replace("\\n", "\n"))
    return written, LoadOptions(device, dtype, device_map, quantize, allow_pickle, trust_remote_code)


def opened(
    run: Path, model: str | None, device: str, device_map: str | None, allow_pickle: bool, trust_remote_code: bool
) -> Run:
    """A run whose subject, once it is needed, is loaded as such options say."""
    from arithscope.models.load import LoadOptions
    from arithscope.results.run import Run

    options = LoadOptions(
        device=device, device_map=device_map, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    return Run(run, model, options)
