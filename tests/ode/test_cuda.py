"""On a GPU: the same results as on a CPU, without waiting for it, compiled or not. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ncode

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class System:
    """A field with weights of its own, a control a sample, a cost and a tensor caught in a closure."""

    def __init__(self, device: str, batch: int = 37, dtype: torch.dtype = torch.float64):
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=dtype).to(device).requires_grad_()

        self.weight = nn.Parameter(draw(3, 3).detach() * 0.5)
        self.x0, self.theta, self.scale = draw(batch, 3), draw(batch, 3, 3), draw(1)
        self.t1 = (torch.rand(batch, generator=generator, dtype=dtype) * 2 + 0.5).to(device).requires_grad_()

    @property
    def inputs(self) -> list[Tensor]:
        return [self.weight, self.x0, self.theta, self.scale, self.t1]

    def solve(self, **options: object) -> tuple[ncode.Solution, tuple[Tensor, ...]]:
        scale = self.scale.exp()

        def f(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
            pulled = x @ self.weight + (theta @ x[:, :, None])[:, :, 0]
            return torch.tanh(pulled) * scale + torch.sin(t)[:, None]

        def cost(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
            return x.square().sum(1)

        settings = {"rtol": 1e-6, "atol": 1e-6, "cost": cost, "theta": self.theta} | options
        solution = ncode.solve(f, self.x0, 0.0, self.t1, **settings)  # type: ignore[arg-type]
        loss = solution.x.square().sum() + solution.cost.sum()  # type: ignore[union-attr]
        if solution.xs is not None:
            loss = loss + solution.xs.sum()
        return solution, torch.autograd.grad(loss, self.inputs)


def close(one: tuple[ncode.Solution, tuple[Tensor, ...]], other: tuple[ncode.Solution, tuple[Tensor, ...]]) -> None:
    (a, grads), (b, expected) = one, other
    torch.testing.assert_close(a.x.cpu(), b.x.cpu(), rtol=1e-8, atol=1e-9)
    assert a.stats.nfe.tolist() == b.stats.nfe.tolist()
    for grad, reference in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad.cpu(), reference.cpu(), rtol=1e-6, atol=1e-7)


WAYS: dict[str, dict[str, object]] = {
    "adaptive": {},
    "one step for all": {"step": "batch", "method": "tsit5", "same_end": True},
    "fixed": {"method": "rk4", "dt": 0.1},
    "checkpointed": {"checkpoint_every": 3},
    "adjoint": {"gradient": "adjoint"},
    "autograd": {"gradient": "autograd"},
}


def run(device: str, options: dict[str, object]) -> tuple[ncode.Solution, tuple[Tensor, ...]]:
    system, options = System(device), dict(options)
    if options.pop("same_end", False):
        system.t1 = torch.tensor(1.5, dtype=torch.float64, device=device, requires_grad=True)
    return system.solve(**options)


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_gives_what_a_cpu_gives(way: str) -> None:
    close(run("cuda", WAYS[way]), run("cpu", WAYS[way]))


@pytest.mark.parametrize("way", ["adaptive", "one step for all", "fixed"])
def test_a_compiled_solve_gives_what_an_eager_one_gives(way: str) -> None:
    close(run("cuda", WAYS[way] | {"compile": True}), run("cuda", WAYS[way]))


def test_saved_times_are_the_same_when_compiled() -> None:
    ts = torch.linspace(0, 0.4, 5, dtype=torch.float64, device="cuda")
    close(System("cuda").solve(save_at=ts, compile=True), System("cuda").solve(save_at=ts))


def test_a_compiled_solve_follows_its_parameters_and_inputs() -> None:
    system = System("cuda")
    system.solve(compile=True)
    for _ in range(3):
        with torch.no_grad():
            system.weight.add_(0.1)  # as an optimiser does
            system.scale = (system.scale * 0.9).requires_grad_()  # a new tensor in a closure
            system.x0 = (system.x0 + 0.1).requires_grad_()
        close(system.solve(compile=True), system.solve())


def test_results_of_a_compiled_solve_are_the_callers_to_keep() -> None:
    system = System("cuda")
    solution, grads = system.solve(compile=True)
    kept = [solution.x.clone(), *(grad.clone() for grad in grads)]
    with torch.no_grad():
        system.x0 = (system.x0 + 1).requires_grad_()
    system.solve(compile=True)
    for now, before in zip([solution.x, *grads], kept, strict=True):
        torch.testing.assert_close(now, before, rtol=0, atol=0)


def waits(action: Callable[[], object]) -> int:
    """How often the host waited for the device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        action()
    names = ("cudaStreamSynchronize", "cudaDeviceSynchronize")
    return sum(event.count for event in seen.key_averages() if event.key in names)


def test_the_loop_does_not_wait_for_the_gpu_at_each_step() -> None:
    x0 = torch.ones(8, 2, device="cuda")

    def solve(t1: float) -> ncode.Solution:
        with torch.no_grad():
            return ncode.solve(lambda t, x, theta: -x * torch.cos(t)[:, None], x0, 0.0, t1, rtol=1e-6)

    few, many = solve(1.0), solve(40.0)
    assert int(many.stats.steps.max()) > 5 * int(few.stats.steps.max())
    assert waits(lambda: solve(40.0)) <= waits(lambda: solve(1.0)) + 2


def test_a_sample_that_fails_is_named_on_a_gpu_too() -> None:
    x0 = torch.tensor([[1.0], [-1.0]], device="cuda", dtype=torch.float64)  # the first blows up at t = 1
    with pytest.raises(ncode.SolveError) as caught:
        ncode.solve(lambda t, x, theta: x * x, x0, 0.0, 2.0)
    assert caught.value.samples == [0]
    solution = ncode.solve(lambda t, x, theta: x * x, x0, 0.0, 2.0, throw=False)
    torch.testing.assert_close(solution.x[1].cpu(), torch.tensor([-1 / 3], dtype=torch.float64), rtol=1e-2, atol=0)
    assert bool(solution.x[0].isnan().all())
