"""The command line: a thin layer over the library. Commands import what they need, so that --help is quick."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from arithscope import __version__
from arithscope.cli import options as opt
from arithscope.errors import UserError
from arithscope.models.sources import DEFAULT
from arithscope.utils.files import user_path
from arithscope.utils.printing import PlainConsole, printable, say
from arithscope.utils.signals import INTERRUPTED, stop_on_signals

if TYPE_CHECKING:
    from arithscope.pipeline.store import RunFolder
    from arithscope.utils.progress import Progress

COMPARISON = Path("runs/comparison")


class _PlainHelp:
    """Hides the types of flags (<bool>) and arguments (<list[Path]>) on the help page."""

    def get_params(self, ctx: Any) -> list[Any]:
        for param in (params := super().get_params(ctx)):  # type: ignore[misc]
            if param.param_type_name == "argument" or param.is_flag:
                param.display_type_rich = lambda ctx: None
        return params


Command: Any = type("Command", (_PlainHelp, TyperCommand), {})
Group: Any = type("Group", (_PlainHelp, TyperGroup), {})
app = typer.Typer(cls=Group, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"arithscope {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")


@app.callback()
def _root(version: Annotated[bool, VERSION] = False) -> None:
    """A microscope for arithmetic in language models."""


@opt.expand_options
def run(
    model: opt.ModelName = DEFAULT,
    out: Annotated[Path | None, opt.study("--out PATH", opt.OUT, parser=user_path)] = None,
    overwrite: Annotated[
        bool, opt.study("--overwrite", "Replace results of other settings in the run folder.")
    ] = False,
    stages: Annotated[str | None, opt.study("--stages NAMES", opt.STAGES)] = None,
    checkpoints: Annotated[str | None, opt.study("--checkpoints NAMES", opt.CHECKPOINTS)] = None,
    *,
    settings: opt.SettingsOptions,
    options: opt.ModelOptions,
    cluster: Annotated[str | None, opt.machine("--cluster ADDRESS", opt.CLUSTER)] = None,
) -> None:
    """Study a model: run all stages, or some, and write a run folder. An interrupted run resumes where it stopped."""
    from arithscope.cli.default_folder import default_folder
    from arithscope.pipeline.study import study as run_study
    from arithscope.report.figure_files import FigureDrawing
    from arithscope.report.layouts import studied_by
    from arithscope.report.terminal import layout_table, summary_tables
    from arithscope.report.warnings import result_warnings

    progress, (template, load_options), chosen = _progress(), options.load_arguments(), settings.settings()
    with FigureDrawing(progress) as figures:

        def write_early_report(folder: RunFolder) -> None:
            figures.finish()
            write_report_of(folder, progress)  # repetitions take longest; the report is there even if they are stopped

        folders = run_study(
            model,
            chosen,
            out or default_folder(model, settings, options),
            stages=None if stages is None else [name.strip() for name in stages.split(",") if name.strip()],
            checkpoints=checkpoints,
            template=template,
            options=load_options,
            cluster=cluster,
            overwrite=overwrite,
            progress=progress,
            on_load=lambda m, executor: say(m if executor.where is None else f"{m}, studied by {executor.where}"),
            after_stage=figures,
            before_repeats=write_early_report,
            digits_by_default=True,
        )
    for folder in folders:
        studied, summary = studied_by(folder), folder.summary
        _print_all([layout_table(studied, summary)] if studied.is_layout else summary_tables(summary))
        for warning in result_warnings(folder):
            say(f"Warning, explained in the report: {warning.name}")
        for step in studied.steps:
            say(f"{step.name.capitalize()}: {write_report_of(step.run, progress) if step.run else step.left_out}")
        say(f"Results are in {folder.path}; open {write_report_of(folder, progress)} to read them.")


def report(run: opt.RunPath) -> None:
    """Write a run's report.html, with all its results; figures that are missing or outdated are drawn first."""
    from arithscope.pipeline.store import RunFolder
    from arithscope.report.layouts import studied_by
    from arithscope.results.run import runs_in

    for folder in map(RunFolder, runs_in(run)):
        studied = studied_by(folder)
        for step in studied.steps:
            if step.run is not None:
                say(f"The report of {step.name} is {write_report_of(step.run, _progress())}")
        about = f" of {studied.part}" if studied.part else ""
        say(f"The report{about} is {write_report_of(folder, _progress())}")


def neuron(
    run: opt.RunPath,
    layer: Annotated[int, opt.argument("LAYER", "The neuron's layer.")],
    index: Annotated[int, opt.argument("NEURON", "The neuron's index in its MLP.")],
    operator: Annotated[str, opt.option("--operator OPERATOR", "One of + - * /.")] = "+",
    step: Annotated[int | None, opt.option("--step N", "Answer step, where numbers take several tokens.")] = None,
) -> None:
    """Show one neuron of a run: its effect and rank, its activation map, the numbers it promotes and its heuristics."""
    from arithscope.report.terminal import neuron_report
    from arithscope.results.run import Run, run_of_step

    _print_all(neuron_report(run_of_step(Run(run), step), layer, index, operator))


