"""The system that the "adjoint" gradient solves backward in time, and the integrals that it takes along the way.

The state is (z, a), or a alone where z(t) is read from the trajectory of the forward pass. The adjoint of each sample
is divided by its size, so that tolerances mean the same for losses of any scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linearise import linearise
from ..record import StepRecord
from ..step import Step
from ..system import Slope, State, System, expand_like
from ..unknown import refuse_unknown
from .function import ForwardContext, inner_product
from .trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class AdjointSystem:
    """d(z, a)/dt, without the cost's value.

    Its constants are those of the forward system; then the numbers of the samples, for their trajectory; the size that
    the adjoint was divided by; and the gradient c of the cost, divided by it too.
    """

    forward: System
    context: ForwardContext
    captures: tuple[Tensor, ...]  # that require a gradient
    trajectory: Trajectory | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.forward.dtype

    @property
    def bounded(self) -> bool:
        return self.forward.bounded

    @property
    def shown(self) -> int:
        return self.first + self.width  # dense output, which quadratures of implicit steps use, shows all of the state

    @property
    def width(self) -> int:
        """Leaves of z that are integrated."""
        return self.forward.shown

    @property
    def first(self) -> int:
        """Leaves of the state before those of the adjoint."""
        return self.width if self.trajectory is None else 0

    @property
    def parts(self) -> tuple[slice, ...]:
        parts = self.forward.parts[: 2 if self.forward.driven else 1]
        return (*(parts if self.first else ()), *(slice(p.start + self.first, p.stop + self.first) for p in parts))

    @property
    def time_constants(self) -> int:
        """Number of constants that are no controls."""
        return self.forward.time_constants + 3

    def constants(self, theta: Sequence[Tensor], scale: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return (*theta, torch.arange(len(scale), device=scale.device), scale, c)

    def clock(self, theta: Sequence[Tensor], t: Tensor) -> Tensor:
        """With a trajectory, the time of the loop: `_at` reads it at that time, and asks the system for its own."""
        return t if self.trajectory is not None else self.forward.clock(theta[:-3], t)

    def enter(self, theta: Sequence[Tensor], t: Tensor, t1: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        entered, stop = self.forward.enter(theta[:-3], t, t1)
        return (*entered, *theta[-3:]), stop

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """The slope as a function of (time of the clock, state)."""
        return lambda t, state: self._slope(t, state, theta)

    def jacobian(self, theta: Sequence[Tensor]) -> Callable[[Tensor, State], Tensor] | None:
        """With a trajectory, the slope is linear in the state a: -(dh/dz)^T."""
        if self.trajectory is None:
            return None
        return lambda t, a: -self._forward_jacobian(t, a, theta).mT

    def _forward_jacobian(self, t: Tensor, a: State, constants: Sequence[Tensor]) -> Tensor:
        time, z, _ = self.unpack(t, a, constants)
        with self.context:
            rows = linearise(self.forward, constants[:-3], time, self._with_cost(z, constants[-1])).rows
        size = sum(leaf[0].numel() for leaf in z)  # without the cost, which drives nothing
        return torch.stack(rows[:size], 1)[:, :, :size]

    def _with_cost(self, z: State, c: Tensor) -> State:
        return (*z, torch.zeros_like(c)) if self.forward.cost is not None else z

    def unpack(self, t: Tensor, state: State, constants: Sequence[Tensor]) -> tuple[Tensor, State, State]:
        """The time that the forward system receives, z and a; t is a time of the clock."""
        if self.trajectory is None:
            return t, state[: self.width], state[self.width :]
        return self.forward.clock(constants[:-3], t), self.trajectory.at(constants[-3], t), state

    def _slope(self, t: Tensor, state: State, constants: Sequence[Tensor]) -> State:
        graph = torch.is_grad_enabled()  # implicit steps differentiate this slope once more
        time, z, a = self.unpack(t, state, constants)
        if not graph:
            z = tuple(leaf.detach() for leaf in z)
        z = tuple(leaf if leaf.requires_grad else leaf.requires_grad_() for leaf in z)
        slope, cotangents = self.slope(time, z, a, constants)
        pulled = pull(slope, z, cotangents, graph)
        minus = tuple(torch.zeros_like(leaf) if grad is None else -grad for leaf, grad in zip(z, pulled, strict=True))
        slope = slope[: self.first]
        return (*(slope if graph else (k.detach() for k in slope)), *minus)

    def slope(self, t: Tensor, z: State, a: State, constants: Sequence[Tensor]) -> tuple[State, State]:
        """(f, g, l) at a time of the forward system's clock, with a graph, and what to pull it with."""
        *theta, _, _, c = constants
        with torch.enable_grad(), self.context:
            slope = self.forward.bind(theta)(t, self._with_cost(z, c))
        refuse_unknown(slope, (t, *z, *theta, *self.captures))
        return slope, (*a, c) if self.forward.cost is not None else a

    def rate(self, t: Tensor, towards: Tensor, z: State, a: State, constants: Sequence[Tensor]) -> Tensor:
        """a dz/dt + c l at a time of the loop, on the side of a jump that lies towards another; (batch,)."""
        entered, _ = self.enter(constants, t, towards)
        slope, cotangents = self.slope(self.forward.clock(entered[:-3], t), z, a, entered)
        return inner_product(cotangents, [k.detach() for k in slope]).to(t.dtype)


