"""All stages: those in the experiments folder and those of installed plug-ins."""

import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from arithscope import experiments
from arithscope.errors import UserError
from arithscope.experiments.common.stage import Stage, registered_stages

PLUGINS = "arithscope"  # entry-point group of packages that register stages, figures, findings or checks when imported


@cache
def load_plugins() -> None:
    """Import every module named by an installed entry point, once."""
    for entry in entry_points(group=PLUGINS):
        try:
            entry.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"The plug-in {entry.name} cannot be loaded ({reason}); update or uninstall it.") from error


@cache
def _import_experiments() -> None:
    for module in pkgutil.iter_modules(experiments.__path__, f"{experiments.__name__}."):
        if not module.ispkg:
            import_module(module.name)


def all_stages() -> tuple[Stage, ...]:
    """Every stage, each after those it needs."""
    _import_experiments()
    load_plugins()
    return registered_stages()


def stage_named(name: str) -> Stage:
    """Look up a stage by name. Raises UserError if there is none."""
    stages = {stage.name: stage for stage in all_stages()}
    if name not in stages:
        raise UserError(f"There is no stage {name!r}; choose from {', '.join(stages)}.")
    return stages[name]


def stage_of(result: type) -> Stage:
    """The stage that computes a result class."""
    return next(stage for stage in all_stages() if stage.result is result)


def chosen_stages(names: Sequence[str] | None, stages: Sequence[Stage] | None = None) -> list[Stage]:
    """The named stages and all that they need, in order; None chooses those that run by default. `stages` are the ones to
    choose from, by default all. Raises UserError if a name is unknown, or there are no names."""
    stages = all_stages() if stages is None else stages
    known = {stage.name: stage for stage in stages}
    wanted = {name for name, stage in known.items() if not stage.on_request} if names is None else set(names)
    unknown = sorted(wanted - set(known))
    if unknown or not wanted:
        problem = f"There is no stage {unknown[0]!r}" if unknown else "No stage was named"
        raise UserError(f"{problem}; choose from {', '.join(known)}.")
    for stage in reversed(stages):
        if stage.name in wanted:
            wanted |= {other.name for other in stages if other.result in stage.needs}
    return [stage for stage in stages if stage.name in wanted]
