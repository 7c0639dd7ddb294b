"""How the bag of heuristics grows: what earlier checkpoints of a model have of the final one's, and what that does there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import MUTUAL, Bag
from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.common.result import AVERAGE, Result, by_operator, summary_table
from arithscope.experiments.prompt_knockout import REPORTED, PromptKnockout
from arithscope.prompts import random_source
from arithscope.stats.measures import Mean, bootstrap_ratios

LAST = "final"  # the name of the last checkpoint
HALF = 0.5


@dataclass(frozen=True)
class Checkpoint:
    """What was found at one checkpoint. A model that is hardly ever right has no circuit, hence no heuristic neurons."""

    name: str
    accuracy: Accuracy
    bag: Bag | None = None
    prompt_knockout: PromptKnockout | None = None


@dataclass(frozen=True, repr=False)
class Training(Result):
    """Checkpoints in the order of training, the final one last.

    accuracy: on all legal prompts. present: the share of the final pairs of neuron and heuristic that are there already.
    faithfulness: of the circuit reduced to all heuristic neurons of the checkpoint (`raw`, `calibrated`), and to those that
    share a pair with the final checkpoint (`raw_mutual`, `calibrated_mutual`). knockout: accuracy with 5, 10 and 25 neurons of
    each layer silenced, as in *prompt_knockout*. Operators that a checkpoint is hardly ever right about have no rows but in
    accuracy, and the final checkpoint has none where it would be compared with itself. mutual_share: faithfulness with mutual
    neurons ÷ with all heuristic neurons, each averaged over earlier checkpoints. keys: of the earlier checkpoints' results."""

    accuracy: pd.DataFrame  # checkpoint, operator, value, low, high, n
    present: pd.DataFrame  # checkpoint, operator, criterion, value, low, high, n
    faithfulness: pd.DataFrame  # checkpoint, operator, neurons, kept, measure, value, low, high, n
    knockout: pd.DataFrame  # checkpoint, operator, criterion, silenced, size, measure, value, low, high, n, removed
    mutual_share: pd.DataFrame  # operator, measure, value, low, high, n
    checkpoints: list[str]
    keys: list[str]

    def summary(self) -> dict[str, Any]:
        out = by_operator(self.mutual_share)
        for operator, criterion, name in self._half_present():
            out.setdefault(operator, {})[f"{criterion}_half_present_at"] = name
        return out

    def _half_present(self) -> list[tuple[str, str, str]]:
        """The first checkpoint at which half of an operator's final pairs are there."""
        found = []
        for (operator, criterion), rows in self.present.groupby(["operator", "criterion"], sort=False):
            enough = rows[rows.value >= HALF]
            if len(enough):
                found.append((str(operator), str(criterion), str(enough.checkpoint.iloc[0])))
        return found


def training(checkpoints: Sequence[Checkpoint], keys: Sequence[str], seed: int) -> Training:
    """Gather the results of all checkpoints, the final one last."""
    right = _gathered({c.name: c.accuracy.table for c in checkpoints})
    bags = {c.name: c.bag for c in checkpoints if c.bag is not None}
    faithful = _gathered({name: bag.curve for name, bag in bags.items()})
    ablated = _gathered({c.name: c.prompt_knockout.curve for c in checkpoints if c.prompt_knockout is not None})
    return Training(
        right[(right.measure == "accuracy") & (right.operator != AVERAGE)].drop(columns="measure"),
        _gathered({name: bag.present for name, bag in bags.items()}),
        faithful,
        ablated[ablated["size"].isin(REPORTED) & (ablated.measure == "accuracy")],
        _shares(faithful, seed),
        [c.name for c in checkpoints],
        list(keys),
    )


def _gathered(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The tables of all checkpoints, one below the other."""
    parts = [table.assign(checkpoint=name) for name, table in tables.items()]
    table = pd.concat(parts, ignore_index=True)
    return table[["checkpoint", *(c for c in table.columns if c != "checkpoint")]]


def _shares(faithfulness: pd.DataFrame, seed: int) -> pd.DataFrame:
    """By operator, over the checkpoints that have both: faithfulness with mutual neurons ÷ with all heuristic neurons."""
    measured: dict[str, dict[str, Mean]] = {}
    rows = faithfulness[faithfulness.measure == "faithfulness"]
    for operator, mine in rows.groupby("operator", sort=False):
        values = mine.pivot(index="checkpoint", columns="neurons", values="value")
        for criterion in CRITERIA:
            both = values.reindex(columns=[f"{criterion}_{MUTUAL}", criterion]).dropna().to_numpy().T
            random = random_source(seed, "training", str(operator), criterion)
            [share] = bootstrap_ratios(both[:1], both[1:], random)
            measured.setdefault(str(operator), {})[f"{criterion}_mutual_share"] = share
    return summary_table(measured)
