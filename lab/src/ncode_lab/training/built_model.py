"""`BuiltModel`: a model with the call that builds it, so that it can be saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


class BuiltModel(nn.Module):
    """A model with the function and the arguments that build it, which is what a saved folder needs to describe it.

    Args:
        build: A function at the top level of a module.
        arguments: Its arguments: numbers, strings and dataclasses.
        model: The model, if it has been built already.

    Attributes:
        model: The model.

    >>> import tempfile
    >>> from ncode.block import from_pretrained, save_pretrained
    >>> from ncode_lab.experiments.memory.models import build_memory
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(BuiltModel(build_memory, {"name": "lstm", "n": 4, "units": 8}), folder)
    ...     type(from_pretrained(folder, allow_imports=["ncode_lab"]).model).__name__
    'LSTMMemory'
    """

    def __init__(self, build: Callable[..., nn.Module], arguments: Mapping[str, Any], model: nn.Module | None = None):
        super().__init__()
        self.build, self.arguments = build, dict(arguments)
        self.model = build(**self.arguments) if model is None else model

    def config(self) -> dict[str, Any]:
        return {"build": self.build, "arguments": self.arguments}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)
