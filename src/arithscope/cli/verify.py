"""The command `arithscope verify`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from arithscope.cli.options import AllowPickle, Device, DeviceMap, ModelNow, RunArgument, TrustRemoteCode, opened
from arithscope.errors import UserError

if TYPE_CHECKING:
    from arithscope.verify.verify import Verdict


def verify(
    run: RunArgument,
    seed: Annotated[int, typer.Option(help="Chooses what is recomputed.")] = 0,
    model: ModelNow = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Recompute a sample of every stage of a run from its manifest, and say whether it agrees."""
    from arithscope.utils.progress import for_console
    from arithscope.verify.inputs import Inputs
    from arithscope.verify.verify import check_files, check_model, check_stages, conclusion

    if seed < 0:
        raise UserError(f"--seed {seed} is negative; use 0 or more.")
    studied = opened(run, model, device, device_map, allow_pickle, trust_remote_code)
    if not studied.stages:
        raise UserError(f"The run in {run} has no stage that is done, so there is nothing to verify.")
    verdicts = _show(check_files(studied))
    inputs = Inputs.of(studied, seed)
    verdicts += _show(check_model(inputs))
    verdicts += _show(check_stages(inputs, for_console(Console(stderr=True))))
    said = conclusion(verdicts, len(studied.stages))
    if all(verdict.agrees for verdict in verdicts):
        print(said)
    else:
        print(f"arithscope: {said}", file=sys.stderr)
        raise typer.Exit(1)


def _show(verdicts: list[Verdict]) -> list[Verdict]:
    for verdict in verdicts:
        print(f"{verdict.about:17}{verdict.said}", flush=True)
    return verdicts
