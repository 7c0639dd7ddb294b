"""Models larger than a device: device maps, and weights that are fetched when they are needed.

accelerate's hooks move the inputs of each module to where it runs. Offloaded weights (on disk, or in main memory while the
model runs on a GPU) are fetched only while their module runs; otherwise they are on the meta device, without values. Read a
weight with `weight_of`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arithscope.errors import UserError
from arithscope.utils.files import user_path

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # names of maps that accelerate makes
DISK = "disk"
EXAMPLE = '{"model.embed_tokens": 0, "model.layers.0": "cpu", "model.layers.1": "disk", …}'

DeviceMap = Mapping[str, str | int]  # module name → device


def read_device_map(device_map: str | DeviceMap) -> str | DeviceMap:
    """Validate a device map: the name of a strategy, a mapping, or a JSON file that holds one."""
    if isinstance(device_map, str) and device_map in STRATEGIES:
        return device_map
    mapping: Any = device_map
    if isinstance(device_map, str):
        if not user_path(device_map).is_file():
            advice = f"use {', '.join(STRATEGIES)} or a JSON file such as {EXAMPLE}"
            raise UserError(f"There is no device map {device_map!r}; {advice}.")
        try:
            mapping = json.loads(user_path(device_map).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            advice = f"write it as JSON, as in {EXAMPLE}"
            raise UserError(f"The device map {device_map} cannot be read; {advice}.") from None
    if not isinstance(mapping, Mapping) or not mapping:
        content = f"a device for each part of the model, as in {EXAMPLE}; this one is {repr(mapping)[:100]}"
        raise UserError(f"A device map gives {content}.")
    return {str(module): _device(device) for module, device in mapping.items()}


def _device(name: str | int) -> str | int:
    """cpu, disk, mps, or the number of a GPU."""
    if name in ("cpu", DISK) or (name == "mps" and torch.backends.mps.is_available()):
        return name
    match = re.fullmatch("cuda|(?:cuda:)?([0-9]{1,4})", str(name))
    if match is None:
        raise UserError(f"A device map cannot put anything on {repr(name)[:60]}; use 0, 1, … for a GPU, cpu or disk.")
    gpu, visible = int(match[1] or 0), torch.cuda.device_count()
    if gpu >= visible:
        raise UserError(f"The device map uses GPU {gpu} (visible CUDA GPUs: {visible}); use cpu or disk.")
    return gpu


def check_device_map(device_map: DeviceMap, hf_model: Any) -> None:
    """Refuse a map that does not give each weight of a model (which may be on the meta device) exactly one device."""
    modules = {name for name, _ in hf_model.named_modules()}
    if unknown := [name for name in device_map if name not in modules]:
        layers = next(name for name, module in hf_model.named_modules() if isinstance(module, torch.nn.ModuleList))
        problem = f"{unknown[0][:100]!r}, which the model does not have; its layers are {layers}.0, …"
        raise UserError(f"The device map names {problem}.")
    owners = {w: [m for m in device_map if m == "" or w.startswith(f"{m}.")] for w in hf_model.state_dict()}
    for weight, names in owners.items():
        if not names:
            raise UserError(f"The device map leaves {weight} out; name its module too.")
        if len(names) > 1:
            raise UserError(f"The device map names {names[0]!r} and {names[1]!r}, one inside the other; leave one out.")
    for weight, tied in getattr(hf_model, "all_tied_weights_keys", {}).items():
        if device_map[owners[weight][0]] != device_map[owners[tied][0]]:
            advice = "the device map must put both on the same device"
            raise UserError(f"The weights {weight} and {tied} are the same; {advice}.")


def offloaded(module: Any) -> bool:
    """Whether a module's own weights (not those of its submodules) are fetched whenever it runs."""
    return getattr(getattr(module, "_hf_hook", None), "offload", False)


@contextmanager
def fetched(module: Any) -> Iterator[None]:
    """Keep a module's weights readable; offloaded ones are fetched once."""
    with ExitStack() as stack:
        if offloaded(module):
            module._hf_hook.pre_forward(module)
            stack.callback(module._hf_hook.post_forward, module, None)
        yield


def weight_of(module: Any, name: str = "weight") -> Any:
    """A module's parameter with its values, fetched if it is offloaded; None if it has none of that name."""
    parameter = getattr(module, name, None)
    if parameter is None or parameter.device.type != "meta":
        return parameter
    with fetched(module):
        return getattr(module, name)


@contextmanager
def refetching_weights(hf_model: Any) -> Iterator[None]:
    """Let backward passes fetch offloaded weights again. The graph would otherwise keep them all, which may not fit."""
    modules = [m for m in hf_model.modules() if offloaded(m)]
    running = modules[:1]  # the module called last

    def on_call(module: Any, args: Any) -> None:
        running[0] = module

    def pack(x: Tensor) -> Tensor | Callable[[], Tensor]:
        for name, p in running[0].named_parameters(recurse=False):
            if p.device == x.device and p.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                offset = x.storage_offset() - p.storage_offset()
                return partial(_fetch_view, running[0], name, x.size(), x.stride(), offset)
        return x

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_pre_hook(on_call))
        if modules:
            hooks = torch.autograd.graph.saved_tensors_hooks
            stack.enter_context(hooks(pack, lambda x: x if isinstance(x, Tensor) else x()))
        yield


def _fetch_view(module: Any, name: str, size: torch.Size, stride: tuple[int, ...], offset: int) -> Tensor:
    """A view of a weight, which is fetched if it is offloaded."""
    weight = weight_of(module, name)
    return weight.as_strided(size, stride, weight.storage_offset() + offset)
