"""What surrounds an evaluation besides its arguments: the autocast mode, and hooks on tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor


class Ambient:
    """Remembers the autocast mode of the forward pass; a context in which backward evaluates the dynamics again."""

    def __init__(self, device: torch.device):
        kinds = {device.type, "cpu"}
        self.modes = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in sorted(kinds)]
        self.stack = ExitStack()

    def __enter__(self) -> None:
        self.stack = ExitStack()
        for kind, dtype, enabled in self.modes:
            if enabled or torch.is_autocast_enabled(kind):
                self.stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))

    def __exit__(self, *error: object) -> None:
        self.stack.close()


@contextmanager
def undisturbed(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Keeps the gradients of single steps from hooks and `retain_grad`: both are owed the sum of all, once."""
    hooked = [(hooks, dict(hooks)) for tensor in tensors if (hooks := tensor._backward_hooks)]
    retained = [(tensor, tensor.grad) for tensor in tensors if tensor.retains_grad]
    for hooks, _ in hooked:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, kept in hooked:
            hooks.update(kept)
        for tensor, grad in retained:
            tensor.grad = grad