@opt.expand_options
def explain(
    run: opt.RunPath,
    prompt: Annotated[str, opt.argument("PROMPT", "A prompt such as 226-68=, whatever the run's template.")],
    raw: Annotated[bool, opt.option("--raw", "Use all matches, not only calibrated ones.")] = False,
    as_json: Annotated[bool, opt.option("--json", "Print JSON.")] = False,
    *,
    options: opt.RunOptions,
) -> None:
    """Explain one prompt: answer, heuristics that hold, their neurons' logit attribution, and the answer without them."""
    from arithscope.experiments.classify import CALIBRATED, RAW
    from arithscope.report.terminal import explanation_report, steps_report
    from arithscope.results.run import explanation_as_json

    opened, criterion = options.open_for(run, prompt), RAW if raw else CALIBRATED
    if not opened.steps:
        explanation = opened.explain(prompt, criterion)
        if as_json:
            say(json.dumps(explanation_as_json(explanation), indent=2, ensure_ascii=False))
        else:
            _print_all(explanation_report(explanation))
        return
    by_step = opened.explain_steps(prompt, criterion)
    if as_json:
        said = {str(step): explanation_as_json(each) for step, each in by_step.items()}
        say(json.dumps(said, indent=2, ensure_ascii=False))
    else:
        _print_all(steps_report(opened.stratum, by_step))


def compare(
    runs: Annotated[list[Path], opt.argument("RUN", "Run folders, two or more.", user_path)],
    out: Annotated[Path, opt.option("--out PATH", "Folder for tables and figures.", parser=user_path)] = COMPARISON,
    overwrite: Annotated[bool, opt.option("--overwrite", "Replace a comparison of other runs in that folder.")] = False,
) -> None:
    """Compare runs: all numbers of their summaries in tables, and the main figures with all runs in each."""
    from arithscope.report.comparison import comparison_tables, write_comparison

    _print_all(comparison_tables(write_comparison(runs, out, _progress(), overwrite)))
    say(f"Tables and figures are in {out}")