def pull(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor], graph: bool = False
) -> Sequence[Tensor | None]:
    """Vector-Jacobian products, None where nothing depends on an input; `graph` makes them differentiable."""
    linked = [(out, cot) for out, cot in zip(outputs, cotangents, strict=True) if out.requires_grad]
    if not linked or not inputs:
        return [None] * len(inputs)
    outs, cots = zip(*linked, strict=True)
    return torch.autograd.grad(outs, inputs, cots, create_graph=graph, allow_unused=True)


class Quadrature:
    """Integrates a dh/dp + c dl/dp along accepted steps: sum_i h w_i (a dh/dp) at points of each."""

    def __init__(
        self,
        system: AdjointSystem,
        step: Step,
        theta: Sequence[Tensor],
        wanted: Sequence[bool],
        captures: Sequence[Tensor],
    ):
        self.system, self.step, self.captures = system, step, captures
        self.theta = [torch.zeros_like(leaf) if want else None for leaf, want in zip(theta, wanted, strict=True)]
        self.sums: list[Tensor | None] = [None] * len(captures)
        self.calls = 0

    def add(self, record: StepRecord) -> None:
        if not self.captures and not any(total is not None for total in self.theta):
            return
        if record.h.device.type == "cpu" and not bool(record.h.any()):  # on CUDA checking would synchronise
            return
        constants, _ = self.system.enter(record.theta, record.t, record.t_next)
        *theta, _, scale, _ = constants
        pairs = zip(theta, self.theta, strict=True)
        theta = [leaf.detach().requires_grad_() if total is not None else leaf for leaf, total in pairs]
        inputs = [*(leaf for leaf in theta if leaf.requires_grad), *self.captures]
        for node, weight, state in self.step.quadrature(record.h, record.z, record.slopes, record.dense):
            t = self.system.clock(constants, record.t + node * record.h)
            time, z, a = self.system.unpack(t, state, constants)
            # With a gradient, since a cost may be a derivative with respect to x.
            z = tuple(leaf.detach().requires_grad_() for leaf in z)
            slope, cotangents = self.system.slope(time, z, a, (*theta, *constants[-3:]))
            # The solve runs backward, so h is negative where time went forward: the integral has the opposite sign.
            weights = expand_like((-weight * record.h * scale).to(self.system.dtype), cotangents)
            got = iter(pull(slope, inputs, tuple(w * cot for w, cot in zip(weights, cotangents, strict=True))))
            self.calls += 1
            for total in self.theta:
                grad = next(got) if total is not None else None
                if grad is not None and total is not None:
                    total.add_(grad) if record.rows is None else total.index_add_(0, record.rows, grad)
            for number, grad in enumerate(got):
                if grad is not None:
                    old = self.sums[number]
                    self.sums[number] = grad if old is None else old + grad


class JumpGradients:
    """Gradients of the times of jumps, (batch, n): a (dz/dt before - dz/dt after), and likewise for the cost."""

    def __init__(self, system: AdjointSystem, jumps: Tensor, t0: Tensor, span: Tensor):
        self.system, self.span = system, span
        self.times = (jumps - t0[:, None]).detach()
        self.grads = torch.zeros_like(jumps)

    def add(self, record: StepRecord) -> None:
        rows = slice(None) if record.rows is None else record.rows
        inside = self.times[rows].abs() < self.span[rows].abs()[:, None]
        here = (self.times[rows] == record.t[:, None]) & inside & (record.h != 0)[:, None]
        if not bool(here.any()):
            return
        t, constants = record.t, record.theta
        _, z, a = self.system.unpack(self.system.clock(constants, t), record.z, constants)
        z = tuple(leaf.detach().requires_grad_() for leaf in z)
        before, after = (self.system.rate(t, towards, z, a, constants) for towards in (0 * t, self.span[rows]))
        found = torch.where(here, ((before - after) * constants[-2])[:, None], 0.0)
        self.grads[rows] = self.grads[rows] + found
