"""Fake GPUs: CPU tensors that are treated as if they were on several devices."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

CPU, META = torch.device("cpu"), torch.device("meta")
MANY = 100_000  # storages; beyond that, freed ones are dropped
BETWEEN_DEVICES = ("copy_", "__get__", "__set__")  # may take tensors of several devices


class FakeGPUs(TorchFunctionMode):
    """Tensors moved to a GPU stay in main memory and only carry its name. As on real GPUs, an operation on tensors of several
    devices is an error, except for CPU scalars and CPU indices."""

    def __init__(self) -> None:
        super().__init__()
        # By the address of the storage, which is not reused while there is a reference, even a weak one.
        self._places: dict[int, tuple[torch.device, StorageWeakRef]] = {}

    def place(self, x: Tensor) -> torch.device:
        return META if x.is_meta else self._places.get(x.untyped_storage()._cdata, (CPU,))[0]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return self.place(args[0])
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return self.place(args[0]).type == "cuda"
        if name == "numpy" and self.place(args[0]) != CPU:
            raise RuntimeError("a GPU tensor cannot become an array")
        if function in (torch.Tensor.to, torch.Tensor.cpu):
            return self._sent(args[0], args[1:] if name == "to" else (CPU,), given)
        if function is torch.autograd.grad:
            found = function(*args, **given)
            return tuple(self._put(slope, self.place(x)) for slope, x in zip(found, args[1], strict=True))
        where = self._named(given["device"]) if given.get("device") is not None else self._common(name, args, given)
        if where != META and "device" in given:
            given["device"] = CPU
        return tree_map_only(Tensor, lambda x: self._put(x, where), function(*args, **given))

    def _sent(self, x: Tensor, rest: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
        device, dtype = given.get("device"), given.get("dtype")
        for wanted in rest:
            if isinstance(wanted, Tensor):
                device, dtype = self.place(wanted), wanted.dtype
            elif isinstance(wanted, torch.dtype):
                dtype = wanted
            elif isinstance(wanted, str | int | torch.device) and not isinstance(wanted, bool):
                device = wanted
        device = self.place(x) if device is None else self._named(device)
        if device == META:
            return x.to(META)
        return self._put(x.to(dtype or x.dtype, copy=given.get("copy", False)), device)

    def _put(self, x: Tensor, device: torch.device) -> Tensor:
        """Mark a tensor as being on a device; a copy of it if it is on another one."""
        if x.is_meta or x.numel() == 0:
            return x
        if self._places.get(x.untyped_storage()._cdata, (device,))[0] != device:
            x = x.clone()
        self._places[x.untyped_storage()._cdata] = device, StorageWeakRef(x.untyped_storage())
        if len(self._places) > MANY:
            self._places = {address: kept for address, kept in self._places.items() if not kept[1].expired()}
        return x

    def _common(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
        """The one device of all tensors that an operation reads together."""
        tensors = _tensors((args, kwargs))
        if name in ("__getitem__", "__setitem__"):
            values = args[2:] if _tensors(args[1]) else ()  # with slices it is a copy, which may come from anywhere
            tensors = _tensors((args[0], values)) + [x for x in _tensors(args[1]) if self.place(x) != CPU]
        places = [self.place(x) for x in tensors if x.ndim or self.place(x) != CPU]
        if len(set(places)) > 1 and name not in BETWEEN_DEVICES:
            raise RuntimeError(f"{name} of tensors on {', '.join(map(str, places))}")
        return places[0] if places else CPU

    @staticmethod
    def _named(device: Any) -> torch.device:
        found = torch.device(device)
        return torch.device("cuda", found.index or 0) if found.type == "cuda" else found


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.numel() and not x.is_meta]


class InlineExecutor(Executor):
    """A thread pool that runs everything in the calling thread: other threads do not see the fake GPUs."""

    def __init__(self, threads: int, initializer: Callable[[], None] | None = None):
        if initializer is not None:
            initializer()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*args, **kwargs))
        return done
