"""Running single stages without a run folder."""

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
    """The context of a stage, with earlier results; `changes` override settings."""
    return Context(model, replace(settings or Settings(), **changes), Results(*results), progress or Silent())


def compute(ctx: Context, *stages: Callable[[Context], Any]) -> Results:
    """Run stages in order, each with the results of those before it; returns all results of the context."""
    for stage in stages:
        ctx.results.add(stage(ctx))
    return ctx.results
