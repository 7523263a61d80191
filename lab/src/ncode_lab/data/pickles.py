"""Pickles of others, read without running anything that they ask for."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ncode import InputError


class Refused(InputError):
    """A pickle that asks for more than arrays of bytes and plain containers."""


def read_pickle(data: bytes, name: str) -> Any:
    """What a pickle holds: containers, numbers, strings, and numpy's arrays of bytes as tensors.

    Arrays are put together here from their bytes. No function of another package is looked up, so none can be called.
    """
    try:
        return _tensors(_Reader(io.BytesIO(data), name).load())
    except Refused:
        raise
    except Exception as error:
        # A damaged pickle can end in nearly any error, since its bytes are commands.
        raise InputError(
            f"{name} is damaged: it is not a pickle of images ({error}). Put a good copy there."
        ) from error


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, name: str):
        super().__init__(file, encoding="bytes")
        self.name = name
        # Made anew for each pickle, so that what one sets on them is not met by the next.
        self.known: dict[tuple[str, str], object] = {
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): _Call(_Kind),
            ("_codecs", "encode"): _Call(_encode),
        }
        for core in ("numpy.core", "numpy._core"):
            self.known[f"{core}.multiarray", "_reconstruct"] = _Call(_Array)
            self.known[f"{core}.numeric", "_frombuffer"] = _Call(_from_buffer)

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in self.known:
            raise Refused(
                f"{self.name} is refused: a pickle of images asks for {module_name}.{global_name}, which could run"
                " code. Only arrays of bytes and plain containers are read. Fetch the file again from its publisher."
            )
        return self.known[module_name, global_name]


class _Call:
    """A function that a pickle may call."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., object]):
        self.function = function

    def __call__(self, *args: Any) -> object:
        return self.function(*args)


class _Kind:
    """A dtype: only bytes are admitted."""

    def __init__(self, name: Any, *_: Any):
        if name not in ("u1", b"u1"):
            raise InputError(f"it has an array of {name!r}, and not of bytes")

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: of no matter for bytes."""


class _Array:
    """An array in the making: numpy first makes an empty one, and then sets what is in it."""

    def __init__(self, *_: Any):
        self.tensor: Tensor | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.tensor = _tensor(data, kind, shape, bool(fortran))


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.tensor = _tensor(data, kind, shape, order in ("F", b"F"))
    return array


def _tensor(data: Any, kind: Any, shape: Any, fortran: bool) -> Tensor:
    if not isinstance(kind, _Kind) or not isinstance(data, bytes | bytearray):
        raise InputError("it has an array that is not of bytes")
    shape = tuple(int(size) for size in shape)
    if len(data) != math.prod(shape):
        raise InputError(f"it has an array of shape {shape} with {len(data)} bytes")
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    if not fortran:
        return flat.reshape(shape)
    # Its columns lie one after another.
    return flat.reshape(shape[::-1]).permute(*reversed(range(len(shape)))).contiguous()


def _encode(text: Any, encoding: Any) -> bytes:
    """Bytes, as Python 3 writes them into the pickles of Python 2."""
    if encoding not in ("latin1", b"latin1") or not isinstance(text, str):
        raise InputError("it encodes something other than bytes")
    return text.encode("latin1")


def _tensors(value: Any) -> Any:
    """The same containers, with tensors for arrays."""
    if isinstance(value, _Array):
        return value.tensor
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tensors(item) for item in value)
    return value
