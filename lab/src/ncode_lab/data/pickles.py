"""Pickles from other people, read without running anything in them."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ncode import InputError


class RefusedPickle(InputError):
    """A pickle with more than arrays of bytes and plain containers."""


def read_pickle(data: bytes, name: str) -> Any:
    """Read containers, numbers, strings, and numpy arrays of bytes as tensors.

    Arrays are assembled here from their bytes. No function of another package is looked up, so none can be called.
    """
    try:
        return _to_tensors(_Unpickler(io.BytesIO(data), name).load())
    except RefusedPickle:
        raise
    except Exception as error:
        # A damaged pickle can raise nearly any error, since its bytes are instructions.
        raise InputError(
            f"{name} is damaged: it is not a pickle of images ({error}). Put a good copy there."
        ) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, name: str):
        super().__init__(file, encoding="bytes")
        self.name = name
        # Created per pickle, so that attributes set by one are not seen by the next.
        self.known: dict[tuple[str, str], object] = {
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): _Function(_Dtype),
            ("_codecs", "encode"): _Function(_encode),
        }
        for core in ("numpy.core", "numpy._core"):
            self.known[f"{core}.multiarray", "_reconstruct"] = _Function(_Array)
            self.known[f"{core}.numeric", "_frombuffer"] = _Function(_from_buffer)

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in self.known:
            raise RefusedPickle(
                f"{self.name} is refused: a pickle of images asks for {module_name}.{global_name}, which could run"
                " code. Only arrays of bytes and plain containers are read. Fetch the file again from its publisher."
            )
        return self.known[module_name, global_name]


class _Function:
    """A function that a pickle may call, and on which it can set no attributes."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., object]):
        self.function = function

    def __call__(self, *args: Any) -> object:
        return self.function(*args)


class _Dtype:
    def __init__(self, name: Any, *_: Any):
        if name not in ("u1", b"u1"):
            raise InputError(f"it has an array of {name!r}, and not of bytes")

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and the like, which do not matter for bytes."""


class _Array:
    """An array under construction: numpy first creates an empty one, and then sets its state."""

    def __init__(self, *_: Any):
        self.tensor: Tensor | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.tensor = _tensor(data, dtype, shape, bool(fortran))


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.tensor = _tensor(data, dtype, shape, order in ("F", b"F"))
    return array


def _tensor(data: Any, dtype: Any, shape: Any, fortran: bool) -> Tensor:
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
        raise InputError("it has an array that is not of bytes")
    shape = tuple(int(size) for size in shape)
    if len(data) != math.prod(shape):
        raise InputError(f"it has an array of shape {shape} with {len(data)} bytes")
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    if not fortran:
        return flat.reshape(shape)
    return flat.reshape(shape[::-1]).permute(*reversed(range(len(shape)))).contiguous()


def _encode(text: Any, encoding: Any) -> bytes:
    """Return the bytes that Python 3 writes as text into pickles for Python 2."""
    if encoding not in ("latin1", b"latin1") or not isinstance(text, str):
        raise InputError("it encodes something other than bytes")
    return text.encode("latin1")


def _to_tensors(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.tensor
    if isinstance(value, dict):
        return {key: _to_tensors(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_tensors(item) for item in value)
    return value
