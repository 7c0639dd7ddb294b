"""The command line: a thin layer over the library. Heavy imports happen inside the commands, so that --help is quick."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from arithscope import __version__
from arithscope.cli_bench import bench
from arithscope.errors import UserError
from arithscope.options import (
    AllowPickle,
    ClusterAddress,
    Device,
    DeviceMap,
    Dtype,
    Operators,
    Prefix,
    Quantize,
    RunArgument,
    SubjectArgument,
    TemplateText,
    TrustRemoteCode,
    how_to_load,
    path_option,
)
from arithscope.paths import user_path
from arithscope.subject.embedded import DEFAULT

if TYPE_CHECKING:
    from arithscope.progress import Progress
    from arithscope.store import RunFolder

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


@app.command()
def run(
    subject: SubjectArgument = DEFAULT,
    out: Annotated[Path | None, path_option("Run folder; by default runs/ and the subject's name.")] = None,
    operators: Operators = "+-*/",
    max_operand: Annotated[int, typer.Option(help="Operands go from 0 to this.")] = 300,
    preset: Annotated[str, typer.Option(help="quick (smaller samples) or paper (the paper's).")] = "quick",
    stages: Annotated[
        str | None, typer.Option(help="Only these stages and what they need, with commas between.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same numbers.")] = 0,
    effect: Annotated[
        str, typer.Option(help="What ranks components: probability (the paper's), log_ratio or logit.")
    ] = "probability",
    uncentred: Annotated[
        bool, typer.Option("--uncentred", help="Take NL from logits as they are, not centred.")
    ] = False,
    ratio_of_means: Annotated[
        bool, typer.Option("--ratio-of-means", help="Faithfulness as a ratio of means, not a mean of ratios.")
    ] = False,
    neurons: Annotated[
        str,
        typer.Option(
            help="Effects of neurons: exact, estimated (atp, ig, relp), or exact for those that a screen picks (screen)."
        ),
    ] = "exact",
    rank: Annotated[str, typer.Option(help="What ranks neurons: the mean of their effects, or mean+std.")] = "mean",
    topk: Annotated[
        int | None, typer.Option(help="Neurons kept of each MLP (the paper's: 200); by default as few as suffice.")
    ] = None,
    both_operands: Annotated[
        bool, typer.Option("--both-operands", help="Also try heuristics about both operands at once.")
    ] = False,
    knockout_at: Annotated[
        str, typer.Option(help="Where neurons are silenced: at the last position, or at all.")
    ] = "last",
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help="Also follow the subject through training: all its checkpoints, or names with commas between."
        ),
    ] = None,
    cluster: ClusterAddress = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    template: TemplateText = "{op1}{operator}{op2}=",
    prefix: Prefix = "",
    device_map: DeviceMap = None,
    quantize: Quantize = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Study a subject: run all stages, or some, into a run folder. A stopped run goes on where it was."""
    from arithscope import study
    from arithscope.checkpoints import follow
    from arithscope.cluster.driver import working
    from arithscope.progress import for_console
    from arithscope.report.studio import drawing
    from arithscope.report.terminal import summary_tables
    from arithscope.settings import Settings

    settings = Settings(
        operators=tuple(operators),
        max_operand=max_operand,
        preset=preset,
        seed=seed,
        effect=effect,
        centre=not uncentred,
        ratio_of_means=ratio_of_means,
        neurons=neurons,
        rank=rank,
        topk=topk,
        both_operands=both_operands,
        knockout_at=knockout_at,
    )
    names = None if stages is None else [name.strip() for name in stages.split(",") if name.strip()]
    followed = _checkpoints(subject, checkpoints, names)
    if followed and names is not None:
        names.append("training")
    names = [stage.name for stage in study.chosen_stages(names) if not stage.asked]
    how = how_to_load(template, prefix, device, dtype, device_map, quantize, allow_pickle, trust_remote_code)
    progress = for_console(Console(stderr=True))

    with drawing(progress) as draw, working(cluster, *how, progress) as (work, load):
        loaded = load(subject)
        print(loaded, *([] if work.where is None else [f"studied by {work.where}"]))
        folder = study.run(loaded, settings, out or _default_out(subject), names, progress, draw, work=work)
        if followed:
            folder = follow(
                loaded, followed, lambda name: load(f"{subject}@{name}"), settings, folder, progress, draw, work
            )
    for table in summary_tables(folder.summary):
        Console().print(table)
    print(f"Results are in {folder.path}; to read them, open {_write_report(folder, progress)}")


@app.command()
def report(run: RunArgument) -> None:
    """Write report.html, the page with all that a run found; figures that are missing or out of date are drawn first."""
    from arithscope.progress import for_console
    from arithscope.store import RunFolder

    print(f"The report is {_write_report(RunFolder(run), for_console(Console(stderr=True)))}")


@app.command()
def neuron(
    run: RunArgument,
    layer: Annotated[int, typer.Argument(metavar="L", help="Layer.")],
    index: Annotated[int, typer.Argument(metavar="N", help="Neuron of that layer.")],
    operator: Annotated[str, typer.Option(help="One of + - * /.")] = "+",
) -> None:
    """Show one neuron of a run: its effect and rank, its pattern, the numbers it promotes, its heuristics."""
    from arithscope.report.neuron import neuron_report
    from arithscope.runs.run import Run

    _show(neuron_report(Run(run), layer, index, operator))


