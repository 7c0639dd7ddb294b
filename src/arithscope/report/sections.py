"""The sections of the report, in the paper's order. The question that each answers is in templates/questions.html."""

from arithscope.figures.registry import FigureSpec, all_figures
from arithscope.pipeline.registry import load_plugins

TITLES = {
    "accuracy": "Accuracy",
    "circuit": "The circuit",
    "probes": "Where the answer appears",
    "neurons": "Single neurons",
    "gallery": "A gallery of heuristics",
    "classification": "Raw and calibrated classification",
    "proof": "Causal tests",
    "failures": "Failures",
    "training": "Training",
    "stability": "Stability",
    "more": "More results",
}
MORE = "more"  # for figures that name no section; left out if there are none


def figures_by_section() -> dict[str, list[FigureSpec]]:
    """The figures of each section by its name."""
    load_plugins()
    groups: dict[str, list[FigureSpec]] = {name: [] for name in TITLES}
    for spec in all_figures():
        groups[spec.section if spec.section in TITLES else MORE].append(spec)
    return {name: specs for name, specs in groups.items() if specs}
