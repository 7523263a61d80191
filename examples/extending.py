"""Extend ncode with parts of your own: a method, a step-size rule, a backend, a dynamics and a controller.

Each part is one short class, or plain data, and is checked here against a solution in closed form. At the end a block
of one's own classes is saved and loaded.

    python examples/extending.py
"""

import math
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

import ncode


def decay(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
    """dx/dt = -theta x, so x(t) = x(0) exp(-theta t)."""
    return -theta * x


X0 = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
RATE = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
EXACT = X0 * (-RATE).exp()


def error(**options) -> float:
    """The error at t = 1 of a solve with these options."""
    return float((ncode.solve(decay, X0, 0.0, 1.0, theta=RATE, **options).x - EXACT).abs().max())


# A method is data: its Butcher tableau. With weights of an error estimate it would choose its step sizes too.
KUTTA = ncode.Tableau("kutta", order=3, c=(0, 1 / 2, 1), a=((), (1 / 2,), (-1, 2)), b=(1 / 6, 2 / 3, 1 / 6))


@dataclass(frozen=True)
class HalveOrDouble(ncode.StepSizeRule):
    """Step sizes that are powers of two times the first one."""

    smallest: float = 0.5

    def factor(self, order: int, ratio: Tensor, previous: Tensor, earlier: Tensor) -> Tensor:
        return torch.where(ratio > 1.0, 0.5, torch.where(ratio < 0.5 ** (order + 1), 2.0, 1.0))


class Profiled(ncode.Backend):
    """Runs a solve step by step, and counts what it runs."""

    name = "profiled"

    def __init__(self):
        self.counts: dict[str, int] = {}

    def run(self, function, inputs, captures):
        kind = type(function).__name__
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return function(inputs)


@ncode.register
class Attraction(ncode.dynamics.Dynamics):
    """dx/dt = goal - x: a dynamics needs `forward`, and `control_shapes` if it takes a control."""

    control_shapes = {"goal": (1,)}

    def forward(self, t: Tensor, x: Tensor, theta: dict[str, Tensor]) -> Tensor:
        return theta["goal"] - x


@ncode.register
class Mirror(ncode.control.Controller):
    """goal = -x(0): a controller needs `initial_theta`. With a method `speed` the control would change in time."""

    def initial_theta(self, context: Tensor) -> Tensor:
        return -context


def main() -> None:
    coarse, fine = (error(method=KUTTA, dt=dt) for dt in (0.1, 0.05))
    order = math.log2(coarse / fine)
    print(f"method          {KUTTA.name}: half the step, {coarse / fine:.1f} times less error, so order {order:.1f}")
    assert abs(order - KUTTA.order) < 0.2

    found = error(step_rule=HalveOrDouble(), rtol=1e-8, atol=1e-8)
    print(f"step-size rule  {HalveOrDouble()}: error {found:.0e} at a tolerance of 1e-8")
    assert found < 1e-7

    backend = Profiled()
    x0 = X0.clone().requires_grad_()
    sol = ncode.solve(decay, x0, 0.0, 1.0, theta=RATE, method="rk4", dt=0.1, compile=backend)
    sol.x.sum().backward()
    print(f"backend         {sol.stats.backend} ran {backend.counts}")
    assert torch.allclose(sol.x, EXACT, rtol=1e-3)
    assert torch.allclose(x0.grad, EXACT / X0, rtol=1e-3)

    # x(t) = x(0) (2 exp(-t) - 1): all samples meet at t = log 2 and cross, which those of a neural ODE cannot.
    block = ncode.NCODE(Attraction(), Mirror(), rtol=1e-6)
    x, ts = torch.tensor([[-1.0], [0.5]]), torch.tensor([math.log(2), 3.0])
    xs = block.trajectory(x, ts)[..., 0]
    meeting, end = xs.abs().round(decimals=3).T.tolist()
    print(f"block           |x| at t = log 2 {meeting}, at t = 3 {end}")
    assert torch.allclose(xs, x * (2 * (-ts).exp() - 1), atol=1e-5)

    # Registered classes are found by their names. Classes that are not, but live in an importable module, are found by
    # their import path, if the caller trusts it: from_pretrained(folder, allow_imports=["mypackage"]).
    with tempfile.TemporaryDirectory() as folder:
        block.save_pretrained(folder)
        again = ncode.NCODE.from_pretrained(folder)
    print(f"saved, loaded   {type(again.dynamics).__name__} with {type(again.controller).__name__}")
    assert torch.equal(again(x), block(x))


if __name__ == "__main__":
    main()
