"""The command line: a thin layer over the library. Heavy imports happen inside the commands, so that --help is quick."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from arithscope import __version__
from arithscope.cli.bench import bench
from arithscope.cli.options import (
    AllowPickle,
    Device,
    DeviceMap,
    Dtype,
    ModelArgument,
    ModelNow,
    Operators,
    Prefix,
    Quantize,
    RunArgument,
    TemplateText,
    TrustRemoteCode,
    how_to_load,
    opened,
    path_option,
)
from arithscope.cli.run import run, write_report_of
from arithscope.cli.verify import verify
from arithscope.errors import UserError
from arithscope.models.sources import DEFAULT
from arithscope.utils.paths import user_path
from arithscope.utils.signals import INTERRUPTED, stop_on_signals

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A microscope for arithmetic in language models.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"arithscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A microscope for arithmetic in language models."""


app.command()(run)


@app.command()
def report(run: RunArgument) -> None:
    """Write report.html, the page with all that a run found; figures that are missing or out of date are drawn first."""
    from arithscope.pipeline.store import RunFolder
    from arithscope.utils.progress import for_console

    print(f"The report is {write_report_of(RunFolder(run), for_console(Console(stderr=True)))}")


@app.command()
def neuron(
    run: RunArgument,
    layer: Annotated[int, typer.Argument(metavar="L", help="Layer.")],
    index: Annotated[int, typer.Argument(metavar="N", help="Neuron of that layer.")],
    operator: Annotated[str, typer.Option(help="One of + - * /.")] = "+",
) -> None:
    """Show one neuron of a run: its effect and rank, its pattern, the numbers it promotes, its heuristics."""
    from arithscope.report.neuron import neuron_report
    from arithscope.results.run import Run

    _show(neuron_report(Run(run), layer, index, operator))


