"""GGUF files, parsed once.

transformers parses a GGUF file anew for the configuration, the weights and the tokenizer, and the gguf package needs many
calls for every token of a vocabulary. While `parsed_once` reads a model, there is one reader, which needs one or two.
"""

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType, get_tensor_name_map

from arithscope.errors import UserError

Read = TypeVar("Read")

_ARRAY_HEADER = struct.Struct("=IQ")  # type and number of the items
_LENGTH = struct.Struct("=Q")  # of a string, in bytes
_patching = threading.Lock()  # the package gguf is patched for the whole process


def parsed_once(file: Path, read: Callable[[], Read]) -> Read:
    """What `read` returns, with the GGUF file parsed only once.

    If a library refuses what the shared reader gives it, everything is read again in the libraries' own way: another version of
    them may need something else.

    Args:
        file: The GGUF file.
        read: Reads a model from it with transformers.

    Raises:
        UserError: If `read` does.
    """
    try:
        with _shared_reader(file):
            return read()
    except UserError as error:
        if error.__cause__ is None:  # refused by arithscope, not by a library
            raise
    return read()


def without_bos(file: Path) -> bool:
    """Whether a GGUF file says that texts do not begin with a BOS token.

    A GGUF file names a BOS token even for a model that has none: for Qwen it is the one that separates documents, and with it
    in front the model hardly adds any more (docs/real-models.md).
    """
    field = gguf.GGUFReader(file).fields.get("tokenizer.ggml.add_bos_token")  # the shared reader, within `parsed_once`
    return field is not None and not field.parts[field.data[0]].any()


@contextmanager
def _shared_reader(file: Path) -> Iterator[None]:
    """Give transformers, which looks these functions up when it needs them, one reader of the file and one table of names."""
    readers: list[Any] = []

    def reader_of(path: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(path) != file or args or kwargs:
            return GGUFReader(path, *args, **kwargs)
        if not readers:
            readers.append(open_gguf(file))
        return readers[0]

    with _patching:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader_of, cache(get_tensor_name_map)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = GGUFReader, get_tensor_name_map


def open_gguf(file: Path) -> Any:
    """A reader of a GGUF file: the fast one, or the library's own if that fails."""
    try:
        return _FastReader(file)
    except Exception:  # a damaged file, which the library's reader refuses too, or another version of the library
        return GGUFReader(file)


class _FastReader(GGUFReader):
    """The library's reader, but an array's items are found without a call for each, and tensors are no memory maps, which are
    slow to slice."""

    def __init__(self, file: Path):
        super().__init__(file)
        for index, tensor in enumerate(self.tensors):
            self.tensors[index] = tensor._replace(data=np.asarray(tensor.data))

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        """Size, parts, indices of the parts that are items, and types of the value at an offset."""
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        content = memoryview(self.data)
        item_type, count = _ARRAY_HEADER.unpack_from(content, orig_offs)
        first = orig_offs + _ARRAY_HEADER.size
        if item_type == GGUFValueType.STRING:
            items, size = _strings(content, first, count)
        elif item_type in self.gguf_scalar_to_np:
            items, size = _numbers(content, first, count, self.gguf_scalar_to_np[item_type])
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        parts = [np.array([item_type], np.uint32), np.array([count], np.uint64), *items]
        types = [GGUFValueType.ARRAY, *([GGUFValueType(item_type)] if count else [])]
        return _ARRAY_HEADER.size + size, parts, list(range(2, len(parts))), types


def _strings(content: memoryview, first: int, count: int) -> tuple[list[memoryview], int]:
    """The bytes of consecutive strings, each of which follows its length, and the size of all of them."""
    found, start = [], first
    for _ in range(count):
        [length] = _LENGTH.unpack_from(content, start)
        start += _LENGTH.size + length
        found.append(content[start - length : start])
    return found, start - first


def _numbers(content: memoryview, first: int, count: int, kind: type[np.generic]) -> tuple[list[Any], int]:
    """Consecutive numbers, each as an array of one, and their size."""
    numbers = np.frombuffer(content, kind, count, first)
    return list(numbers.reshape(-1, 1)), numbers.nbytes
