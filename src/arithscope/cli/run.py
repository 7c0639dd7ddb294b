"""The command `arithscope run`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from arithscope.cli import options as opt
from arithscope.models.sources import DEFAULT
from arithscope.utils.files import user_path

if TYPE_CHECKING:
    from arithscope.pipeline.store import RunFolder
    from arithscope.utils.progress import Progress

# Help texts.
STAGES = "Only these stages, and those they need; separate with commas."
CHECKPOINTS = "Also study training checkpoints: all, or names separated by commas."
EFFECT = "Effect that ranks components: probability (the paper's), log_ratio or logit."
TOPK = "Neurons kept per MLP (paper: 200); default: as few as suffice."
BOTH_OPERANDS = "Also try heuristics about both operands at once."
CLUSTER = "Use a Ray cluster: its address, or local; needs the extra `cluster`."
NEURONS = (
    "How neuron effects are computed: exact; atp, ig or relp (attribution methods); or atp+exact: attribution patching for "
    "all neurons and exact patching for its top 10 %."
)


@dataclass(frozen=True)
class SettingsOptions:
    """The fields of `Settings` that can be set on the command line."""

    operators: opt.Operators = "+-*/"
    max_operand: Annotated[int, opt.study("N", "Operands range from 0 to N.")] = 300
    preset: Annotated[str, opt.samples("NAME", "Sample sizes: quick, or paper (as in the paper).")] = "quick"
    seed: Annotated[int, opt.samples("N", "Seed of all random choices.")] = 0
    effect: Annotated[str, opt.measures("NAME", EFFECT)] = "probability"
    neurons: Annotated[str, opt.measures("METHOD", NEURONS)] = "exact"
    rank: Annotated[str, opt.measures("NAME", "Rank neurons by the mean of their effects, or by mean+std.")] = "mean"
    topk: Annotated[int | None, opt.measures("K", TOPK)] = None
    both_operands: Annotated[bool, opt.flag("--both-operands", BOTH_OPERANDS, panel="Measures")] = False


@opt.expand_options
def run(
    model: opt.ModelName = DEFAULT,
    out: Annotated[Path | None, opt.study("PATH", "Run folder; default: runs/MODEL.", parser=user_path)] = None,
    stages: Annotated[str | None, opt.study("NAMES", STAGES)] = None,
    checkpoints: Annotated[str | None, opt.study("NAMES", CHECKPOINTS)] = None,
    *,
    settings: SettingsOptions,
    options: opt.ModelOptions,
    cluster: Annotated[str | None, opt.machine("ADDRESS", CLUSTER)] = None,
) -> None:
    """Study a model: run all stages, or some, and write a run folder. A stopped run continues where it was."""
    from arithscope.pipeline.study import study as run_study
    from arithscope.report.figure_workers import drawing
    from arithscope.report.terminal import summary_tables
    from arithscope.report.warnings import result_warnings
    from arithscope.settings import Settings
    from arithscope.utils.progress import console_progress

    progress = console_progress(Console(stderr=True))
    template, load_options = options.load_arguments()
    with ExitStack() as figures:

        def write_early_report(folder: RunFolder) -> None:
            figures.close()  # all figures are drawn now
            write_report_of(folder, progress)  # repetitions take longest: whoever stops them has a report already

        folder = run_study(
            model,
            Settings(**vars(settings)),
            out or _default_out(model),
            stages=None if stages is None else [name.strip() for name in stages.split(",") if name.strip()],
            checkpoints=checkpoints,
            template=template,
            options=load_options,
            cluster=cluster,
            progress=progress,
            on_load=lambda m, executor: print(m if executor.where is None else f"{m}, studied by {executor.where}"),
            after_stage=figures.enter_context(drawing(progress)),
            before_repeats=write_early_report,
        )
    for table in summary_tables(folder.summary):
        Console().print(table)
    for warning in result_warnings(folder):
        print(f"Warning, explained in the report: {warning.name}")
    print(f"Results are in {folder.path}; to read them, open {write_report_of(folder, progress)}")


def write_report_of(run: RunFolder, progress: Progress) -> Path:
    """Draw missing figures, write report.html and return its path."""
    from arithscope.report.figure_files import draw_figures
    from arithscope.report.page import write_report
    from arithscope.utils.files import explain_write_errors, locked

    with locked(run.path), explain_write_errors(run.path):
        draw_figures(run, progress)
        return write_report(run)


def _default_out(model: str) -> Path:
    """runs/tiny-llama, runs/tiny-pythia@step-00500, runs/EleutherAI--pythia-70m."""
    path = user_path(model)
    name = (path.stem if path.is_file() else path.resolve().name) if path.exists() else model.replace("/", "--")
    return Path("runs") / name
