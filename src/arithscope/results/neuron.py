"""One neuron of a run, with everything that the stages found out about it."""

import html
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.classify import CRITERIA, Classification
from arithscope.experiments.common.ranking import rounded
from arithscope.experiments.common.result import NeuronRows
from arithscope.experiments.neurons import NeuronEffects, neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.figures.activation_maps import neuron_figure
from arithscope.settings import EXACT

NO_MATCHES = pd.DataFrame(columns=["heuristic", "kind", "on", "score", "expected", "neg_log10_p", "fdr", "calibrated"])


@dataclass(frozen=True, eq=False)
class ActivationMap:
    """What makes a top neuron fire, and what it writes."""

    activations: NDArray[np.float32]  # at the last position for every pair of operands, [op1, op2]
    logits: NDArray[np.float32]  # of the numbers, from its value vector through the logit lens
    attribution: NDArray[np.float32]  # activation × logit of the answer, [op1, op2]; NaN where a prompt is not legal
    rank: int  # in its layer, from 1
    variance_explained: dict[str, float]  # share of the map's variance explained by `op1`, `op2` and `result`
    alignment: float  # correlation of the activation with the logit of the answer
    direct: bool  # whether it is explained by the result and promotes the answers it fires for
    tokens: list[int]  # the numbers it promotes most
    sides: tuple[NDArray[np.int64], NDArray[np.int64]]  # first and second operands of the map's rows and columns


@dataclass(frozen=True, eq=False, repr=False)
class Neuron:
    """A neuron under one operator.

    Attributes:
        layer: Its layer.
        index: Its number in the layer's MLP.
        operator: The operator.
        effects: Its effect by every measure, with its rank in the layer: measure, method, value, low, high, n, median, std,
            rank, of.
        activation_map: None for a neuron that is not among the top ones, and in a run without the stage `patterns`.
        heuristics: Heuristics it matches, raw or calibrated, the most significant first.
        best: The most significant heuristic of each kind, match or not.
        coverage: Share of its map's variance that matched heuristics explain together, raw and calibrated. Empty, like the
            heuristics, if the run has no classification or the neuron no activation map.
    """

    layer: int
    index: int
    operator: str
    effects: pd.DataFrame
    activation_map: ActivationMap | None
    heuristics: pd.DataFrame
    best: pd.DataFrame
    coverage: dict[str, float]

    @property
    def name(self) -> str:
        return neuron_name(self.layer, self.index)

    def plot(self) -> Figure:
        """Draw its activation map, its value vector's logits, and its direct logit attribution.

        Raises:
            UserError: If it has no activation map.
        """
        if self.activation_map is None:
            missing = f"{self.name} has no activation map for {self.operator}"
            raise UserError(f"{missing}; only top neurons have one, computed by the stage patterns.")
        title = f"{self.name}, operator {self.operator}" + (f": {self._calibrated[0]}" if self._calibrated else "")
        m = self.activation_map
        return neuron_figure(self.operator, m.activations, m.logits, m.attribution, m.sides, title)

    @property
    def _calibrated(self) -> list[str]:
        return list(self.heuristics.heuristic[self.heuristics.calibrated.astype(bool)])

    def __repr__(self) -> str:
        effect = self.effects.iloc[0]
        measured = f"effect {effect.value:.3g}, rank {effect['rank']} of {effect.of} in its layer"
        main = f"mainly {self._calibrated[0]!r}" if self._calibrated else "none calibrated"
        known = f"{len(self.heuristics)} heuristics, {main}" if self.coverage else "not classified"
        known = "no activation map" if self.activation_map is None else known
        return f"Neuron({self.name}, {self.operator!r}, {measured}, {known})"

    def _repr_html_(self) -> str:
        shown = ["heuristic", "score", "expected", "fdr", "calibrated"]
        table = self.heuristics[shown].head(8).to_html(index=False) if len(self.heuristics) else ""
        return f"<b>{html.escape(repr(self))}</b>{table}"


