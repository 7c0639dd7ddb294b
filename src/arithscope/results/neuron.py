"""One neuron of a run: all that is known of it, from every stage."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.classify import Classification
from arithscope.experiments.common.result import ByNeuron
from arithscope.experiments.neurons import EXACT, NeuronEffects, neuron_name
from arithscope.experiments.patterns import ActivationMaps
from arithscope.figures.neuron import neuron_figure

NO_MATCHES = pd.DataFrame(columns=["heuristic", "kind", "on", "score", "expected", "neg_log10_p", "fdr", "calibrated"])


@dataclass(frozen=True, eq=False)
class ActivationMap:
    """What makes a top neuron fire and what it writes.

    activations: at the last position, for every pair of operands. logits: of the numbers, from its value vector through the
    logit lens. push: activation × logit of the prompt's answer; NaN where a prompt is not legal. op1, op2, result: the shares
    of the pattern's variance that each of them tells. alignment: the correlation of activation and logit of the answer.
    tokens: the numbers it promotes most."""

    activations: NDArray[np.float32]  # op1, op2
    logits: NDArray[np.float32]  # numbers
    push: NDArray[np.float32]  # op1, op2
    rank: int  # in its layer, from 1 on
    op1: float
    op2: float
    result: float
    alignment: float
    direct: bool
    tokens: list[int]


@dataclass(frozen=True, eq=False, repr=False)
class Neuron:
    """effects: by every measure, with the rank in its layer. pattern: None for a neuron that is not among the top ones,
    and in a run without patterns.
    heuristics: those it matches, first the ones furthest beyond what is expected. best: of each kind the heuristic furthest
    beyond it, match or not. coverage: the share of its pattern's variance that matched heuristics explain together, raw and
    calibrated. Heuristics and coverage are empty if the run has no classification, or the neuron no pattern."""

    layer: int
    index: int
    operator: str
    effects: pd.DataFrame  # measure, method, value, low, high, n, median, std, rank, of
    pattern: ActivationMap | None
    heuristics: pd.DataFrame
    best: pd.DataFrame
    coverage: dict[str, float]

    @property
    def name(self) -> str:
        return neuron_name(self.layer, self.index)

    def plot(self) -> Figure:
        """Its pattern, its value vector's logits, and what both together add to the answer."""
        if self.pattern is None:
            raise UserError(
                f"{self.name} has no pattern for {self.operator} to plot: only top neurons have one, from the stage patterns."
            )
        named = self.heuristics[self.heuristics.calibrated.astype(bool)]
        title = f"{self.name}, operator {self.operator}" + (f": {named.heuristic.iloc[0]}" if len(named) else "")
        p = self.pattern
        return neuron_figure(self.operator, p.activations, p.logits, p.push, title)

    def __repr__(self) -> str:
        effect = self.effects.iloc[0]
        said = f"effect {effect.value:.3g}, rank {effect['rank']} of {effect.of} in its layer"
        if self.pattern is None:
            return f"Neuron({self.name}, {self.operator!r}, {said}, no pattern)"
        if not self.coverage:
            return f"Neuron({self.name}, {self.operator!r}, {said}, not classified)"
        calibrated = self.heuristics[self.heuristics.calibrated.astype(bool)]
        main = f"mainly {calibrated.heuristic.iloc[0]!r}" if len(calibrated) else "none calibrated"
        return f"Neuron({self.name}, {self.operator!r}, {said}, {len(self.heuristics)} heuristics, {main})"

    def _repr_html_(self) -> str:
        shown = ["heuristic", "score", "expected", "fdr", "calibrated"]
        table = self.heuristics[shown].head(8).to_html(index=False) if len(self.heuristics) else ""
        return f"<b>{html.escape(repr(self))}</b>{table}"


class _Columns(NamedTuple):
    """What ranks depend on, of each row of a table of effects."""

    measure: NDArray[np.int64]
    estimated: NDArray[np.bool_]
    value: NDArray[np.float64]
    neuron: NDArray[np.int32]


