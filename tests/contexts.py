"""Running stages on their own, without a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from arithscope.experiments.common.stage import Context, Results
from arithscope.models.model import Model
from arithscope.settings import Settings
from arithscope.utils.progress import Progress, Silent


def context(
    model: Model, settings: Settings | None = None, *results: Any, progress: Progress | None = None, **changes: Any
) -> Context:
    """What a stage works with, given earlier results; `changes` are changes of the settings."""
    return Context(model, replace(settings or Settings(), **changes), Results(*results), progress or Silent())


def compute(ctx: Context, *stages: Callable[[Context], Any]) -> Results:
    """The results given to a context, and those of some stages, each computed from all before it."""
    for stage in stages:
        ctx.results.add(stage(ctx))
    return ctx.results
