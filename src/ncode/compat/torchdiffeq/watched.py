"""What `odeint_adjoint` remembers of the forward solve: unknown tensors, and those that must not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...ode.gradients.function import CHANGED, deviates
from ...ode.held_values import held_by
from ...ode.system import version_of
from .runge_kutta import Field


class Watched:
    """The field of a forward solve, whose first evaluation is remembered.

    With `search`, it finds leaf tensors that require a gradient and are not known. Other tensors that func holds must
    not change until backward, apart from those that it changes itself, such as a count of evaluations.
    """

    def __init__(self, field: Field, func: Any, known: Sequence[Tensor], search: bool):
        self.field, self.search, self.known = field, search, {id(tensor) for tensor in known}
        self.unknown: list[Tensor] = []
        self.first: tuple[Tensor, Tensor] | None = None  # time and slope
        self.held = [(it, version_of(it)) for it in _tensors_of(func) if id(it) not in self.known]

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        if self.first is not None:
            return self.field(t, y)
        slope = self._search(t, y) if self.search else self.field(t, y)
        self.first = t, slope
        return slope

    def _search(self, t: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            slope = self.field(t, y)
        leaves = [] if slope.grad_fn is None else graph_leaves(slope.grad_fn)
        known = self.known | {id(t), id(y)}
        self.unknown = [leaf for leaf in leaves if id(leaf) not in known]
        return slope.detach()

    def settle(self) -> None:
        """Watch only what the forward solve, which has ended, left as it was."""
        self.held = [(tensor, version) for tensor, version in self.held if version_of(tensor) == version]

    def check(self, field: Field, y0: Tensor) -> None:
        """Refuse tensors that were changed since, if func has become another function at t[0]."""
        changed = [tensor for tensor, version in self.held if version_of(tensor) != version]
        if not changed or self.first is None:
            return
        t, slope = self.first
        if bool(deviates((field(t, y0),), (slope,))):
            raise InputError(CHANGED.format(shape=tuple(changed[0].shape)))


def _tensors_of(func: Any) -> list[Tensor]:
    if not isinstance(func, nn.Module):
        return [value for value in held_by(func) if isinstance(value, Tensor)]
    # `held_by` finds more, but takes longer than a short solve of a module with many parts.
    own = [value for module in func.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return [*func.parameters(), *func.buffers(), *own]


def graph_leaves(start: Any) -> list[Tensor]:
    """The leaf tensors that a graph leads to."""
    stack, visited, found = [start], {start}, []
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for after, _ in node.next_functions:
            if after is not None and after not in visited:
                visited.add(after)
                stack.append(after)
    return found