class NeuronFinder:
    """Looks up what the stages of a run found out about a neuron; indexed, to be fast among hundreds of thousands."""

    def __init__(self, effects: NeuronEffects, maps: ActivationMaps | None, classification: Classification | None):
        table = effects.effects
        self._effects = NeuronRows(table)
        self._measure = pd.factorize(table.measure)[0]
        by = table.groupby(["operator", "measure"], sort=False).mean_abs.transform(rounded)
        self._ranked_by = [x.to_numpy() for x in (table.neuron, -by, table.method != EXACT)]  # for np.lexsort
        self._maps = maps
        self._map_rows = None if maps is None else NeuronRows(maps.neurons)
        tables = {}
        if classification is not None:
            tables = {"matches": classification.matched(None), "best": classification.best}
            tables["neurons"] = classification.neurons
        self._classification = {name: NeuronRows(table) for name, table in tables.items()}

    def find(self, operator: str, layer: int, neuron: int) -> Neuron:
        """Everything known about a neuron. Raises UserError if there is no such neuron."""
        if not len(self._effects.places(operator, layer, neuron)):
            table = self._effects.table
            known = [str(o) for o in table.operator.unique()]
            if operator not in known:
                raise UserError(f"The run has no neurons for the operator {operator!r}; choose from {' '.join(known)}.")
            raise UserError(
                f"The run has no neuron {neuron_name(layer, neuron)}; it has layers {table.layer.min()} to "
                f"{table.layer.max()}, with neurons 0 to {table.neuron.max()} each."
            )
        found = {name: rows.rows(operator, layer, neuron) for name, rows in self._classification.items()}
        tables = [found.get(name, NO_MATCHES) for name in ("matches", "best")]
        matches, best = (x.sort_values("neg_log10_p", ascending=False, kind="stable") for x in tables)
        classes = found.get("neurons", NO_MATCHES)
        coverage = {c: float(classes[f"coverage_{c}"].iloc[0]) for c in CRITERIA} if len(classes) else {}
        effects = self._ranked(operator, layer, neuron)
        activation_map = self._activation_map(operator, layer, neuron)
        return Neuron(layer, neuron, operator, effects, activation_map, matches, best, coverage)

    def map_row(self, operator: str, layer: int, neuron: int) -> int | None:
        """Row of a neuron in the activation maps; None if it is not among the top ones."""
        if self._map_rows is None or not len(rows := self._map_rows.places(operator, layer, neuron)):
            return None
        return int(rows[0])

    def _ranked(self, operator: str, layer: int, neuron: int) -> pd.DataFrame:
        """The neuron's effects with its rank in the layer by mean absolute effect, as in `NeuronEffects.ranking`."""
        rows = self._effects.places(operator, layer, neuron)
        layer_rows = self._effects.places(operator, layer)
        ranks, counts = [], []
        for row in rows:  # one for each measure
            same = layer_rows[self._measure[layer_rows] == self._measure[row]]
            ranked = same[np.lexsort([key[same] for key in self._ranked_by])]
            ranks.append(int(np.flatnonzero(ranked == row)[0]) + 1)
            counts.append(len(same))
        table = self._effects.table.iloc[rows].drop(columns=["operator", "layer", "neuron"])
        return table.assign(rank=ranks, of=counts).reset_index(drop=True)

    def _activation_map(self, operator: str, layer: int, neuron: int) -> ActivationMap | None:
        row, maps = self.map_row(operator, layer, neuron), self._maps
        if row is None or maps is None:
            return None
        found = maps.neurons.iloc[row]
        return ActivationMap(
            np.asarray(maps.activations[row], dtype=np.float32),
            np.asarray(maps.logits[row]),
            maps.attribution_map(row),
            int(found["rank"]) + 1,
            {name: float(found[f"variance_explained_{name}"]) for name in ("op1", "op2", "result")},
            float(found.alignment),
            bool(found.direct),
            [int(n) for n in found.tokens],
            maps.stratum.sides,
        )
