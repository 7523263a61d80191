"""Pickles of images, read without running anything in them.

CIFAR-10's Python version is a set of pickles. Arrays are assembled here from their bytes; no function of another
package is looked up, so none can be called.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import torch
from torch import Tensor

from ncode import InputError


class RefusedPickle(InputError):
    """A pickle with more than arrays of bytes and plain containers."""


def read_pickle(data: bytes, name: str) -> Any:
    """Read containers, numbers, strings, and numpy arrays of bytes; those that are values of a dict as tensors."""
    try:
        return _to_tensors(_Unpickler(io.BytesIO(data), name).load())
    except RefusedPickle:
        raise
    except Exception as error:  # a damaged pickle can raise nearly any error, since its bytes are instructions
        raise InputError(
            f"{name} is damaged: it is not a pickle of images ({error}). Put a good copy there."
        ) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, name: str):
        super().__init__(file, encoding="bytes")
        self.name = name
        # Created per pickle, so that attributes set by one are not seen by the next.
        arrays = {(f"{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in ("numpy.core", "numpy._core")}
        self.known = {("numpy", "ndarray"): None, ("numpy", "dtype"): lambda *args: _check_dtype(*args), **arrays}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in self.known:
            raise RefusedPickle(
                f"{self.name} is refused: a pickle of images asks for {module_name}.{global_name}, which could run"
                " code. Only arrays of bytes and plain containers are read. Fetch the file again from its publisher."
            )
        return self.known[module_name, global_name]


class _Array:
    """An array under construction: numpy first creates an empty one, and then sets its state."""

    tensor: Tensor | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        shape = tuple(int(size) for size in shape)
        if not isinstance(dtype, _Bytes) or not isinstance(data, bytes) or fortran or len(data) != math.prod(shape):
            raise InputError(f"it has an array of shape {shape} that is not of bytes, row by row")
        self.tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)


class _Bytes:
    """The dtype of bytes; its state, byte order and the like, does not matter."""

    def __setstate__(self, state: Any) -> None: ...


def _check_dtype(name: Any, *_: Any) -> _Bytes:
    if name not in ("u1", b"u1"):
        raise InputError(f"it has an array of {name!r}, and not of bytes")
    return _Bytes()


def _to_tensors(value: Any) -> Any:
    """Convert the arrays of a dict. Not deeper: lists that share lists could take for ever."""
    if not isinstance(value, dict):
        return value
    return {key: each.tensor if isinstance(each, _Array) else each for key, each in value.items()}
