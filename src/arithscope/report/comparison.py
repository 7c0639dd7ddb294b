"""A comparison of runs: tables in the terminal, and a folder with all numbers, curves and figures.

comparison.json                     which runs were compared
table.parquet, curves.parquet       all numbers of the runs' summaries, and the curves
NAME.png, NAME.svg                  figures, each with all runs: bars by operator, or curves on common axes
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from arithscope.errors import UserError
from arithscope.experiments.common.result import AVERAGE
from arithscope.figures.style import SIGNS, grouped_bars, line_with_band, literal, new_figure, outside_legend, styled
from arithscope.report.figure_files import save_figure
from arithscope.report.formatting import worded
from arithscope.report.terminal import measures_table
from arithscope.results.comparison import Comparison, compare
from arithscope.utils.files import atomic_folder, explain_write_errors, read_text, user_path, write_json
from arithscope.utils.progress import Progress

INDEX = "comparison.json"
TABLES = ("table.parquet", "curves.parquet")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#666666")


@dataclass(frozen=True)
class Bars:
    """One panel per measure of an experiment, one group of bars per operator, one bar per run."""

    name: str
    experiment: str
    measures: tuple[str, ...]

    def has_data(self, comparison: Comparison) -> bool:
        return set(self.measures) <= set(comparison.measures(self.experiment))

    @styled
    def draw(self, comparison: Comparison) -> Figure:
        t = comparison.table
        table = t[(t.experiment == self.experiment) & t.measure.isin(self.measures)]
        operators, panels = list(table.operator.unique()), len(self.measures)
        figure, axes = new_figure(min(15, 1.6 + (1.0 + 0.5 * len(operators)) * panels), 3.6, 1, panels)
        for panel, measure in zip(axes[0], self.measures, strict=True):
            means = table[table.measure == measure].set_index(["run", "operator"])
            runs = zip(comparison.runs, cycle(COLOURS), strict=False)
            bars = [(means.reindex([(run, o) for o in operators]), colour, literal(run)) for run, colour in runs]
            grouped_bars(panel, operators, bars, error_kw={"elinewidth": 0.8})
            panel.set_title(measure.replace("_", " "))
            panel.axhline(0, color="black", linewidth=0.6)
        outside_legend(figure, axes[0, 0])
        return figure


@dataclass(frozen=True)
class Curves:
    """One panel per operator, one line per run; the control, if there is one, is dotted."""

    name: str
    label: str
    curve: str
    control: str | None = None
    log: bool = False

    def has_data(self, comparison: Comparison) -> bool:
        return self.curve in set(comparison.curves.curve)

    @styled
    def draw(self, comparison: Comparison) -> Figure:
        styles = {self.curve: "-"} | ({self.control: ":"} if self.control else {})
        table = comparison.curves[comparison.curves.curve.isin(list(styles))]
        operators = list(dict.fromkeys(table.operator))
        figure, axes = new_figure(2.8 * len(operators) + 1.8, 3.4, 1, len(operators), sharey=True)
        for panel, operator in zip(axes[0], operators, strict=True):
            lines = table[table.operator == operator]
            for curve, style in styles.items():
                for run, colour in zip(comparison.runs, cycle(COLOURS), strict=False):
                    rows = lines[(lines.curve == curve) & (lines.run == run)].sort_values("x")
                    label = run if style == "-" else f"{run}, {curve.split(' without ')[-1]}"
                    line_with_band(panel, rows.x, rows, color=colour, linestyle=style, label=literal(label))
            panel.set(title=SIGNS[operator], xlabel=self.label, ylim=(-0.05, 1.05))
            if self.log:
                panel.set_xscale("symlog", linthresh=1)
            panel.set_xlim(0, None)
        axes[0, 0].set_ylabel(self.curve.split(" by ")[0].split(" without ")[0])
        outside_legend(figure, axes[0, 0])
        return figure


FIGURES: tuple[Bars | Curves, ...] = (
    Bars("accuracy", "accuracy", ("accuracy", "p_answer")),
    Bars("whole-answers", "whole_answers", ("accuracy", "p_answer", "agreement")),
    Curves("faithfulness-by-heads", "share of all heads", "faithfulness by share of heads"),
    Curves("probe-accuracy", "depth (share of layers)", "probe accuracy by depth"),
    Curves("faithfulness-by-neurons", "share of an MLP's neurons", "faithfulness by share of neurons"),
    Bars("classified-shares", "classify", ("raw_share", "calibrated_share")),
    Curves("classified-by-depth", "depth (share of layers)", "share classified by depth"),
    Bars("overlap", "overlap", ("mean_iou",)),
    Bars("knockout", "knockout", ("calibrated_associated", "calibrated_not_associated", "calibrated_difference")),
    Curves(
        "prompt-knockout",
        "neurons ablated per layer",
        "accuracy without associated neurons",
        "accuracy without random neurons",
        log=True,
    ),
    Bars(
        "bag-alone", "bag", ("calibrated_faithfulness", "random_faithfulness", "calibrated_accuracy", "random_accuracy")
    ),
    Bars("failures", "failures", ("calibrated_associated_neurons", "calibrated_contribution", "calibrated_auc")),
    Curves("training", "training (first to final checkpoint)", "final pairs present over training"),
)


def write_comparison(paths: Sequence[Path], out: Path, progress: Progress, overwrite: bool = False) -> Comparison:
    """Compare runs and write the folder `out`, all of it or nothing. Raises UserError if `out` holds anything but a comparison
    of these runs, or, with `overwrite`, of any runs."""
    _check_writable(out, paths, overwrite)
    comparison = compare(paths)
    figures = [figure for figure in FIGURES if figure.has_data(comparison)]
    with explain_write_errors(out, "choose another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as folder, progress.task("compare", len(figures)) as advance:
            for name, table in zip(TABLES, (comparison.table, comparison.curves), strict=True):
                table.to_parquet(folder / name, index=False)
            for figure in figures:
                title = worded("comparison", "title", figure=figure.name)
                caption = worded("comparison", figure.name.replace("-", "_"))
                save_figure(folder, figure.name, figure.draw(comparison), title, caption)
                advance(1)
            write_json(folder / INDEX, {"runs": dict(zip(comparison.runs, map(str, paths), strict=True))})
    return comparison


def _check_writable(out: Path, paths: Sequence[Path], overwrite: bool) -> None:
    if not out.exists():
        return
    try:
        compared = list(json.loads(read_text(out / INDEX))["runs"].values())
        same = sorted(user_path(path).resolve() for path in compared) == sorted(path.resolve() for path in paths)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{out} exists and holds no comparison; choose another --out.") from None
    ours = {INDEX, *TABLES, *(f"{figure.name}.{end}" for figure in FIGURES for end in ("png", "svg"))}
    if others := sorted({entry.name for entry in out.iterdir()} - ours):
        raise UserError(f"{out} holds more than a comparison ({others[0]}), which would be lost; choose another --out.")
    if not same and not overwrite:
        raise UserError(
            f"{out} holds a comparison of other runs; choose another --out, or replace it with --overwrite."
        )


def comparison_tables(comparison: Comparison) -> Iterator[Table]:
    """One table per experiment: a column per run, a row per measure; averages over operators where there are any."""
    for experiment in dict.fromkeys(chain(*comparison.summaries.values())):
        columns: dict[str, dict[str, Any]] = {}
        for run, summary in comparison.summaries.items():
            operators = summary.get(experiment, {})
            averages = operators.get(AVERAGE, {})
            columns[run] = {
                f"{measure} {operator}": entry
                for operator, entries in operators.items()
                for measure, entry in entries.items()
                if measure not in averages
            } | averages
        yield measures_table(experiment, columns)
