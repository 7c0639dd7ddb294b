"""Models larger than a device: which part of a model goes where, and weights that are fetched when they are needed.

accelerate's hooks move the inputs of each part to where it runs. Weights that lie on disk, or in main memory while the model
runs on a GPU, they fetch for as long as a module runs; in between these are on the meta device, without values. So whatever
reads a weight gets it from `weight_of`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arithscope.errors import UserError
from arithscope.utils.paths import user_path

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # with which the library makes a map of its own
DISK = "disk"
EXAMPLE = '{"model.embed_tokens": 0, "model.layers.0": "cpu", "model.layers.1": "disk", …}'

DeviceMap = Mapping[str, str | int]  # where the parts of a model go, by their names


def read_device_map(asked: str | DeviceMap) -> str | DeviceMap:
    """The name of a strategy, or where each part goes: a mapping, or a JSON file that holds one."""
    if isinstance(asked, str) and asked in STRATEGIES:
        return asked
    found = _from_file(asked) if isinstance(asked, str) else asked
    if not isinstance(found, Mapping) or not found:
        raise UserError(
            f"A device map says where each part of the model goes, as in {EXAMPLE}; this one says {repr(found)[:100]}."
        )
    return {str(part): _place(place) for part, place in found.items()}


def _from_file(name: str) -> Any:
    path = user_path(name)
    if not path.is_file():
        raise UserError(
            f"There is no device map {name!r}; use {', '.join(STRATEGIES)} or a JSON file such as {EXAMPLE}."
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UserError(f"The device map {name} cannot be read; write it as JSON, as in {EXAMPLE}.") from None


def _place(asked: str | int) -> str | int:
    """cpu, disk, mps, or the number of a GPU."""
    if asked in ("cpu", DISK) or (asked == "mps" and torch.backends.mps.is_available()):
        return asked
    named = re.fullmatch("cuda|(?:cuda:)?([0-9]{1,4})", str(asked))
    if named is None:
        raise UserError(f"A device map cannot put anything on {repr(asked)[:60]}; use 0, 1, … for a GPU, cpu or disk.")
    gpu, seen = int(named[1] or 0), torch.cuda.device_count()
    if gpu >= seen:
        raise UserError(f"The device map uses GPU {gpu}, but {seen or 'no'} CUDA GPUs are visible; use cpu or disk.")
    return gpu


def check_device_map(where: DeviceMap, hf_model: Any) -> None:
    """Complain of a map that does not give each weight of a model (it may be on the meta device) exactly one place."""
    parts, ties = {name for name, _ in hf_model.named_modules()}, getattr(hf_model, "all_tied_weights_keys", {})
    unknown = [part for part in where if part not in parts]
    if unknown:
        layers = next(name for name, module in hf_model.named_modules() if isinstance(module, torch.nn.ModuleList))
        raise UserError(
            f"The device map names {unknown[0][:100]!r}, which the model has not; its layers are {layers}.0, …."
        )
    owners = {weight: [p for p in where if p == "" or weight.startswith(f"{p}.")] for weight in hf_model.state_dict()}
    for weight, found in owners.items():
        if not found:
            raise UserError(f"The device map leaves {weight} out; name its part too.")
        if len(found) > 1:
            raise UserError(
                f"The device map names {found[0]!r} and {found[1]!r}, of which one is part of the other; leave one out."
            )
    for one, other in ties.items():
        if where[owners[one][0]] != where[owners[other][0]]:
            raise UserError(
                f"The weights {one} and {other} are the same; the device map must put both in the same place."
            )


def main_device(hf_model: Any) -> torch.device:
    """Where a model takes its inputs and leaves its logits. Of one that is spread over devices its weights may tell nothing."""
    hook = getattr(hf_model, "_hf_hook", None)
    return hf_model.device if hook is None else torch.device(hook.execution_device)


def devices(hf_model: Any) -> set[torch.device]:
    """All devices on which parts of a model run."""
    hooks = [module._hf_hook for module in hf_model.modules() if hasattr(module, "_hf_hook")]
    return {main_device(hf_model), *(torch.device(h.execution_device) for h in hooks if h.execution_device is not None)}


def offloaded(module: Any) -> bool:
    """Whether weights of this module (not those of its parts) are fetched whenever it runs."""
    return getattr(getattr(module, "_hf_hook", None), "offload", False)


@contextmanager
def fetched(module: Any) -> Iterator[None]:
    """Inside, the weights of a module are there to be read, fetched once if they are offloaded."""
    if not offloaded(module):
        yield
        return
    module._hf_hook.pre_forward(module)
    try:
        yield
    finally:
        module._hf_hook.post_forward(module, None)


def weight_of(module: Any, name: str = "weight") -> Any:
    """A parameter of a module with its values, wherever they lie; None if it has none of that name."""
    parameter = getattr(module, name, None)
    if parameter is None or parameter.device.type != "meta":
        return parameter
    with fetched(module):
        return getattr(module, name)


@dataclass(frozen=True)
class _Again:
    """What a backward pass needs of an offloaded weight: where to get it, and which view of it."""

    module: Any
    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def fetch(self) -> Tensor:
        weight = weight_of(self.module, self.name)
        return weight.as_strided(self.size, self.stride, weight.storage_offset() + self.offset)


@contextmanager
def fetched_again(hf_model: Any) -> Iterator[None]:
    """Passes inside do not keep offloaded weights for the backward pass, which fetches them again: all of them together may
    not fit."""
    modules = [m for m in hf_model.modules() if offloaded(m)]
    running = modules[:1]  # the one that was called last

    def call(module: Any, args: Any) -> None:
        running[0] = module

    def pack(x: Tensor) -> Tensor | _Again:
        for name, p in running[0].named_parameters(recurse=False):
            if p.device == x.device and p.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                return _Again(running[0], name, x.size(), x.stride(), x.storage_offset() - p.storage_offset())
        return x

    def unpack(kept: Tensor | _Again) -> Tensor:
        return kept.fetch() if isinstance(kept, _Again) else kept

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(call).remove)
        if modules:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, unpack))
        yield
