"""Verifies a run: its files, its model, and every stage, recomputed on a sample with full passes.

Each stage is computed by the same function as in the run, in a `VerifyContext`: the model uses the slow engine of plain full
passes instead of replay, only a sample of the independent pieces is measured, and each measurement is compared with the stored
one. Everything derived from measurements is recomputed from all stored ones and must be the same to the last digits.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.experiments.common.result import Result
from arithscope.experiments.common.stage import Results, Stage
from arithscope.experiments.stability import RepeatResults, Stability
from arithscope.experiments.step_overlap import StepOverlap
from arithscope.experiments.training import CheckpointResults, Training
from arithscope.models.engine.full_pass import FullPass
from arithscope.pipeline import study
from arithscope.pipeline.layouts import step_results
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import DeclaredSettings, Given, describe_model, device_name, keys_of
from arithscope.pipeline.store import damaged_files, plain
from arithscope.report.formatting import listed
from arithscope.results.run import Run
from arithscope.settings import SampleSizes, Settings
from arithscope.utils.files import child
from arithscope.utils.progress import Progress
from arithscope.verify import sweeps as sweeps  # registers its checks
from arithscope.verify.checks import CHECKS, VerifyContext
from arithscope.verify.compare import EXACT, Tally, counted, noise_of

SHOWN = 3  # differences of a stage that a verdict lists


@dataclass(frozen=True)
class Verdict:
    """The outcome for one stage, or for files, summary, model or keys."""

    about: str
    agrees: bool
    text: str
    numbers: int = 0


class Verification:
    """The verification of one run.

    Args:
        run: The run. For an earlier checkpoint, results that come from the final model are read from the enclosing run.
        seed: Seed of the sample that is recomputed.

    Raises:
        UserError: If the run is a repetition, which stores too little to be verified.
    """

    def __init__(self, run: Run, seed: int):
        parent = run.path.resolve().parent
        nested = (parent.parent / "manifest.json").exists()
        if parent.name == study.REPEATS and nested:
            what = f"a repetition of the run in {parent.parent} and stores too little to be verified; verify that run."
            raise UserError(f"{run.path} is {what}")
        self.run, self.seed = run, seed
        names = {field.name for field in fields(Settings)} - {"custom_sizes"}
        try:
            stored = {name: value for name, value in run.configuration.items() if name in names}
            self.settings = Settings(**stored, custom_sizes=SampleSizes(**run.configuration["sizes"]))
        except (TypeError, AttributeError, KeyError):
            problem = f"The settings in the manifest of {run.path} cannot be read; the file was changed by hand."
            raise UserError(problem) from None
        self.final = Run(parent.parent) if parent.name == study.CHECKPOINTS and nested else None
        self.stages = all_stages() if self.final is None else study.checkpoint_stages()

    def check_files(self) -> list[Verdict]:
        """Check that no file has changed, and that manifest, summary and stages agree."""
        status, known = self.run.manifest["stages"], {stage.name for stage in all_stages()}
        present = {name for name in known | set(status) if (self.run.path / name).is_dir()}
        done = {name for name, entry in status.items() if entry.get("status") == "done"}
        wrong = [f"the stage {name} is done, but its folder is missing" for name in sorted(done - present)]
        wrong += [f"the stage {name} is not in the manifest" for name in sorted(present - set(status))]
        wrong += [f"the stage {s} is unknown to this version and cannot be verified" for s in sorted(done - known)]
        summaries = {}
        for name in sorted(done & present):
            damaged = damaged_files(self.run.path / name)
            wrong += [f"{name}/{file} has changed since it was written" for file in damaged]
            if "stage.json" not in damaged:
                record = _json(self.run.path / name / "stage.json")
                summaries[name] = record.get("summary")
                if any(status[name].get(entry) != record.get(entry) for entry in ("finished", "seconds")):
                    wrong.append(f"manifest.json and {name}/stage.json have different times")
        tally = Tally(EXACT)
        tally.same("summary.json", _json(self.run.path / "summary.json"), {n: s for n, s in summaries.items() if s})
        return [
            _verdict("files", wrong, f"no file of {counted(len(done), 'stage')} has changed since it was written"),
            _verdict("summary", tally.differences, "summary.json is the same as the summaries in the stages"),
        ]

    def check_model(self) -> list[Verdict]:
        """Check that the model is the manifest's (loading refuses other weights), and that keys follow from its settings."""
        run, model = self.run, self.run.model
        known, found = run.manifest["model"], plain(describe_model(model))
        here = device_name(model)
        wrong = [f"{name} (stored {known.get(name)}, now {x})" for name, x in found.items() if known.get(name) != x]
        elsewhere = "" if known.get("device") == here else f"; the run was made on {known.get('device')}"
        right = f"weights and tokenizer are those of the manifest; this is {here}{elsewhere}"
        verdicts = [_verdict("model", wrong, right)]
        version = run.manifest.get("version")
        if version != __version__:
            text = (
                f"not compared: they depend on the version, and the run is from {version}, while this is {__version__}"
            )
            return [*verdicts, Verdict("keys", True, text)]
        keys = keys_of(model, self.settings, self.stages, self._from_final())
        stored = {name: run.folder.key(name) for name in run.stages}
        other = [f"{name} was computed from something else" for name, key in stored.items() if key != keys.get(name)]
        return [*verdicts, _verdict("keys", other, "every stage was computed with the manifest's settings")]

    def check_stages(self, progress: Progress) -> list[Verdict]:
        """Check every stage that is done."""
        done = [stage for stage in self.stages if stage.name in self.run.stages]
        verdicts = []
        with progress.task("verify", len(done)) as advance:
            for stage in done:
                verdicts.append(self.check_stage(stage))
                advance(1)
        return verdicts

    def check_stage(self, stage: Stage) -> Verdict:
        """Recompute a sample of a stage, and run the check registered for its result, if any."""
        tally = Tally(noise_of(self.run.model.dtype_name))
        try:
            stored: Result = self.run[stage.result]
            tally.same("summary", _json(self.run.path / stage.name / "stage.json")["summary"], stored.summary())
            ctx = self._context(stage, stored, tally)
            function, recompute = CHECKS.get(stage.result, (None, True))
            if function is not None:
                function(ctx, stored)
            if recompute:
                tally.result(stored, stage.compute(ctx))
        except UserError as error:
            return Verdict(stage.name, False, f"DIFFERS: it cannot be checked. {error}")
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # tables that were changed by hand
            tally.differences.append(f"its tables do not fit together ({type(error).__name__}: {error})")
        shown, others = tally.differences[:SHOWN], len(tally.differences) - SHOWN
        wrong = [*shown, f"and {others} more"] if others > 0 else shown
        what = listed(tally.recomputed) if tally.recomputed else "all of it, from stored results"
        largest = (
            f"the largest difference is {tally.largest:.1g}, and {tally.allowed:.1g} is allowed for {tally.reason}"
        )
        compared = f"{counted(tally.numbers, 'number')} compared; {largest if tally.largest else 'none differs'}"
        return _verdict(stage.name, wrong, f"recomputed {what}; {compared}", tally.numbers)

    def _context(self, stage: Stage, stored: Result, tally: Tally) -> VerifyContext:
        results = Results(*(given.result for given in self._from_final()))
        for kind in stage.needs:
            if kind not in results:
                results.add(self.run[kind])
        if isinstance(stored, Training):
            folder = self.run.path / study.CHECKPOINTS
            parts = [study.read_checkpoint(child(folder, name), name) for name in stored.checkpoints[:-1]]
            results.add(CheckpointResults([checkpoint for checkpoint, _ in parts], [key for _, key in parts]))
        if isinstance(stored, StepOverlap):
            results.add(step_results(self.run.folder))
        if isinstance(stored, Stability):
            folder, effect = self.run.path / study.REPEATS, self.settings.effect
            results.add(RepeatResults([study.read_repeat(child(folder, n), n, effect) for n in stored.runs[1:]]))
        engine, settings = FullPass(tally.noise.tie), DeclaredSettings(self.settings, stage.reads)
        model = self.run.model.with_engine(engine)
        return VerifyContext(model, settings, results, stored=stored, tally=tally, engine=engine, sample_seed=self.seed)

    def _from_final(self) -> list[Given]:
        return [] if self.final is None else study.final_results(self.final.folder)


def _json(path: Path) -> Any:
    """Contents of a JSON file; empty if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _verdict(about: str, wrong: list[str], right: str, numbers: int = 0) -> Verdict:
    return Verdict(about, not wrong, f"DIFFERS: {'; '.join(wrong)}" if wrong else f"agrees: {right}", numbers)


def conclusion(verdicts: list[Verdict], stages: int) -> str:
    """The last sentence of a verification."""
    wrong = [verdict.about for verdict in verdicts if not verdict.agrees]
    numbers = sum(verdict.numbers for verdict in verdicts)
    if wrong:
        return (
            f"The run differs from what was recomputed; see {'line' if len(wrong) == 1 else 'lines'} {listed(wrong)}."
        )
    return (
        f"The run agrees with what was recomputed: {counted(numbers, 'number')} of {counted(stages, 'stage')} compared."
    )
