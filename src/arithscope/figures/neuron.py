"""One neuron: what makes it fire, what it writes, and both together."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from arithscope.figures.patterns import field
from arithscope.figures.style import new_figure, styled


@styled
def neuron_figure(
    operator: str,
    activations: NDArray[np.float32],
    logits: NDArray[np.float32],
    push: NDArray[np.float32],
    title: str,
) -> Figure:
    figure, [[pattern, values, product]] = new_figure(11, 3.4, 1, 3)
    field(pattern, operator, activations, "activation", scale=activations[~np.isnan(push)])
    pattern.set_title("activation")
    values.plot(np.arange(len(logits)), logits, linewidth=0.7)
    values.set_title("value vector's logits")
    values.set_xlabel("number")
    field(product, operator, push, "activation × logit of the answer")
    product.set_title("what it adds to the answer")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure
