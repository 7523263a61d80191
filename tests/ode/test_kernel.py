"""Solves in a kernel are eager solves: values, gradients, counts and statuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import ncode
from ncode import InputError, Status
from ncode.ode.kernel.build import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
BATCH = 19  # more than one block of samples, and the last one not full


class Case(NamedTuple):
    """A solve: its function, x0, and the keyword arguments of `solve`; `trained` are captures with a gradient."""

    dynamics: Callable[..., Any]
    x0: Any
    t0: Any = 0.0
    t1: Any = 1.0
    options: dict[str, Any] = {}
    trained: Sequence[Tensor] = ()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lorenz() -> Case:
    def f(t: Tensor, x: Tensor, rho: Tensor) -> Tensor:
        a, b, c = x.unbind(1)
        return torch.stack([10 * (b - a), a * (rho - c) - b, a * b - 8 / 3 * c], 1)

    return Case(f, 1 + normal(BATCH, 3), t1=0.7, options={"theta": 21 + uniform(BATCH), "method": "tsit5"})


def shared_network() -> Case:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 17), nn.Softplus(), nn.Linear(17, 11), nn.SiLU(), nn.Linear(11, 3)).double()
    return Case(lambda t, x, _: net(x), normal(BATCH, 3), trained=tuple(net.parameters()))


def own_weights() -> Case:
    theta = {"w": normal(BATCH, 9, 4, seed=1), "b": normal(BATCH, 9, seed=2), "v": normal(BATCH, 4, 9, seed=3)}

    def f(t: Tensor, x: Tensor, own: dict[str, Tensor]) -> Tensor:
        h = torch.tanh(torch.einsum("bij,bj->bi", own["w"], x) + own["b"])
        return torch.baddbmm(-x[..., None], own["v"], h[..., None])[..., 0]

    return Case(f, normal(BATCH, 4), options={"theta": theta})


def closed_loop() -> Case:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()

    def f(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return torch.bmm(theta.tanh(), x[:, :, None]).squeeze(-1) - x

    def g(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return net(torch.cat([x, t[:, None]], 1)).view(-1, 2, 2) - theta

    options = {"theta": normal(BATCH, 2, 2, seed=4), "feedback": g}
    return Case(f, normal(BATCH, 2), t0=0.3, t1=1.7, options=options, trained=tuple(net.parameters()))


def running_cost() -> Case:
    weight, goal = normal(2, seed=5).requires_grad_(), normal(2, seed=6).requires_grad_()

    def cost(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return (weight.exp() * (x - goal) ** 2).sum(1) + theta.square().mean(1)

    options = {"theta": normal(BATCH, 3, seed=7), "cost": cost}
    return Case(lambda t, x, theta: x.sin() * theta[:, :2] + theta[:, 2:].relu(), normal(BATCH, 2), options=options,
                trained=(weight, goal))


def uneven() -> Case:
    speed = torch.logspace(-1, 1.5, BATCH, dtype=torch.float64)[:, None]
    turn = lambda t, x, w: w * torch.stack([x[:, 1], -x[:, 0]], 1)  # noqa: E731
    return Case(turn, normal(BATCH, 2), t1=2.0, options={"theta": speed, "step_rule": ncode.PID(p=0.2, d=0.05)})


def own_times() -> Case:
    t0, t1 = uniform(BATCH, seed=8), 2 * uniform(BATCH, seed=9)
    t1[3] = t0[3]  # nothing to do
    return Case(lambda t, x, _: -x * (1 + t.sin()[:, None]), normal(BATCH, 2), t0=t0, t1=t1)


def backward_in_time() -> Case:
    return Case(lambda t, x, _: x.cos() + t[:, None], normal(BATCH, 2), t0=1.5, t1=torch.tensor(-0.5).double())


def fixed_steps() -> Case:
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    options = {"method": "rk4", "dt": 0.15}
    return Case(lambda t, x, _: scale * x.sigmoid(), normal(BATCH, 5), options=options, trained=(scale,))


def nested() -> Case:
    def f(t: Tensor, x: Any, _: Any) -> Any:
        return {"q": x["p"], "p": -x["q"] ** 3}

    x0 = {"q": normal(BATCH, 2), "p": normal(BATCH, 2, seed=1)}
    return Case(f, x0, options={"method": "dopri8", "rtol": {"q": 1e-7, "p": 1e-5}})


def hamiltonian() -> Case:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()

    def f(t: Tensor, x: Tensor, _: Any) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            dq, dp = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].unbind(1)
        return torch.stack([dp, -dq], 1)

    return Case(f, normal(BATCH, 2), trained=tuple(net.parameters()))


def masked_weights() -> Case:
    weight = normal(4, 4, seed=3).requires_grad_()
    mask = torch.tril(torch.ones(4, 4)).bool()

    def f(t: Tensor, x: Tensor, _: Any) -> Tensor:
        w = torch.where(mask, weight, 0).expand(len(x), 4, 4)
        return torch.softmax((w @ x[..., None]).squeeze(-1), -1) - x.clamp(-0.5, 0.5)

    return Case(f, normal(BATCH, 4), trained=(weight,))


CASES = (lorenz, shared_network, own_weights, closed_loop, running_cost, uneven, own_times, backward_in_time, fixed_steps,
         nested, hamiltonian, masked_weights)


def leaves(tree: Any) -> list[Tensor]:
    return [it for it in torch.utils._pytree.tree_leaves(tree) if isinstance(it, Tensor)]


def run(case: Case, compile: Any, dtype: torch.dtype = torch.float64, **more: Any) -> tuple[ncode.Solution, list[Any]]:
    """The solution, and the gradients of a scalar with respect to all inputs."""
    fresh = lambda it: it.detach().to(dtype if it.is_floating_point() else it.dtype).requires_grad_()  # noqa: E731
    x0, options = torch.utils._pytree.tree_map(fresh, case.x0), {"rtol": 1e-6, "atol": 1e-8, **case.options, **more}
    if options.get("theta") is not None:
        options["theta"] = torch.utils._pytree.tree_map(fresh, options["theta"])
    times = [it.detach().clone().requires_grad_() if isinstance(it, Tensor) else it for it in (case.t0, case.t1)]
    sol = ncode.solve(case.dynamics, x0, *times, compile=compile, **options)
    outputs = [*leaves(sol.x), *leaves(sol.theta), *leaves(sol.cost)]
    loss = sum((it.nan_to_num() * torch.linspace(1, 2, it.numel()).view(it.shape)).sum() for it in outputs)
    inputs = [*leaves(x0), *leaves(options.get("theta")), *leaves(times), *case.trained]
    return sol, [loss.detach(), *torch.autograd.grad(loss, inputs, allow_unused=True)]


def assert_same(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    sol, grads = found
    eager, wanted = expected
    assert sol.stats.backend == "kernel" and eager.stats.backend == "eager"
    for a, b in zip((*leaves(sol.x), *leaves(sol.cost), *grads), (*leaves(eager.x), *leaves(eager.cost), *wanted), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    for name in ("nfe", "steps", "rejected", "nfe_backward"):
        assert torch.equal(getattr(sol.stats, name), getattr(eager.stats, name)), name
    assert torch.equal(sol.codes, eager.codes)
    torch.testing.assert_close(sol.t, eager.t, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_kernel_solves_as_eager_does(make: Callable[[], Case]) -> None:
    assert_same(run(make(), "kernel"), run(make(), False))
