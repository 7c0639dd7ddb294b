"""The command `arithscope run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from arithscope.cli.options import (
    AllowPickle,
    ClusterAddress,
    Device,
    DeviceMap,
    Dtype,
    ModelArgument,
    Operators,
    Prefix,
    Quantize,
    TemplateText,
    TrustRemoteCode,
    how_to_load,
    path_option,
)
from arithscope.errors import UserError
from arithscope.models.sources import DEFAULT
from arithscope.utils.paths import user_path

if TYPE_CHECKING:
    from arithscope.pipeline.store import RunFolder
    from arithscope.utils.progress import Progress


def run(
    model: ModelArgument = DEFAULT,
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
    from arithscope.pipeline import runner
    from arithscope.pipeline.checkpoints import follow_training
    from arithscope.pipeline.ray_executor import open_executor
    from arithscope.pipeline.repeats import repeat_study, wants_repeats
    from arithscope.report.figure_workers import drawing
    from arithscope.report.terminal import summary_tables
    from arithscope.report.warnings import result_warnings
    from arithscope.settings import Settings
    from arithscope.utils.progress import for_console

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
    followed, repeated = _checkpoints(model, checkpoints, names), wants_repeats(settings, names)
    if followed and names is not None:
        names.append("training")
    names = [stage.name for stage in runner.chosen_stages(names) if not stage.asked]
    how = how_to_load(template, prefix, device, dtype, device_map, quantize, allow_pickle, trust_remote_code)
    progress = for_console(Console(stderr=True))

    with open_executor(cluster, *how, progress) as (executor, load):
        with drawing(progress) as draw:
            loaded = load(model)
            print(loaded, *([] if executor.where is None else [f"studied by {executor.where}"]))
            folder = runner.run(loaded, settings, out or _default_out(model), names, progress, draw, executor=executor)
            if followed:
                folder = follow_training(
                    loaded, followed, lambda name: load(f"{model}@{name}"), settings, folder, progress, draw, executor
                )
        if repeated:
            write_report_of(folder, progress)  # repeating takes longest: whoever stops it has a report already
            folder = repeat_study(loaded, settings, folder, progress, executor)
    for table in summary_tables(folder.summary):
        Console().print(table)
    for weak in result_warnings(folder):
        print(f"Weak point, told in the report: {weak.name}")
    print(f"Results are in {folder.path}; to read them, open {write_report_of(folder, progress)}")


def write_report_of(run: RunFolder, progress: Progress) -> Path:
    """Draw what is missing, write report.html, and say where it is."""
    from arithscope.report.figure_files import draw_plates
    from arithscope.report.page import write_report
    from arithscope.utils.files import locked, writing

    with locked(run.path), writing(run.path):
        draw_plates(run, progress)
        return write_report(run)


def _checkpoints(model: str, wanted: str | None, stages: list[str] | None) -> list[str]:
    """The checkpoints to follow, if any."""
    from arithscope.models.checkpoints import chosen_checkpoints

    if wanted is not None:
        return chosen_checkpoints(model, wanted)
    if stages is not None and "training" in stages:
        raise UserError("The stage training needs checkpoints to follow; add --checkpoints all.")
    return []


def _default_out(model: str) -> Path:
    """runs/tiny-llama, runs/tiny-pythia@step-00500, runs/EleutherAI--pythia-70m."""
    path = user_path(model)
    name = (path.stem if path.is_file() else path.resolve().name) if path.exists() else model.replace("/", "--")
    return Path("runs") / name
