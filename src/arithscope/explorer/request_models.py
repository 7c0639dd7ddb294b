"""What a request may ask for, value by value."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

MOST_ROWS = 500  # of a table in one answer

Operator = Literal["+", "-", "*", "/"]
Criterion = Literal["raw", "calibrated"]
Measure = Literal["probability", "log_ratio", "logit"]

RunName = Annotated[str, Path(max_length=200)]
Layer = Annotated[int, Path(ge=0, lt=2**15)]
NeuronIndex = Annotated[int, Path(ge=0, lt=2**31)]
Text = Annotated[str, Query(max_length=100)]


class _Page(BaseModel):
    """Some rows of a table, by either criterion, of one operator or all."""

    model_config = ConfigDict(extra="forbid")
    criterion: Criterion = "calibrated"
    operator: Operator | None = None
    kind: str | None = Field(default=None, max_length=100)
    descending: bool = True
    offset: int = Field(default=0, ge=0, le=10**9)
    size: int = Field(default=50, ge=1, le=MOST_ROWS)


class NeuronsAsked(_Page):
    """kind and heuristic: only neurons that match such a heuristic, or this one."""

    layer: int | None = Field(default=None, ge=0, lt=2**15)
    heuristic: str | None = Field(default=None, max_length=100)
    classified: Literal["any", "classified", "unclassified"] = "any"
    sort: Literal[
        "effect", "layer", "neuron", "rank", "op1", "op2", "result", "alignment", "heuristics", "coverage", "score"
    ] = "effect"


class HeuristicsAsked(_Page):
    """search: a part of the heuristic's text. tested: only those whose neurons were knocked out."""

    search: str = Field(default="", max_length=100)
    tested: bool = False
    sort: Literal["neurons", "heuristic", "size", "associated", "not_associated", "difference"] = "neurons"


class Ablation(BaseModel):
    """What to silence: neurons, as [layer, index], and all neurons that match some heuristics."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(max_length=100)
    criterion: Criterion = "calibrated"
    neurons: list[tuple[Annotated[int, Field(ge=0, lt=2**15)], Annotated[int, Field(ge=0, lt=2**31)]]] = Field(
        default_factory=list, max_length=20_000
    )
    heuristics: list[Annotated[str, Field(max_length=100)]] = Field(default_factory=list, max_length=5_000)


class Problem(BaseModel):
    """What is wrong, in one sentence."""

    error: str
