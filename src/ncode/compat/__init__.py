"""Other libraries' interfaces on top of `ncode.solve`, so that changing an import is enough."""

from . import torchcde, torchdiffeq

__all__ = ["torchcde", "torchdiffeq"]