class NeuronFinder:
    """Puts together what the stages of a run say of any neuron, quickly also among hundreds of thousands."""

    def __init__(self, effects: NeuronEffects, patterns: ActivationMaps | None, classify: Classification | None):
        self._effects, self._patterns = effects, patterns
        self._of_effects = ByNeuron(effects.effects)
        self._columns = _Columns(
            pd.factorize(effects.effects.measure)[0],
            (effects.effects.method != EXACT).to_numpy(),
            effects.effects.value.to_numpy(),
            effects.effects.neuron.to_numpy(),
        )
        self._of_patterns = None if patterns is None else ByNeuron(patterns.neurons)
        self._of_classify = (
            {}
            if classify is None
            else {name: ByNeuron(getattr(classify, name)) for name in ("matches", "best", "neurons")}
        )

    def find(self, operator: str, layer: int, neuron: int) -> Neuron:
        if not len(self._of_effects.places(operator, layer, neuron)):
            raise self._unknown(operator, layer, neuron)
        place = self.place(operator, layer, neuron)
        known = {name: table.rows(operator, layer, neuron) for name, table in self._of_classify.items()}
        matches, best = (
            known.get(name, NO_MATCHES).sort_values("neg_log10_p", ascending=False, kind="stable")
            for name in ("matches", "best")
        )
        own = known.get("neurons", NO_MATCHES)
        return Neuron(
            layer,
            neuron,
            operator,
            self._ranked(operator, layer, neuron),
            None if place is None else self._pattern(operator, place),
            matches,
            best,
            {c: float(own[f"coverage_{c}"].iloc[0]) for c in ("raw", "calibrated")} if len(own) else {},
        )

    def place(self, operator: str, layer: int, neuron: int) -> int | None:
        """The row of a neuron in `patterns`; None if it is not among the top ones."""
        if self._of_patterns is None:
            return None
        found = self._of_patterns.places(operator, layer, neuron)
        return int(found[0]) if len(found) else None

    def _unknown(self, operator: str, layer: int, neuron: int) -> UserError:
        table = self._effects.effects
        known = [str(o) for o in table.operator.unique()]
        if operator not in known:
            return UserError(f"The run has no neurons for the operator {operator!r}; choose from {' '.join(known)}.")
        return UserError(
            f"The run has no neuron {neuron_name(layer, neuron)}; it has layers {table.layer.min()} to {table.layer.max()}, "
            f"with neurons 0 to {table.neuron.max()} each."
        )

    def _ranked(self, operator: str, layer: int, neuron: int) -> pd.DataFrame:
        """The neuron's effects with its rank in its layer by the mean, as in `Neurons.ranking`: exact effects first."""
        own = self._of_effects.places(operator, layer, neuron)
        of_layer = self._of_effects.places(operator, layer)
        e, ranks, sizes = self._columns, [], []
        for row in own:
            same = of_layer[e.measure[of_layer] == e.measure[row]]
            tied = e.estimated[same] == e.estimated[row]
            equal = tied & (e.value[same] == e.value[row])
            ahead = (e.estimated[same] < e.estimated[row]) | (tied & (e.value[same] > e.value[row]))
            ahead |= equal & (e.neuron[same] < neuron)
            ranks.append(int(ahead.sum()) + 1)
            sizes.append(len(same))
        table = self._effects.effects.iloc[own].drop(columns=["operator", "layer", "neuron"])
        return table.assign(rank=ranks, of=sizes).reset_index(drop=True)

    def _pattern(self, operator: str, place: int) -> ActivationMap:
        assert self._patterns is not None
        row = self._patterns.neurons.iloc[place]
        return ActivationMap(
            np.asarray(self._patterns.activations[place], dtype=np.float32),
            np.asarray(self._patterns.logits[place]),
            self._patterns.push(place),
            int(row["rank"]) + 1,
            float(row.op1),
            float(row.op2),
            float(row.result),
            float(row.alignment),
            bool(row.direct),
            [int(n) for n in row.tokens],
        )
