"""Made-up classifications: the matches of neurons with heuristics are given."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from arithscope.experiments.classify import Classification
from arithscope.heuristics.kinds import parse

Match = tuple[int, int, str, float, bool]  # layer, neuron, heuristic, score, calibrated


def made_up(operator: str, top: Iterable[tuple[int, int]], matches: Iterable[Match]) -> Classification:
    """The top neurons (layer, neuron) of one operator and their matches, with only what later stages read."""
    rows = [
        {
            "operator": operator,
            "layer": layer,
            "neuron": neuron,
            "heuristic": text,
            "kind": parse(text).kind,
            "on": parse(text).on,
            "score": score,
            "neg_log10_p": 100 * score,
            "calibrated": calibrated,
            "sign": 1,
        }
        for layer, neuron, text, score, calibrated in matches
    ]
    columns = ["operator", "layer", "neuron", "heuristic", "kind", "on", "score", "neg_log10_p", "calibrated", "sign"]
    known = pd.DataFrame([{"operator": operator, "layer": i, "neuron": n} for i, n in top])
    found = pd.DataFrame(rows, columns=columns).astype({"calibrated": bool, "score": float})
    return classification(found, known)


def together(*parts: Classification) -> Classification:
    """Several operators in one classification."""
    matches, neurons = (
        pd.concat([getattr(p, name) for p in parts], ignore_index=True) for name in ("matches", "neurons")
    )
    return classification(matches, neurons)


def classification(matches: pd.DataFrame, neurons: pd.DataFrame) -> Classification:
    """A classification whose other tables are empty."""
    tables = {"matches": matches, "neurons": neurons}
    return Classification(**{name: tables.get(name, pd.DataFrame()) for name in Classification.schema()})
