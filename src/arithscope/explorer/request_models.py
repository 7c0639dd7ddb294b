"""Types and bounds of everything a request may contain, and of error replies."""

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from arithscope.errors import UserError

MAX_ROWS = 500  # of a table, per reply

Operator = Literal["+", "-", "*", "/"]
Criterion = Literal["raw", "calibrated"]
Measure = Literal["probability", "log_ratio", "logit"]

Name = Annotated[str, Path(max_length=200)]
Layer = Annotated[int, Path(ge=0, lt=2**15)]
NeuronNumber = Annotated[int, Path(ge=0, lt=2**31)]
Text = Annotated[str, Query(max_length=100)]
ColumnName = Annotated[str, Field(max_length=100)]


class TableQuery(BaseModel):
    """A page of a table, optionally sorted by one of its columns."""

    model_config = ConfigDict(extra="forbid")
    sort: ColumnName | None = None
    descending: bool = True
    offset: int = Field(default=0, ge=0, le=10**9)
    size: int = Field(default=50, ge=1, le=MAX_ROWS)


class _MatchQuery(TableQuery):
    criterion: Criterion = "calibrated"
    operator: Operator | None = None
    kind: str | None = Field(default=None, max_length=100)


class NeuronQuery(_MatchQuery):
    """A page of the top neurons. `kind` and `heuristic` select neurons that match such a heuristic."""

    layer: int | None = Field(default=None, ge=0, lt=2**15)
    heuristic: str | None = Field(default=None, max_length=100)
    classified: Literal["any", "classified", "unclassified"] = "any"
    sort: ColumnName | None = "effect"


class HeuristicQuery(_MatchQuery):
    """A page of the matched heuristics. `search` is part of a heuristic's text; `tested` selects those knocked out."""

    search: str = Field(default="", max_length=100)
    tested: bool = False
    sort: ColumnName | None = "neurons"


class AblationRequest(BaseModel):
    """Neurons to ablate: these, as [layer, neuron], and all neurons that match these heuristics."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(max_length=100)
    criterion: Criterion = "calibrated"
    neurons: list[tuple[Annotated[int, Field(ge=0, lt=2**15)], Annotated[int, Field(ge=0, lt=2**31)]]] = Field(
        default_factory=list, max_length=20_000
    )
    heuristics: list[Annotated[str, Field(max_length=100)]] = Field(default_factory=list, max_length=5_000)


class ErrorReply(BaseModel):
    error: str  # one sentence


class NotFound(UserError):
    """The request names something that does not exist."""
