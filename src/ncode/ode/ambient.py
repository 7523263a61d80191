"""What surrounds an evaluation besides its arguments: autocast, settings of precision, and hooks on tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from .touched import Replaced


class Ambient:
    """Remembers the autocast mode of the forward pass; a context in which backward evaluates the dynamics again.

    Tensors that stood in for a module's own while forward ran (`replaced`) do so again.
    """

    def __init__(self, device: torch.device, replaced: Sequence[Replaced] = ()):
        self.modes, self.replaced = _autocast(device), replaced
        self.stack = ExitStack()

    def __enter__(self) -> None:
        self.stack = ExitStack()
        for place, name, tensor in self.replaced:
            self.stack.callback(place.__setitem__, name, place.get(name))
            place[name] = tensor
        for kind, dtype, enabled in self.modes:
            if enabled or torch.is_autocast_enabled(kind):
                self.stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))

    def __exit__(self, *error: object) -> None:
        self.stack.close()


def surroundings(device: torch.device) -> Hashable:
    """Settings under which the same operations compute something else: a graph that was traced keeps those it saw."""
    backends: Any = torch.backends
    products, cudnn, mkldnn = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    kinds = [getattr(backend, kind, None) for backend in (cudnn, mkldnn) for kind in ("matmul", "conv", "rnn")]
    return (
        _autocast(device),
        tuple(map(_precision, (backends, products, cudnn, mkldnn, *kinds))),
        (products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, mkldnn.enabled),
        torch.get_deterministic_debug_mode(),
    )


def _precision(backend: Any) -> Hashable:
    """Of products in single precision: `allow_tf32` says the same, but raises where it was set by the newer name."""
    return getattr(backend, "fp32_precision", None) or getattr(backend, "allow_tf32", None)


def _autocast(device: torch.device) -> tuple[tuple[str, torch.dtype, bool], ...]:
    kinds = sorted({device.type, "cpu"})
    return tuple((kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds)


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
