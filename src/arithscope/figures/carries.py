"""Where digits and carries are held, and the heads and MLPs that move a carry."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from arithscope.experiments.carries import CARRY, DIGIT, EVALUATION, SAME_CARRY, Carries
from arithscope.experiments.localize import MLP, component_name
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.figures.registry import figure
from arithscope.figures.style import SIGNS, errors, grid_shape, hide_unused, new_figure, position_colour
from arithscope.models.hooks import EMBEDDINGS

PANELS = {DIGIT: "another token: {place}", CARRY: "another {carry}", SAME_CARRY: "control: the same {carry}"}
MOST_COMPONENTS = 10  # named of each carry
LAYERS_NAMED = 10
CELLS = 120  # with shares written into them


@figure("held", WholeAnswers, Carries, section="carries", order=320, title="Where each digit and each carry is held")
def held(answers: WholeAnswers, carries: Carries) -> Figure:
    """The residual stream at one position, after one layer, is replaced by that of a prompt that the model also gets
    right. Another token: of its answer, only the one that is asked for differs. Another carry: one lower digit differs,
    and with it the carry (or borrow) into this place. Control: one lower digit differs, but not the carry. Colour: the
    share of answers that follow, on held-out prompts: they become the other prompt's token, or with the control, the
    token that another carry would give. Framed: the position at which most answers follow on other prompts, by layer.
    In the embeddings the digit that differs is exchanged itself, and after the last layer all that the answer depends
    on, so there they follow by construction. (Not in the paper.)"""
    table = carries.exchange[carries.exchange["sample"] == EVALUATION]
    places = list(dict.fromkeys(zip(table.operator, table.step, strict=True)))
    sources = [name for name in PANELS if name in set(table.sources)]
    layers = sorted(int(layer) for layer in table.layer.unique())
    widest = max((table[table.step == step].position.nunique() for _, step in places), default=1)
    size = 1.2 + (0.4 + 0.34 * widest) * max(1, len(sources)), 0.6 + (1.0 + 0.26 * len(layers)) * max(1, len(places))
    figure, axes = new_figure(*size, max(1, len(places)), max(1, len(sources)))
    mesh: Any = None
    for row, (operator, step) in zip(axes, places, strict=False):
        name = answers.stratum.at_step(int(step)).step_name
        for panel, kind in zip(row, sources, strict=True):
            own = table[(table.operator == operator) & (table.step == step) & (table.sources == kind)]
            if own.empty:
                panel.set_visible(False)
                continue
            mesh = _draw_shares(panel, own)
            panel.set_title(
                f"{SIGNS[operator]}  {PANELS[kind].format(place=name, carry=carry_into(name, operator))}", loc="left"
            )
            of_kind = carries.held[(carries.held.operator == operator) & (carries.held.step == step)]
            _frame(panel, of_kind[of_kind.sources == kind], list(own.position.unique()))
        row[0].set_ylabel("after layer")
    if mesh is None:
        axes[0, 0].text(0.5, 0.5, "too few prompts have such counterfactuals", ha="center", va="center")
    else:
        figure.colorbar(mesh, ax=axes, label="share that follow", shrink=0.8)
    return figure


def carry_into(place: str, operator: str) -> str:
    """`carry into the tens`, or for − `borrow into the tens`."""
    return f"{'borrow' if operator == '-' else 'carry'} into the {place}"


def _draw_shares(panel: Axes, rows: pd.DataFrame) -> Any:
    positions = list(rows.position.unique())
    shares = rows.pivot(index="layer", columns="position", values="value")[positions]
    mesh = panel.pcolormesh(shares.to_numpy(), vmin=0, vmax=1, cmap="Blues", edgecolors="white", linewidth=0.5)
    if shares.size <= CELLS:
        for (i, j), share in np.ndenumerate(shares.to_numpy()):
            if share >= 0.005:
                colour = "white" if share > 0.5 else "black"
                text = f"{share:.2f}"[1:] if share < 0.995 else "1"
                panel.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=7, color=colour)
    panel.set_xticks(np.arange(len(positions)) + 0.5, positions, rotation=60, ha="right")
    step = -(-len(shares) // LAYERS_NAMED)
    names = ["embeddings" if layer == EMBEDDINGS else str(layer) for layer in shares.index]
    panel.set_yticks(np.arange(len(shares))[::step] + 0.5, names[::step])
    panel.spines[:].set_visible(False)
    return mesh


def _frame(panel: Axes, best: pd.DataFrame, positions: list[str]) -> None:
    for row in best.to_dict("records"):
        corner = positions.index(row["position"]), row["layer"] - EMBEDDINGS
        panel.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.2))


def strongest_components(components: pd.DataFrame, operator: str, step: int) -> pd.DataFrame:
    """Heads and MLPs by effect on a carry, each at a position; strongest first."""
    rows = components[(components.operator == operator) & (components.step == step)]
    return rows[rows.measure == "log_ratio"].sort_values("value", ascending=False, kind="stable")


def component_place(row: Any) -> str:
    """MLP2 at answer.1"""
    return f"{component_name(row['layer'], row['head'])} at {row['position']}"


@figure(
    "carry-components", WholeAnswers, Carries, section="carries", order=330, title="Heads and MLPs that move a carry"
)
def carry_components(answers: WholeAnswers, carries: Carries) -> Figure:
    """Activation patching with prompts that differ in one lower digit, and with it in the carry (or borrow) into this
    place: each head and each MLP is set, at one position, to its activation on the other prompt. Effect: half the gain
    in log-probability of the other prompt's token, plus half the loss of the right one. The strongest at any position
    are shown; colours stand for positions, pale bars for heads. Error bars: 95 % intervals over held-out prompts. (Not
    in the paper.)"""
    places = list(dict.fromkeys(zip(carries.components.operator, carries.components.step, strict=True)))
    rows, columns = grid_shape(len(places), 3)
    figure, axes = new_figure(4.0 * columns, 3.4 * rows, rows, columns)
    panels = list(axes.ravel())
    for panel, (operator, step) in zip(panels, places, strict=False):
        top = strongest_components(carries.components, operator, step).head(MOST_COMPONENTS)
        y = np.arange(len(top))
        bars = panel.barh(y, top.value, xerr=errors(top), color=[position_colour(p) for p in top.position])
        for bar, head in zip(bars, top["head"], strict=True):
            bar.set_alpha(1.0 if head == MLP else 0.55)
        panel.set_yticks(y, [component_place(row) for row in top.to_dict("records")], fontsize=7)
        panel.invert_yaxis()
        name = answers.stratum.at_step(int(step)).step_name
        panel.set(title=f"{SIGNS[operator]}: {carry_into(name, operator)}", xlabel="effect of patching (log-ratio)")
    if not places:
        panels[0].text(0.5, 0.5, "no step has a carry into its place", ha="center", va="center")
    hide_unused(panels, max(1, len(places)))
    return figure
