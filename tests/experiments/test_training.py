"""What checkpoints are compared by: shares carried by mutual neurons, and the accuracy left at the first and the last."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.common.result import summary_table
from arithscope.experiments.prompt_knockout import ABLATED, REPORTED
from arithscope.experiments.training import Training, mutual_shares


def faithfulness(values: dict[tuple[str, str], float], measure: str = "faithfulness") -> pd.DataFrame:
    """Of one operator, by checkpoint and neurons kept."""
    rows = [
        {"checkpoint": c, "operator": "+", "neurons": neurons, "kept": 1, "measure": measure, "value": value}
        for (c, neurons), value in values.items()
    ]
    return pd.DataFrame(rows).assign(low=np.nan, high=np.nan, n=9)


def shares(values: dict[tuple[str, str], float], unclear: str = "") -> dict[str, Any]:
    """With all heuristic neurons clearly above the floor, except at one checkpoint."""
    rows = [faithfulness(values), faithfulness(dict.fromkeys(values, 0.5), "accuracy")]
    keys = [{"checkpoint": c, "operator": "+", "neurons": kept, "value": 0.5, "high": 1.0} for c, kept in values]
    above = pd.DataFrame(keys).assign(n=9)
    above["low"] = np.where(above.checkpoint == unclear, -0.1, 0.1)
    table = mutual_shares(pd.concat(rows), above)
    return table[table.operator == "+"].set_index("measure").to_dict("index")


def test_shares_of_mutual_neurons_by_hand() -> None:
    """Two earlier checkpoints: mutual neurons reach .84 and .86 of .90 and .96, and the floor is .80 at both."""
    found = shares(
        {
            **{("a", "raw"): 0.90, ("a", "raw_mutual"): 0.84, ("a", "none"): 0.80},
            **{("b", "raw"): 0.96, ("b", "raw_mutual"): 0.86, ("b", "none"): 0.80},
            **{("final", "raw"): 0.99, ("final", "none"): 0.7},
        }
    )
    assert found["raw_mutual_share"]["value"] == pytest.approx(1.70 / 1.86)
    assert found["raw_mutual_share_above_floor"]["value"] == pytest.approx(0.10 / 0.26)
    assert found["raw_mutual_share"]["n"] == found["raw_mutual_share_above_floor"]["n"] == 2
    assert np.isnan(found["calibrated_mutual_share"]["value"])


def test_checkpoints_whose_neurons_do_not_clearly_add_to_the_floor_have_no_share_above_it() -> None:
    """At `a` the floor is as high as with heuristic neurons. It counts for the share, but not for that above the floor."""
    values = {
        **{("a", "raw"): 0.80, ("a", "raw_mutual"): 0.90, ("a", "none"): 0.81},
        **{("b", "raw"): 0.96, ("b", "raw_mutual"): 0.86, ("b", "none"): 0.80},
    }
    found = shares(values, unclear="a")
    assert found["raw_mutual_share"]["value"] == pytest.approx(1.76 / 1.76)
    assert found["raw_mutual_share"]["n"] == 2
    assert found["raw_mutual_share_above_floor"]["value"] == pytest.approx(0.06 / 0.16)
    assert found["raw_mutual_share_above_floor"]["n"] == 1
    none = shares({key: value for key, value in values.items() if key[0] == "a"}, unclear="a")
    assert np.isnan(none["raw_mutual_share_above_floor"]["value"])
    assert none["raw_mutual_share_above_floor"]["n"] == 0


def test_the_summary_has_the_accuracy_left_at_the_first_and_the_final_checkpoint() -> None:
    """The second operator has no knockout at the first checkpoint, the third only at the final one."""
    checkpoints = {"+": ["a", "b", "final"], "-": ["b", "final"], "*": ["final"]}
    keys = [(c, o) for o, names in checkpoints.items() for c in names]
    rows = [
        {"checkpoint": c, "operator": o, "criterion": criterion, "ablated": ablated, "size": size}
        for (c, o), criterion, ablated, size in product(keys, CRITERIA, ABLATED, REPORTED)
    ]
    value = np.random.default_rng(0).random(len(rows))
    knockout = pd.DataFrame(rows).assign(
        measure="accuracy", value=value, low=value - 0.1, high=value + 0.1, n=7, removed=3
    )
    empty = pd.DataFrame()
    training = Training(empty, empty, empty, empty, knockout, summary_table({}), ["a", "b", "final"], ["", ""])
    summary = training.summary()
    left = knockout.set_index(["checkpoint", "operator", "criterion", "ablated", "size"]).sort_index().value
    for (o, first), criterion, ablated in product(
        {"+": "a", "-": "b"}.items(), CRITERIA, ("associated", "other_heuristics")
    ):
        for name, at in (("first", first), ("final", "final")):
            mean = left[at, o, criterion, ablated, 25]
            entry = summary[o][f"{criterion}_{ablated}_25_{name}"]
            assert [entry[k] for k in ("value", "low", "high", "n")] == pytest.approx([mean, mean - 0.1, mean + 0.1, 7])
        assert summary[o]["first_knockout_at"] == first
    assert "raw_associated_25_first" not in summary["*"]
    assert summary["*"]["raw_associated_25_final"]["value"] == left["final", "*", "raw", "associated", 25]
    average = np.mean([left["a", "+", "raw", "associated", 25], left["b", "-", "raw", "associated", 25]])
    assert summary["mean"]["raw_associated_25_first"]["value"] == pytest.approx(average)
    assert not any("random" in name or "_10_" in name for name in summary["+"])
