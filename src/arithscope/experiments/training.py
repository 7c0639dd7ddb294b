"""How the bag of heuristics grows over training: how much of the final one is there at earlier checkpoints (Section 5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import ABOVE_FLOOR, CURVE, MUTUAL, NONE, PRESENT, SHARES, Bag
from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.common import schema
from arithscope.experiments.common.result import AVERAGE, Result, by_operator, summary_table, with_average
from arithscope.experiments.common.stage import Context, stage
from arithscope.experiments.prompt_knockout import CURVE as KNOCKOUT_CURVE
from arithscope.experiments.prompt_knockout import OTHER_HEURISTICS, OWN, REPORTED, PromptKnockout
from arithscope.stats.intervals import Mean, ratio

LAST = "final"  # name of the last checkpoint
HALF = 0.5
LOST = REPORTED[-1]  # neurons ablated per layer, in the summary
COMPARED = (OWN, OTHER_HEURISTICS)  # neurons ablated, in the summary
FIRST = "first"  # of the checkpoints that have a knockout
_NAME = schema.text("checkpoint", "name of the checkpoint; `final` for the model itself", key=True)


@dataclass(frozen=True)
class Checkpoint:
    """Results at one checkpoint. A model that is hardly ever right has no circuit and no heuristic neurons."""

    name: str
    accuracy: Accuracy
    bag: Bag | None = None
    prompt_knockout: PromptKnockout | None = None


@dataclass(frozen=True)
class CheckpointResults:
    """Results of earlier checkpoints, in the order of training, and their keys."""

    checkpoints: list[Checkpoint]
    keys: list[str]


@dataclass(frozen=True, repr=False)
class Training(Result):
    """Checkpoints in the order of training, the final one last.

    An operator that a checkpoint hardly ever gets right has rows in `accuracy` only. The final checkpoint has no rows where it
    would be compared with itself.
    """

    accuracy: pd.DataFrame = schema.table("Accuracy on legal prompts.", _NAME, schema.OPERATOR, *schema.MEAN_COLUMNS)
    present: pd.DataFrame = schema.table("Share of final (neuron, heuristic) pairs already matched.", _NAME, *PRESENT)
    faithfulness: pd.DataFrame = schema.table("Circuits reduced to heuristic neurons, as in `bag`.", _NAME, *CURVE)
    above_floor: pd.DataFrame = schema.table("Their faithfulness above the floor, as in `bag`.", _NAME, *SHARES)
    knockout: pd.DataFrame = schema.table(
        "Accuracy without 5, 10 and 25 neurons per layer, as in `prompt_knockout`.", _NAME, *KNOCKOUT_CURVE
    )
    mutual_share: pd.DataFrame = schema.table(
        "Faithfulness with mutual ÷ with all heuristic neurons, each averaged over earlier checkpoints; the same above the "
        "floor, (F_mutual − F_none) ÷ (F_heuristic − F_none), over those at which heuristic neurons clearly add to it."
    )
    checkpoints: list[str] = schema.value("names of the checkpoints")
    keys: list[str] = schema.value("keys of the earlier checkpoints' results")

    def summary(self) -> dict[str, Any]:
        """Shares carried by mutual neurons, the accuracy left without 25 neurons per layer at each operator's first checkpoint
        and at the final one (`{criterion}_{ablated}_25_first`, `…_final`), and when half of the final pairs are present."""
        ends = [self.knocked_out(at).assign(at=at) for at in (FIRST, LAST)]
        rows = pd.concat([each for each in ends if len(each)] or ends)
        named = rows.assign(measure=rows.criterion + "_" + rows.ablated + f"_{LOST}_" + rows["at"])
        out = by_operator(pd.concat([self.mutual_share, with_average(named)]))
        for row in ends[0].to_dict("records"):
            out[str(row["operator"])]["first_knockout_at"] = row["checkpoint"]
        for (operator, criterion), rows in self.present.groupby(["operator", "criterion"], sort=False):
            enough = rows[rows.value >= HALF]
            if len(enough):
                out.setdefault(str(operator), {})[f"{criterion}_half_present_at"] = str(enough.checkpoint.iloc[0])
        return out

    def knocked_out(self, at: str) -> pd.DataFrame:
        """The rows of `knockout` with 25 neurons per layer, associated or of other heuristics, at the `final` checkpoint or at
        the `first` one that has any of the operator. An operator with no earlier one has no first."""
        rows = self.knockout[(self.knockout["size"] == LOST) & self.knockout.ablated.isin(COMPARED)]
        if at == LAST:
            return rows[rows.checkpoint == LAST]
        earlier = rows[rows.checkpoint != LAST]
        return earlier[earlier.checkpoint == earlier.groupby("operator").checkpoint.transform("first")]


@stage(needs=(Accuracy, Bag, PromptKnockout), given=(CheckpointResults,), on_request=True, paper="5")
def training(ctx: Context) -> Training:
    """What earlier checkpoints have of the final bag of heuristics, and how much of their faithfulness it carries."""
    earlier = ctx.results[CheckpointResults]
    final = Checkpoint(LAST, ctx.results[Accuracy], ctx.results[Bag], ctx.results[PromptKnockout])
    checkpoints = [*earlier.checkpoints, final]
    correct = _gathered({c.name: c.accuracy.table for c in checkpoints})
    bags = {c.name: c.bag for c in checkpoints if c.bag is not None}
    faithful = _gathered({name: bag.curve for name, bag in bags.items()})
    ablated = _gathered({c.name: c.prompt_knockout.curve for c in checkpoints if c.prompt_knockout is not None})
    accuracy = correct[(correct.measure == "accuracy") & (correct.operator != AVERAGE)].drop(columns="measure")
    present = _gathered({name: bag.present for name, bag in bags.items()})
    knockout = ablated[ablated["size"].isin(REPORTED) & (ablated.measure == "accuracy")]
    above = _gathered({name: bag.above_floor for name, bag in bags.items()})
    shares, names = mutual_shares(faithful, above), [c.name for c in checkpoints]
    return Training(accuracy, present, faithful, above, knockout, shares, names, list(earlier.keys))


def _gathered(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables by checkpoint as one table, with the column `checkpoint` first."""
    some = {name: table for name, table in tables.items() if len(table)} or tables
    return pd.concat(some, names=["checkpoint"]).reset_index(level=0).reset_index(drop=True)


def mutual_shares(faithfulness: pd.DataFrame, above_floor: pd.DataFrame) -> pd.DataFrame:
    """By operator, over checkpoints that have both: faithfulness with mutual ÷ with all heuristic neurons; then the same above
    the floor, over those checkpoints at which all heuristic neurons clearly add to it."""
    measured: dict[str, dict[str, Mean]] = {}
    rows = faithfulness[faithfulness.measure == "faithfulness"]
    for operator, own in rows.groupby("operator", sort=False):
        values = own.pivot(index="checkpoint", columns="neurons", values="value")
        for criterion in CRITERIA:
            clear = above_floor[(above_floor.operator == operator) & (above_floor.neurons == criterion)]
            added = values.index.isin(clear.checkpoint[clear.low > 0])
            needed = values.reindex(columns=[f"{criterion}_{MUTUAL}", criterion, NONE])
            mutual, heuristic, _ = needed.dropna().to_numpy().T
            mutual_above, heuristic_above, floor = needed[added].dropna().to_numpy().T
            measured.setdefault(str(operator), {}).update(
                {
                    f"{criterion}_mutual_share": ratio(mutual, heuristic),
                    f"{criterion}_mutual_share{ABOVE_FLOOR}": ratio(mutual_above - floor, heuristic_above - floor),
                }
            )
    return summary_table(measured)