@app.command()
def explain(
    run: RunArgument,
    prompt: Annotated[str, typer.Argument(help="A prompt as in 226-68=, whatever the run's template.")],
    raw: Annotated[bool, typer.Option("--raw", help="Use all matches, not only the calibrated ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, for programs.")] = False,
    subject: Annotated[
        str | None, typer.Option(help="Where the run's subject is now, if it is not where it was.")
    ] = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Explain one prompt: the answer, the heuristics behind it, what their neurons add, and the answer without them."""
    import json

    from arithscope.experiments.classify import CALIBRATED, RAW
    from arithscope.report.explanation import explanation_report
    from arithscope.runs.run import Run, explanation_as_json
    from arithscope.subject.load import LoadOptions

    options = LoadOptions(
        device=device, device_map=device_map, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    found = Run(run, subject, options).explain(prompt, RAW if raw else CALIBRATED)
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
    from arithscope.progress import for_console
    from arithscope.report.comparison import comparison_tables, write_comparison

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
    subject: Annotated[
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
    if subject is not None and len(runs) > 1:
        raise UserError("--subject says where one run's subject is; name one run only.")
    from arithscope.explorer.serve import serve
    from arithscope.runs.run import Run
    from arithscope.subject.load import LoadOptions

    options = LoadOptions(
        device=device, device_map=device_map, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    serve([Run(path, subject, options) for path in runs], host, port, browser)


@app.command()
def subjects() -> None:
    """List the subjects that come with arithscope."""
    import json

    from rich.table import Table

    from arithscope.subject.embedded import FOLDER, checkpoint_folders, embedded_names

    table = Table("subject", "family", "MB", "earlier checkpoints (SUBJECT@CHECKPOINT)")
    for name in embedded_names():
        family = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8"))["model_type"]
        size = sum(f.stat().st_size for f in (FOLDER / name).rglob("*") if f.is_file()) / 1e6
        table.add_row(name, family, f"{size:.1f}", " ".join(checkpoint_folders(FOLDER / name)))
    Console().print(table)


@app.command()
def doctor(
    subject: SubjectArgument = DEFAULT,
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
    from arithscope.doctor import examine
    from arithscope.prompts import operator_indices
    from arithscope.subject.load import load

    operator_indices(operators)
    how = how_to_load(template, prefix, device, dtype, device_map, quantize, allow_pickle, trust_remote_code)
    for line in examine(load(subject, *how), operators, max_operand):
        print(line)


app.command()(bench)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe in TOML, or the name of an embedded subject to train anew.")],
    out: Annotated[Path | None, path_option("Folder for the subject; by default trained/ and its name.")] = None,
    device: Device = "auto",
) -> None:
    """Train a subject from scratch, with checkpoints. A stopped training goes on where it was."""
    from arithscope.progress import for_console
    from arithscope.subject.embedded import FOLDER, embedded_names
    from arithscope.subject.load import pick_device
    from arithscope.training.loop import train as train_subject
    from arithscope.training.recipe import read_recipe

    path = FOLDER / recipe / "recipe.toml" if recipe in embedded_names() else user_path(recipe)
    folder = out or Path("trained") / read_recipe(path).name
    finished = train_subject(path, folder, pick_device(device), for_console(Console(stderr=True)))
    print((finished / "README.md").read_text(encoding="utf-8"))
    print(f"The subject is in {finished}; study it with: arithscope run {finished}")


def _write_report(run: RunFolder, progress: Progress) -> Path:
    from arithscope.report.page import write_report
    from arithscope.report.plates import draw_plates
    from arithscope.store import locked

    try:
        with locked(run.path):
            draw_plates(run, progress)
            return write_report(run)
    except OSError as error:
        raise UserError(f"Cannot write the report into {run.path} ({error.strerror}).") from None


def _show(parts: Iterable[Any]) -> None:
    """Print lines and tables as they are."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for part in parts:
        console.print(part)


def _checkpoints(subject: str, wanted: str | None, stages: list[str] | None) -> list[str]:
    """The checkpoints to follow, if any."""
    from arithscope.subject.checkpoints import chosen_checkpoints

    if wanted is not None:
        return chosen_checkpoints(subject, wanted)
    if stages is not None and "training" in stages:
        raise UserError("The stage training needs checkpoints to follow; add --checkpoints all.")
    return []


def _default_out(subject: str) -> Path:
    """runs/tiny-llama, runs/tiny-pythia@step-00500, runs/EleutherAI--pythia-70m."""
    path = user_path(subject)
    name = (path.stem if path.is_file() else path.resolve().name) if path.exists() else subject.replace("/", "--")
    return Path("runs") / name


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every mistake of the user's becomes one sentence on stderr and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # where a terminal lacks a sign, another stands in its place
        sys.stdout.reconfigure(errors="replace")
    try:
        code: Any = app(args=arguments, prog_name="arithscope", standalone_mode=False)
    except UserError as error:
        code = _complain(str(error))
    except KeyboardInterrupt:
        code = _stopped()
    except Exception as error:
        # typer brings its own copy of click in some versions and uses the package in others: known by its methods.
        if type(error).__name__ == "Abort":
            code = _stopped()
        elif (message := getattr(error, "format_message", None)) is not None:
            code = _complain(f"{message()} See `arithscope --help`.")
        else:
            raise
    sys.exit(code if isinstance(code, int) else 0)


def _stopped() -> int:
    print("Stopped; the same command goes on from here.", file=sys.stderr)
    return 130


def _complain(sentence: str) -> int:
    said = " ".join(sentence.split())
    print(f"arithscope: {said if len(said) <= 1000 else said[:999] + '…'}", file=sys.stderr)
    return 2
