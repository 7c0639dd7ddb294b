"""The figures of a run. A draw function registers itself with the result classes it draws from; its docstring is the caption:

    @figure("probe-accuracy", Probe, section="probes", title="Where the answer is linearly decodable")
    def probe_accuracy(probe: Probe) -> Figure:
        \"\"\"Accuracy of linear probes from the residual stream to the answer. (Paper: Figure 3.)\"\"\"

Titles and captions may have words of `Words`: {ANSWER} becomes `answer`, or where one of its tokens is studied, `tens digit`.
A module outside this package registers its figures in the same way, on import.
"""

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TypeVar

from matplotlib.figure import Figure

from arithscope import figures
from arithscope.figures.style import styled
from arithscope.figures.words import WHOLE_NUMBERS, Words

LAST = 1000  # the order of figures that give none
DEFINITIONS = {  # shared by captions, whose docstrings refer to them by name
    "{EFFECT}": "The effect of an intervention (Eq. 1) is half the relative gain in the counterfactual {ANSWER}'s "
    "probability plus half the relative loss in the correct {ANSWER}'s.",
    "{FAITHFULNESS}": "Faithfulness (Eq. 2): the {ANSWER}'s normalised logit with everything outside the circuit "
    "mean-ablated, on a scale from the empty circuit (0) to the full model (1). Bands and brackets: 95 % intervals.",
}
_FIGURES: "dict[str, FigureSpec]" = {}
Draw = TypeVar("Draw", bound=Callable[..., Figure])


@dataclass(frozen=True)
class FigureSpec:
    """A registered figure.

    Attributes:
        name: File name without its extension.
        results: Result classes; `draw` takes one result of each, in this order.
        draw: Draws the figure, without title and caption.
        heading: Title as it was registered.
        section: Section of the report; None for the last one, "More results".
        order: Position among all figures.
        words: Words of title and caption.
    """

    name: str
    results: tuple[type, ...]
    draw: Callable[..., Figure]
    heading: str
    section: str | None
    order: int
    words: Words = WHOLE_NUMBERS

    def in_words(self, words: Words) -> "FigureSpec":
        """The same figure, with title and caption in other words."""
        return replace(self, words=words)

    @property
    def title(self) -> str:
        """Heading in the report, drawn above the figure in its files."""
        return self.words.fill(self.heading)

    @property
    def caption(self) -> str:
        """How to read the figure: the docstring of `draw`, as one paragraph with the common definitions."""
        text = " ".join((inspect.getdoc(self.draw) or "").split())
        for name, definition in DEFINITIONS.items():
            text = text.replace(name, definition)
        return self.words.fill(text)


def figure(
    name: str, *results: type, title: str, section: str | None = None, order: int = LAST
) -> Callable[[Draw], Draw]:
    """Register the decorated function as a figure (see `FigureSpec`) and draw it in the common style.

    Raises:
        ValueError: If another module has registered a figure of that name.
    """

    def register(draw: Draw) -> Draw:
        known = _FIGURES.get(name)
        if known is not None and known.draw.__module__ != draw.__module__:
            raise ValueError(f"{known.draw.__module__} has registered a figure {name!r} already; choose another name.")
        in_style: Draw = styled(draw)
        _FIGURES[name] = FigureSpec(name, results, in_style, title, section, order)
        return in_style

    return register


def all_figures() -> list[FigureSpec]:
    """Every figure of this package and of all other modules imported so far, in the order of the report."""
    for module in pkgutil.iter_modules(figures.__path__):
        import_module(f"{figures.__name__}.{module.name}")
    return sorted(_FIGURES.values(), key=lambda spec: (spec.order, spec.name))
