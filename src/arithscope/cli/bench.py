"""The command `arithscope bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from arithscope.cli.options import (
    AllowPickle,
    Device,
    DeviceMap,
    Dtype,
    ModelArgument,
    Prefix,
    Quantize,
    TemplateText,
    TrustRemoteCode,
    how_to_load,
    path_option,
)
from arithscope.errors import UserError
from arithscope.models.sources import DEFAULT


def bench(
    model: ModelArgument = DEFAULT,
    prompts: Annotated[int, typer.Option(help="Prompts that each neuron is patched on.")] = 50,
    layers: Annotated[
        str | None, typer.Option(help="Layers, with commas between; by default a few from the middle to the last.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 45.0,
    json: Annotated[Path | None, path_option("Also write what was measured to this file.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    template: TemplateText = "{op1}{operator}{op2}=",
    prefix: Prefix = "",
    device_map: DeviceMap = None,
    quantize: Quantize = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Measure what replay saves on this machine: exact effects of neurons in several ways, and how long all would take."""
    from arithscope.cli.benchmark import bench as measured
    from arithscope.models.load import load
    from arithscope.report.bench import bench_report
    from arithscope.utils.files import write_json, writing
    from arithscope.utils.progress import for_console

    chosen = None if layers is None else layer_numbers(layers)
    if json is not None and (json.is_dir() or not json.parent.is_dir()):  # told before anything is measured
        raise UserError(f"{json} cannot be written; name a file in a folder that exists.")
    how = how_to_load(template, prefix, device, dtype, device_map, quantize, allow_pickle, trust_remote_code)
    loaded = load(model, *how)
    found = measured(loaded, prompts, chosen, seconds, progress=for_console(Console(stderr=True)))
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for part in bench_report(found):
        console.print(part)
    if json is not None:
        with writing(json.parent, "choose another file"):
            write_json(json, found.as_json())


def layer_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"{text!r} names no layers; write numbers with commas between, as in 16,24,31.") from None
