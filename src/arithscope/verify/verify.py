"""Whether a run's numbers can be reproduced: its files, its subject, and a sample of every stage, recomputed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arithscope import __version__
from arithscope.errors import UserError
from arithscope.pipeline import runner
from arithscope.pipeline.registry import STAGES, Stage
from arithscope.pipeline.runner import describe_model, device_name
from arithscope.pipeline.store import damaged_files, plain
from arithscope.results.run import Run
from arithscope.utils.progress import Progress
from arithscope.verify.compare import EXACT, Tally, noise_of
from arithscope.verify.inputs import Inputs
from arithscope.verify.samplers import sampler_of

SHOWN = 3  # differences of a stage that are told


@dataclass(frozen=True)
class Verdict:
    """About one stage, or about what belongs to no stage."""

    about: str
    agrees: bool
    said: str
    numbers: int = 0


def check_files(run: Run) -> list[Verdict]:
    """Whether the files are as they were written, and manifest, summary and stages say the same."""
    said, known = run.manifest["stages"], {stage.name for stage in STAGES}
    there = {name for name in known | set(said) if (run.path / name).is_dir()}
    done = {name for name, entry in said.items() if entry.get("status") == "done"}
    wrong = [f"the stage {name} is done, but not there" for name in sorted(done - there)]
    wrong += [f"the stage {name} is there, but not in the manifest" for name in sorted(there - set(said))]
    wrong += [f"the stage {name} is of another version, and cannot be verified" for name in sorted(done - known)]
    records = {}
    for name in sorted(done & there):
        damaged = damaged_files(run.path / name)
        wrong += [f"{name}/{file} is not as it was written" for file in damaged]
        if "stage.json" not in damaged:
            record = _json(run.path / name / "stage.json")
            records[name] = record.get("summary")
            if any(said[name].get(entry) != record.get(entry) for entry in ("finished", "seconds")):
                wrong.append(f"manifest and {name}/stage.json name different times")
    verdicts = [_verdict("files", wrong, f"of {len(done)} stages are as they were written")]
    tally = Tally(EXACT)
    tally.same("summary.json", _json(run.path / "summary.json"), {name: x for name, x in records.items() if x})
    verdicts.append(_verdict("summary", tally.differs, "says what the stages say"))
    return verdicts


def check_model(inputs: Inputs) -> list[Verdict]:
    """Whether the subject is that of the manifest (other weights are refused when it is loaded), and the keys of the stages are
    those of these settings."""
    run, model = inputs.run, inputs.model
    known, found = run.manifest["model"], plain(describe_model(model))
    wrong = [f"{name} (stored {known.get(name)}, now {x})" for name, x in found.items() if known.get(name) != x]
    here = device_name(model)
    where = (
        f"on {here}" if known.get("device") == here else f"on {here}, while the run was made on {known.get('device')}"
    )
    verdicts = [_verdict("model", wrong, f"has the weights and the tokenizer of the manifest; {where}")]
    version = run.manifest.get("version")
    if version != __version__:
        said = f"the run is of version {version}, and this is {__version__}: keys cannot be the same, while numbers may"
        return [*verdicts, Verdict("keys", True, f"not compared: {said}")]
    keys = runner.keys_of(model, inputs.settings, inputs.stages, inputs.given)
    there = {name: run.folder.key(name) for name in run.stages}
    other = [f"{name} was computed from something else" for name, key in there.items() if key != keys.get(name)]
    return [*verdicts, _verdict("keys", other, f"of {len(there)} stages are those of the manifest's settings")]


def check_stages(inputs: Inputs, progress: Progress) -> list[Verdict]:
    """A verdict on every stage that is done."""
    done = [stage for stage in STAGES if stage.name in inputs.run.stages]
    verdicts = []
    with progress.task("verify", len(done)) as advance:
        for stage in done:
            verdicts.append(check_stage(inputs, stage))
            advance(1)
    return verdicts


def check_stage(inputs: Inputs, stage: Stage) -> Verdict:
    tally, sampler = Tally(noise_of(inputs.model.dtype_name)), sampler_of(stage.name)
    try:
        stored = inputs.run.result(stage.name)
        tally.same("summary", _stored_summary(inputs.run, stage.name), stored.summary())
        sampler(inputs, stored, tally)
    except UserError as error:
        return Verdict(stage.name, False, f"DIFFERS: it cannot be checked. {error}")
    except (LookupError, ValueError, TypeError, AttributeError) as error:  # tables that another hand has written
        tally.differs.append(f"its tables do not fit together ({type(error).__name__}: {error})")
    if tally.differs:
        more = f"; and {len(tally.differs) - SHOWN} more" if len(tally.differs) > SHOWN else ""
        return Verdict(stage.name, False, f"DIFFERS: {'; '.join(tally.differs[:SHOWN])}{more}", tally.numbers)
    return Verdict(stage.name, True, f"agrees: {', '.join(tally.recomputed)}; {_measured(tally)}", tally.numbers)


def _measured(tally: Tally) -> str:
    if tally.difference == 0:
        return f"{tally.numbers:,} numbers, all of them the same"
    return (
        f"{tally.numbers:,} numbers, the largest difference {tally.difference:.1g} of {tally.allowed:.1g} allowed "
        f"({tally.why})"
    )


def _stored_summary(run: Run, stage: str) -> Any:
    return _json(run.path / stage / "stage.json")["summary"]


def _json(path: Path) -> Any:
    """What a file says; nothing if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _verdict(about: str, wrong: list[str], right: str) -> Verdict:
    return Verdict(about, not wrong, f"DIFFERS: {'; '.join(wrong)}" if wrong else f"agrees: {right}")


def conclusion(verdicts: list[Verdict], stages: int) -> str:
    """The last sentence."""
    wrong = [verdict.about for verdict in verdicts if not verdict.agrees]
    numbers = sum(verdict.numbers for verdict in verdicts)
    if wrong:
        return f"This run does not agree with what was recomputed from its manifest: see {', '.join(wrong)}."
    return f"The run agrees: {numbers:,} numbers of {stages} stages were recomputed from its manifest."