@opt.expand_options
def explore(
    runs: Annotated[list[Path], opt.argument("RUN", "Run folders, one or more.", user_path)],
    host: Annotated[str, opt.option("--host ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, opt.option("--port PORT", "Port; default: the first free one from 8350.")] = None,
    no_browser: Annotated[bool, opt.option("--no-browser", "Do not open a browser.")] = False,
    *,
    options: opt.RunOptions,
) -> None:
    """Explore runs in a browser: prompts, neurons, heuristics, circuits, training, and comparisons of runs."""
    if any(importlib.util.find_spec(package) is None for package in ("fastapi", "uvicorn")):
        raise UserError("The explorer needs the packages fastapi and uvicorn; run: pip install 'arithscope[explore]'.")
    from arithscope.results.run import runs_in

    if options.model is not None and len(runs) > 1:
        raise UserError("--model is for a single run; name only one run.")
    from arithscope.explorer.server import serve

    serve([options.open(each) for path in runs for each in runs_in(path)], host, port, not no_browser)


def models() -> None:
    """List the models that come with arithscope."""
    from arithscope.models.sources import FOLDER, embedded_names, local_checkpoints

    table = Table("model", "family", "MB", "earlier checkpoints (MODEL@CHECKPOINT)")
    for name in embedded_names():
        family = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8"))["model_type"]
        size = sum(f.stat().st_size for f in (FOLDER / name).rglob("*") if f.is_file()) / 1e6
        table.add_row(name, family, f"{size:.1f}", " ".join(local_checkpoints(FOLDER / name)))
    _print_all([table])


@opt.expand_options
def doctor(
    model: opt.ModelName = DEFAULT,
    operators: opt.Operators = "+-*/",
    max_operand: Annotated[int | None, opt.study("--max-operand N", "Largest operand; default: up to 300.")] = None,
    digits: opt.Digits = None,
    operands: opt.Operands = None,
    *,
    options: opt.ModelOptions,
) -> None:
    """Check whether a model can be studied; show sizes, tokens, memory needs and accuracy. Exits with code 2 if it cannot."""
    from arithscope.cli.doctor import examine
    from arithscope.models.load import load
    from arithscope.settings import Settings

    ranges = opt.operands_named(digits, operands)
    # Refuses, before a model is loaded, what cannot be studied.
    Settings(tuple(operators), Settings.max_operand if max_operand is None else max_operand, ranges)
    _print_all(examine(load(model, *options.load_arguments()), operators, max_operand, ranges))


@opt.expand_options
def bench(
    model: opt.ModelName = DEFAULT,
    prompts: Annotated[int, opt.study("--prompts N", "Number of prompts on which each neuron is patched.")] = 50,
    layers: Annotated[str | None, opt.study("--layers NUMBERS", opt.LAYERS)] = None,
    seconds: Annotated[float, opt.option("--seconds SECONDS", "How long to measure, roughly.")] = 45.0,
    json: Annotated[Path | None, opt.option("--json PATH", "Also write a JSON file.", parser=user_path)] = None,
    *,
    options: opt.ModelOptions,
) -> None:
    """Measure how fast replay computes exact neuron effects on this machine, compared with full passes."""
    from arithscope.cli import bench as measurement
    from arithscope.models.load import load
    from arithscope.utils.files import explain_write_errors, write_json

    chosen = None if layers is None else measurement.layer_numbers(layers)
    if json is not None and (json.is_dir() or not json.parent.is_dir()):  # before anything is measured
        raise UserError(f"{json} cannot be written; name a file in a folder that exists.")
    loaded = load(model, *options.load_arguments())
    result = measurement.bench(loaded, prompts, chosen, seconds, progress=_progress())
    _print_all(measurement.bench_report(result))
    if json is not None:
        with explain_write_errors(json.parent, "choose another file"):
            write_json(json, result)


@opt.expand_options
def verify(run: opt.RunPath, seed: opt.SampleSeed = 0, *, options: opt.RunOptions) -> None:
    """Recompute a sample of every stage of a run and compare it with the stored numbers. Exits with code 1 if they differ."""
    from arithscope.verify.verify import Verification, conclusion

    if seed < 0:
        raise UserError(f"--seed {seed} is negative; use 0 or more.")
    opened = options.open(run)
    if not opened.stages:
        raise UserError(f"The run in {run} has no finished stage, so there is nothing to verify.")
    verification, verdicts = Verification(opened, seed), []
    for check in (verification.check_files, verification.check_model, partial(verification.check_stages, _progress())):
        for verdict in check():
            say(f"{verdict.about:17}{verdict.text}")
            verdicts.append(verdict)
    summary = conclusion(verdicts, len(opened.stages))
    if not all(verdict.agrees for verdict in verdicts):
        say(f"arithscope: {summary}", error=True)
        raise typer.Exit(1)
    say(summary)
    for step in opened.steps.values():
        say(f"Answer step {step.stratum.step} is a run of its own; verify it with: arithscope verify {step.path}")


def train(
    recipe: Annotated[str, opt.argument("RECIPE", "A TOML file, or an embedded model (NAME) or its twin (NAME-twin).")],
    out: Annotated[Path | None, opt.option("--out PATH", "Folder; default: trained/NAME.", parser=user_path)] = None,
    device: opt.Device = "auto",
) -> None:
    """Train a model from scratch, with checkpoints. An interrupted training run resumes where it stopped."""
    from arithscope.models.load import pick_device
    from arithscope.models.sources import embedded_recipes
    from arithscope.training import loop
    from arithscope.training.recipe import read_recipe

    path = embedded_recipes().get(recipe) or user_path(recipe)
    folder = loop.train(path, out or Path("trained") / read_recipe(path).name, pick_device(device), _progress())
    say((folder / "README.md").read_text(encoding="utf-8"))
    say(f"The model is in {folder}; study it with: arithscope run {folder}")


for command in (run, report, neuron, explain, compare, explore, models, doctor, bench, verify, train):
    app.command(cls=Command)(command)


def write_report_of(run: RunFolder, progress: Progress) -> Path:
    """Draw missing figures, write report.html and return its path."""
    from arithscope.report.figure_files import draw_figures
    from arithscope.report.page import write_report
    from arithscope.utils.files import explain_write_errors, locked

    with locked(run.path), explain_write_errors(run.path):
        draw_figures(run, progress)
        return write_report(run)


def _progress() -> Progress:
    from arithscope.utils.progress import console_progress

    return console_progress(PlainConsole(stderr=True))


def _print_all(lines: Iterable[Any]) -> None:
    """Print lines of text and tables."""
    console = PlainConsole()
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))


def main(arguments: list[str] | None = None) -> None:
    """Entry point. A UserError becomes one sentence on stderr and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals that lack a character
    arguments = sys.argv[1:] if arguments is None else arguments
    resumes = arguments[:1] in (["run"], ["train"])
    with stop_on_signals() as handler:
        try:
            code: Any = app(args=arguments, prog_name="arithscope", standalone_mode=False)
            if code == INTERRUPTED:  # Typer may return this instead of raising
                code = handler.announce(resumes)
        except KeyboardInterrupt:
            code = handler.announce(resumes)
        except Exception as error:
            # Libraries may turn an interruption into another error; Typer's is called Abort.
            if handler.signal is not None or type(error).__name__ == "Abort":
                code = handler.announce(resumes)
            elif (message := _message(error)) is not None:
                message = printable(" ".join(message.split()))
                say(f"arithscope: {message if len(message) <= 1000 else message[:999] + '…'}", error=True)
                code = 2
            else:
                raise
    sys.exit(code if isinstance(code, int) else 0)


def _message(error: Exception) -> str | None:
    """The message for a user's mistake or for a lack of memory; None for any other error."""
    if isinstance(error, UserError):
        return str(error)
    if hasattr(error, "format_message"):  # a usage error, of click or of Typer's copy of it
        return f"{error.format_message().rstrip().rstrip('.')}. See `arithscope --help`."
    from arithscope.utils.out_of_memory import is_out_of_memory, out_of_memory_error

    return str(out_of_memory_error("this")) if is_out_of_memory(error) else None
