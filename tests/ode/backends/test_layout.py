"""What compiled graphs do to memory and to functions must not show in the values."""

from __future__ import annotations

import pytest
import torch

import ncode
from ncode.ode.backends.layout import DECOMPOSITIONS, to_batch_last


def test_the_single_precision_tanh_is_as_good_as_single_precision():
    tiny = torch.logspace(-30, 1, 5001)
    x = torch.cat([torch.linspace(-12, 12, 50_001), tiny, -tiny])
    exact = torch.tanh(x.double())
    error = (DECOMPOSITIONS[torch.ops.aten.tanh.default](x).double() - exact).abs()
    assert bool((error <= 4e-7 * exact.abs()).all())


def test_the_single_precision_tanh_keeps_what_is_not_finite():
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0])
    torch.testing.assert_close(
        DECOMPOSITIONS[torch.ops.aten.tanh.default](x), torch.tanh(x), equal_nan=True, rtol=4e-7, atol=0
    )


def test_double_precision_is_left_alone():
    assert DECOMPOSITIONS[torch.ops.aten.tanh.default](torch.zeros(2, dtype=torch.float64)) is NotImplemented


def test_the_layout_moves_memory_and_not_values():
    x = torch.randn(6, 3, 2)
    assert torch.equal(to_batch_last(x), x)
    assert to_batch_last(x).stride(0) == 1
    assert to_batch_last(torch.randn(4, 100, 100)).is_contiguous()  # a large sample stays as it is


@pytest.mark.slow
def test_dynamics_may_join_the_batch_with_other_dimensions():
    """As a grouped convolution does, whose views cannot follow the batch to the end of memory."""

    def f(t, x, theta):
        joined = torch.sin(x).view(1, -1, 4, 4)
        kernels = theta.reshape(-1, 2, 3, 3)
        return torch.conv2d(joined, kernels, padding=1, groups=len(x)).view(x.shape)

    torch.manual_seed(0)
    x0, theta = torch.randn(3, 2, 4, 4), 0.3 * torch.randn(3, 2, 2, 3, 3)
    results = []
    for compiled in (False, True):
        inputs = [x0.clone().requires_grad_(), theta.clone().requires_grad_()]
        x = ncode.solve(f, inputs[0], 0.0, 1.0, theta=inputs[1], method="rk4", dt=0.5, compile=compiled).x
        results.append((x.detach(), *torch.autograd.grad(x.square().sum(), inputs)))
    torch.testing.assert_close(results[0], results[1])
