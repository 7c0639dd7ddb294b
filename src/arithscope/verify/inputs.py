"""What a stage of a run was computed from, from its folder: settings, earlier results, samples, and the subject."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from arithscope.errors import UserError
from arithscope.experiments.common.samples import PRESETS, SampleSizes, Split, splits
from arithscope.models.model import Model
from arithscope.pipeline.checkpoints import FOLDER
from arithscope.pipeline.registry import CHECKPOINT_STAGES, FINAL, STAGES, Stage
from arithscope.pipeline.repeats import FOLDER as REPEATS
from arithscope.pipeline.runner import Given
from arithscope.prompts import random_source
from arithscope.results.lab import Sized
from arithscope.results.run import Run
from arithscope.settings import Settings


def settings_of(run: Run) -> Sized:
    """The settings that a run's manifest names, with the sample sizes it names."""
    said = run.configuration
    known = {field.name for field in fields(Settings)}
    sizes = {field.name for field in fields(SampleSizes)}
    try:
        settings = Settings(**{name: value for name, value in said.items() if name in known})
        if "sizes" not in said:  # written by an earlier version
            return Sized(settings, PRESETS[settings.preset])
        return Sized(settings, SampleSizes(**{name: value for name, value in said["sizes"].items() if name in sizes}))
    except (TypeError, AttributeError):
        raise UserError(f"The settings in the manifest of {run.path} cannot be read; it was changed by hand.") from None


@dataclass(frozen=True, eq=False)
class Inputs:
    """A run, its settings, and the seed that chooses what is recomputed. The folder of an earlier checkpoint takes what it was
    given from the run of the final one, whose folder it lies in (`final`)."""

    run: Run
    settings: Any
    seed: int
    final: Run | None

    @classmethod
    def of(cls, run: Run, seed: int) -> Inputs:
        above = run.path.resolve().parent
        if above.name == REPEATS and (above.parent / "manifest.json").exists():
            raise UserError(
                f"{run.path} is a repetition of the run in {above.parent} and keeps too little of it to be verified; verify "
                "that run."
            )
        is_checkpoint = above.name == FOLDER and (above.parent / "manifest.json").exists()
        return cls(run, settings_of(run), seed, Run(above.parent) if is_checkpoint else None)

    @property
    def model(self) -> Model:
        return self.run.model

    @property
    def stages(self) -> tuple[Stage, ...]:
        return STAGES if self.final is None else CHECKPOINT_STAGES

    @property
    def given(self) -> dict[str, Given]:
        """What the stages of a checkpoint were given, with keys."""
        if self.final is None:
            return {}
        named = {"probe": "probe", "circuit": "circuit", FINAL: "classify"}
        return {name: Given(self.final.folder.key(of) or "", self.final.result(of)) for name, of in named.items()}

    def __getitem__(self, stage: str) -> Any:
        """The stored result of a stage."""
        own = any(known.name == stage for known in self.stages)
        return (self.run if own or self.final is None else self.final).result(stage)

    @cached_property
    def splits(self) -> dict[str, Split]:
        """The samples of each operator, as all stages but the probes draw them."""
        return splits(self["accuracy"], self.settings.sizes, self.settings.seed)

    def chooser(self, *names: str) -> np.random.Generator:
        """Chooses what is recomputed."""
        return random_source(self.seed, "verify", *names)


def some_of(random: np.random.Generator, n: int, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """At most so many of 0…n−1, in order."""
    return np.sort(random.permutation(n)[:most])
