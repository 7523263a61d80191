"""Results in the memory of a CUDA graph: here on a CPU, by a stand-in that writes over its memory as a graph does."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import ncode
from ncode.ode.backends import graph, inductor

from ..systems import DOUBLE, close, gradients


class StandIn(graph.CudaGraph):
    """Runs the function on memory of its own; every replay writes over the inputs and outputs of the last one."""

    def __init__(self, function, tensors, strides, captures, carried):
        self.function = function
        self.inputs = [
            it.new_empty_strided(it.shape, stride).copy_(it) for it, stride in zip(tensors, strides, strict=True)
        ]
        self.captures = [it.detach() for it in captures]
        self.pointers, self.bound = [it.data_ptr() for it in captures], None
        self.copied = [(lambda: None, 0)] * len(self.inputs)
        self.outputs = [it.clone() for it in function(*self.inputs, *self.captures)]
        self.carried, self.targets = carried, set(carried.values())
        self.rest = [output for output in range(len(self.outputs)) if output not in carried]
        self.graph = self

    def replay(self):
        new = [it.clone() for it in self.function(*self.inputs, *self.captures)]
        for mine, output in zip(self.outputs, new, strict=True):
            mine.copy_(output)
        for output, target in self.carried.items():
            self.inputs[target].copy_(self.outputs[output])


@pytest.fixture
def recorded(traced, monkeypatch):
    """Let functions that a GPU would record run through the stand-in."""
    monkeypatch.setattr(graph, "CudaGraph", StandIn)
    monkeypatch.setattr(graph, "is_recorded", lambda tensor, function: function.recorded)
    return traced


class Inputs(NamedTuple):
    state: tuple[Tensor, Tensor]
    constant: Tensor


class Result(NamedTuple):
    state: tuple[Tensor, Tensor]
    before: Tensor
    after: Tensor
    constant: Tensor
    nothing: None


class Count:
    """A function whose result holds unchanged inputs, carried inputs, and one tensor in two places."""

    carries, recorded, system, signature = ("state",), True, None, "count"

    def __init__(self):
        self.cache = {}

    def __call__(self, inputs):
        n, still = inputs.state
        after = n + inputs.constant
        return Result((after, still), n, after, inputs.constant, None)


def test_what_a_graph_returns_is_not_changed_by_its_next_call(recorded):
    function, state = Count(), (torch.zeros(3), torch.ones(3))
    constant, results = torch.tensor([1.0, 2.0, 3.0]), []
    for _ in range(4):
        results.append(inductor.INDUCTOR.run(function, Inputs(state, constant), ()))
        state = results[-1].state
    for number, result in enumerate(results):
        assert torch.equal(result.before, number * constant)
        assert torch.equal(result.after, (number + 1) * constant)
        assert torch.equal(result.constant, constant)
        assert result.nothing is None
    assert torch.equal(state[0], 4 * constant)
    assert torch.equal(state[1], torch.ones(3))


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("options", [{}, {"step": "batch"}, {"method": "rk4", "dt": 0.1}, {"checkpoint_every": 2}])
def test_a_recorded_solve_equals_an_eager_one(options):
    torch.manual_seed(1)
    x0 = torch.randn(20, 2, dtype=DOUBLE).requires_grad_()
    theta = (torch.randn(20, 2, 2, dtype=DOUBLE) * torch.logspace(-1, 1.3, 20, dtype=DOUBLE)[:, None, None]).detach()
    theta.requires_grad_()
    shared = torch.randn(2, 2, dtype=DOUBLE).requires_grad_()
    ts = torch.tensor([0.0, 0.3, 1.0], dtype=DOUBLE)
    found = []
    for compile in (False, True):
        sol = ncode.solve(
            lambda t, x, theta: torch.tanh(theta @ x[..., None])[..., 0] + x @ shared,
            x0,
            0.0,
            1.0,
            theta=theta,
            cost=lambda t, x, theta: x.square().sum(1),
            save_at=ts,
            compile=compile,
            **options,
        )
        loss = sol.x.sin().sum() + sol.xs.square().sum() + sol.cost.sum()
        counts = sol.stats.steps, sol.stats.rejected
        found.append((loss.detach(), sol.xs.detach(), counts, gradients(loss, {"x0": x0, "theta": theta, "w": shared})))
    close(found[1], found[0], rtol=1e-9, atol=1e-11)
