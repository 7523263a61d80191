"""A flow: dx/dt = f(t, x, weights) from 0 to t1, and a training step on the mean square of x(t1).

Most workloads are flows, and every library knows how to enter one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import ncode

from .contest import Aim, Contest, Entry, Outcome, Settings, Skip

PEERS = ("torchdiffeq", "torchode", "diffrax")
TorchField = Callable[[Any, Tensor, Sequence[Tensor]], Tensor]
Prepare = Callable[[Any], Any]
TIGHT: dict[str, Any] = {"method": "dopri8", "rtol": 1e-10, "atol": 1e-10}
Step = tuple[Tensor, tuple[Tensor, ...], Tensor]


@dataclass(frozen=True, eq=False)
class Flow:
    """A problem, with its dynamics written in the ways that may be fastest for someone.

    `x0` is (batch, features) and the weights (batch, ...), or, where they are shared, of any shape: float64, on CPU.
    """

    x0: Tensor
    weights: Sequence[Tensor]
    torch_fields: Mapping[str, TorchField]  # of a batch
    jax_fields: Mapping[str, Callable[..., Any]]  # of one sample
    shared: bool = False  # one set of weights for all samples; gradients then go to the weights alone
    t1: float = 1.0
    dt: float | None = None  # fixed steps
    rtol: float = 1e-3
    atol: float = 1e-6
    compiled: Sequence[str] | None = None  # the torch fields that are worth compiling; None for all
    ours: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # rows of ours: arguments for solve
    generic: Sequence[str] | None = None  # which of our usual rows take part; None for all
    our_fields: Mapping[str, TorchField] | None = None  # in place of the torch fields, for our rows
    adjoints: Sequence[str] = ("checkpointed", "backsolve")  # diffrax's rows
    prepare: Mapping[str, Prepare] = field(default_factory=dict)  # of a field's weights, once per solve
    exact: Callable[[Tensor, Sequence[Tensor]], Tensor] | None = None  # x(t1), where that is known otherwise
    tight: Mapping[str, Any] = field(default_factory=lambda: TIGHT)  # how the reference is solved
    reference_device: str = "cpu"

    def leaves(self, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, tuple[Tensor, ...]]:
        """x0 and the weights, where and as the libraries get them."""
        x0, *weights = (leaf.to(device, dtype, copy=True) for leaf in (self.x0, *self.weights))
        return x0.requires_grad_(not self.shared), tuple(w.requires_grad_() for w in weights)

    @property
    def steps(self) -> int | None:
        """How many steps there are, where they are fixed."""
        return None if self.dt is None else round(self.t1 / self.dt)


def loss_of(x1: Any) -> Any:
    """The mean square, of a torch or of a jax array."""
    return (x1 * x1).mean()


def gradients(x1: Tensor, x0: Tensor, weights: Sequence[Tensor]) -> Step:
    """A training step's second half: the loss, its gradient for whatever wants one, and x(t1)."""
    loss = loss_of(x1)
    wanted = [leaf for leaf in (x0, *weights) if leaf.requires_grad]
    return loss.detach(), torch.autograd.grad(loss, wanted), x1.detach()


def read(result: Step) -> Outcome:
    """A torch step's result."""
    loss, grads, x1 = result
    return Outcome(float(loss), [grad.detach().double().cpu() for grad in grads], x1.double().cpu())


def reference(flow: Flow) -> Outcome:
    """The answer in float64 at a tight tolerance. A wrong one would show as disagreement with every peer."""
    x0, weights = flow.leaves(flow.reference_device, torch.float64)
    f = next(iter(flow.torch_fields.values()))
    if flow.exact is not None:
        x1 = flow.exact(x0, weights)
    elif flow.shared:
        x1 = ncode.solve(lambda t, x, _: f(t, x, weights), x0, 0.0, flow.t1, **flow.tight).x
    else:
        x1 = ncode.solve(f, x0, 0.0, flow.t1, theta=weights, **flow.tight).x
    return read(gradients(x1, x0, weights))


def compete(flow: Flow, settings: Settings, aims: Sequence[Aim] = (), **more: Any) -> Contest:
    """A contest of every library's entries for a flow."""
    entries, skipped = enter(flow, settings)
    return Contest(entries, reference(flow), aims, skipped, **more)


def enter(flow: Flow, settings: Settings) -> tuple[list[Entry], dict[str, str]]:
    """Every library's entries for a flow; those that are not installed are skipped, and why."""
    skipped: dict[str, str] = {}
    entries: list[Entry] = []
    for library in ("ours", *PEERS):
        if library != "ours" and settings.peers is not None and library not in settings.peers:
            continue
        try:
            module = importlib.import_module(f"benchmarks.libraries.{library}")
            entries += module.entries(flow, settings)
        except ModuleNotFoundError as missing:
            skipped[library] = f"{missing.name} is not installed"
        except Skip as reason:
            skipped[library] = str(reason)
    return entries, skipped