@app.command()
def explain(
    run: RunArgument,
    prompt: Annotated[str, typer.Argument(help="A prompt as in 226-68=, whatever the run's template.")],
    raw: Annotated[bool, typer.Option("--raw", help="Use all matches, not only the calibrated ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, for programs.")] = False,
    model: ModelNow = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Explain one prompt: the answer, the heuristics behind it, what their neurons add, and the answer without them."""
    import json

    from arithscope.experiments.classify import CALIBRATED, RAW
    from arithscope.report.explanation import explanation_report
    from arithscope.results.run import explanation_as_json

    studied = opened(run, model, device, device_map, allow_pickle, trust_remote_code)
    found = studied.explain(prompt, RAW if raw else CALIBRATED)
    if as_json:
        print(json.dumps(explanation_as_json(found), indent=2, ensure_ascii=False))
    else:
        _show(explanation_report(found))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", parser=user_path, help="Run folders, two or more.")],
    out: Annotated[Path, path_option("Folder for tables and figures.")] = Path("runs/comparison"),
) -> None:
    """Put runs side by side: every headline number in a table, and the headline figures with all runs in one."""
    from arithscope.report.comparison import comparison_tables, write_comparison
    from arithscope.utils.progress import for_console

    found = write_comparison(runs, out, for_console(Console(stderr=True)))
    for table in comparison_tables(found):
        Console().print(table)
    print(f"Tables and figures are in {out}")


@app.command()
def explore(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", parser=user_path, help="Run folders, one or more.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default only this machine reaches it.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; by default the first free one from 8350 on.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    model: Annotated[
        str | None, typer.Option(help="Where the run's subject is now, if it is not where it was (one run only).")
    ] = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Explore runs in a browser: prompts, neurons, heuristics, circuits, training, and runs side by side."""
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError("The explorer needs the packages fastapi and uvicorn; run: pip install 'arithscope[explore]'.")
    if model is not None and len(runs) > 1:
        raise UserError("--subject says where one run's subject is; name one run only.")
    from arithscope.explorer.serve import serve

    how = model, device, device_map, allow_pickle, trust_remote_code
    serve([opened(path, *how) for path in runs], host, port, browser)


@app.command()
def models() -> None:
    """List the subjects that come with arithscope."""
    import json

    from rich.table import Table

    from arithscope.models.sources import FOLDER, checkpoint_folders, embedded_names

    table = Table("model", "family", "MB", "earlier checkpoints (SUBJECT@CHECKPOINT)")
    for name in embedded_names():
        family = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8"))["model_type"]
        size = sum(f.stat().st_size for f in (FOLDER / name).rglob("*") if f.is_file()) / 1e6
        table.add_row(name, family, f"{size:.1f}", " ".join(checkpoint_folders(FOLDER / name)))
    Console().print(table)


@app.command()
def doctor(
    model: ModelArgument = DEFAULT,
    operators: Operators = "+-*/",
    max_operand: Annotated[int | None, typer.Option(help="Operands go from 0 to this.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    template: TemplateText = "{op1}{operator}{op2}=",
    prefix: Prefix = "",
    device_map: DeviceMap = None,
    quantize: Quantize = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Say whether and how a subject can be studied. The exit code is not zero if it cannot."""
    from arithscope.cli.doctor import examine
    from arithscope.models.load import load
    from arithscope.prompts import operator_indices

    operator_indices(operators)
    how = how_to_load(template, prefix, device, dtype, device_map, quantize, allow_pickle, trust_remote_code)
    for line in examine(load(model, *how), operators, max_operand):
        print(line)


app.command()(bench)
app.command()(verify)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe in TOML, or the name of an embedded subject to train anew.")],
    out: Annotated[Path | None, path_option("Folder for the subject; by default trained/ and its name.")] = None,
    device: Device = "auto",
) -> None:
    """Train a subject from scratch, with checkpoints. A stopped training goes on where it was."""
    from arithscope.models.load import pick_device
    from arithscope.models.sources import FOLDER, embedded_names
    from arithscope.training.loop import train as train_subject
    from arithscope.training.recipe import read_recipe
    from arithscope.utils.progress import for_console

    path = FOLDER / recipe / "recipe.toml" if recipe in embedded_names() else user_path(recipe)
    folder = out or Path("trained") / read_recipe(path).name
    finished = train_subject(path, folder, pick_device(device), for_console(Console(stderr=True)))
    print((finished / "README.md").read_text(encoding="utf-8"))
    print(f"The subject is in {finished}; study it with: arithscope run {finished}")


def _show(parts: Iterable[Any]) -> None:
    """Print lines and tables as they are."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for part in parts:
        console.print(part)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every mistake of the user's becomes one sentence on stderr and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # where a terminal lacks a sign, another stands in its place
        sys.stdout.reconfigure(errors="replace")
    with stop_on_signals() as stop:
        try:
            code: Any = app(args=arguments, prog_name="arithscope", standalone_mode=False)
            if code == INTERRUPTED:  # which Typer may have made of it
                code = stop.told()
        except KeyboardInterrupt:
            code = stop.told()
        except Exception as error:
            # A library may have made another error of an interruption. Typer brings its own copy of click in some versions and
            # uses the package in others: known by its methods.
            if stop.signal is not None or type(error).__name__ == "Abort":
                code = stop.told()
            elif (sentence := _sentence(error)) is not None:
                code = _complain(sentence)
            else:
                raise
    sys.exit(code if isinstance(code, int) else 0)


def _sentence(error: Exception) -> str | None:
    """What to say of an error that is the user's, or the machine's."""
    if isinstance(error, UserError):
        return str(error)
    if (message := getattr(error, "format_message", None)) is not None:
        return f"{message().rstrip().rstrip('.')}. See `arithscope --help`."
    from arithscope.utils.out_of_memory import is_out_of_memory, out_of_memory_error

    return str(out_of_memory_error("this")) if is_out_of_memory(error) else None


def _complain(sentence: str) -> int:
    said = " ".join(sentence.split())
    print(f"arithscope: {said if len(said) <= 1000 else said[:999] + '…'}", file=sys.stderr)
    return 2
