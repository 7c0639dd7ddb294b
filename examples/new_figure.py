"""A figure, a finding and a check for the stage of new_stage.py. The report and `verify` include them."""

from matplotlib.figure import Figure
from new_stage import Symmetry

import arithscope
from arithscope.cli.app import write_report_of
from arithscope.figures.registry import figure
from arithscope.report.findings.finding import Finding, finding
from arithscope.utils.progress import Silent
from arithscope.verify.checks import VerifyContext, check


@figure("symmetry", Symmetry, title="Does the order of the operands matter?")
def draw(symmetry: Symmetry) -> Figure:
    """Share of pairs a+b, b+a that get the same answer."""
    chart = Figure(figsize=(4, 3))
    chart.subplots().bar(symmetry.table.operator, symmetry.table.value)
    return chart


@finding("symmetry", Symmetry)
def word(symmetry: Symmetry) -> Finding:
    return Finding(f"{symmetry.table.value.iloc[0]:.1%} of the pairs get the same answer.")


@check(Symmetry)
def is_share(ctx: VerifyContext, stored: Symmetry) -> None:
    ctx.tally.same("shares in [0, 1]", bool(stored.table.value.between(0, 1).all()), True)


if __name__ == "__main__":
    run = arithscope.run("tiny-gptj", "runs/symmetry", ["symmetry"], operators="+", max_operand=30)
    print(write_report_of(run.folder, Silent()))
