"""States of 16 bits, which are solved in float32: values, gradients, evaluations and what func is shown."""

import math

import pytest
import torch
from torch import nn

import ncode
from ncode.compat import torchdiffeq as ours

from .systems import ADAPTIVE, FIXED

HALF = (torch.float16, torch.bfloat16)
both = pytest.mark.parametrize("dtype", HALF)


class Decay(nn.Module):
    """dy/dt = -rate y, which counts its evaluations."""

    def __init__(self, dtype):
        super().__init__()
        self.rate, self.count = nn.Parameter(torch.ones(1, dtype=dtype)), 0

    def forward(self, t, y):
        assert t.dtype == y.dtype == self.rate.dtype
        self.count += 1
        return -self.rate * y


def near(y, expected, dtype, ulps=2.0):
    torch.testing.assert_close(
        y.double(), torch.as_tensor(expected).double().expand_as(y), rtol=0, atol=ulps * rounding(dtype)
    )


def rounding(dtype):
    return torch.finfo(dtype).eps


@both
@pytest.mark.parametrize("method", [*ADAPTIVE, "tsit5"])
def test_default_tolerances_give_the_solution_to_the_rounding_of_16_bits(dtype, method):
    func, t = Decay(dtype), torch.linspace(0, 3, 7)
    y = ours.odeint(func, torch.ones(2, dtype=dtype), t, method=method)
    assert y.dtype == dtype
    assert func.count < 300
    near(y, torch.exp(-t)[:, None], dtype, 4.0)


@both
@pytest.mark.parametrize("method", FIXED)
def test_many_small_fixed_steps_are_not_lost(dtype, method):
    y = ours.odeint(Decay(dtype), torch.ones(1, dtype=dtype), torch.linspace(0, 1, 1001), method=method)
    near(y[-1], math.exp(-1), dtype, 1.0)


@both
@pytest.mark.parametrize("method", ["dopri5", "adaptive_heun", "rk4"])
@pytest.mark.parametrize("interface", [ours.odeint, ours.odeint_adjoint])
def test_gradients_are_right_to_the_rounding_of_16_bits(dtype, method, interface):
    func, y0 = Decay(dtype), torch.ones(1, dtype=dtype, requires_grad=True)
    t = torch.linspace(0, 1, 21 if method == "rk4" else 2, dtype=torch.float64, requires_grad=True)
    y = interface(func, y0, t, method=method)[-1]
    grads = torch.autograd.grad(y.sum(), (y0, func.rate, t))
    assert [grad.dtype for grad in grads] == [dtype, dtype, torch.float64]
    assert func.count < 5000
    near(grads[0], math.exp(-1), dtype, 3.0)
    near(grads[1], -math.exp(-1), dtype, 8.0)  # autograd sums gradients of parameters in their dtype
    near(grads[2][-1], -math.exp(-1), dtype, 5.0)


@both
def test_the_discrete_gradient_of_16_bits_is_that_of_autograd(dtype):
    grads = []
    for gradient in ("autograd", "discrete"):
        func = Decay(dtype)
        y = ours.odeint(func, torch.ones(1, dtype=dtype), torch.linspace(0, 1, 2), options={"gradient": gradient})
        grads.append(torch.autograd.grad(y[-1].sum(), func.rate)[0])
    assert torch.equal(*grads)


@both
@pytest.mark.parametrize("backward", [False, True])
def test_dense_output_has_16_bits_and_is_right(dtype, backward):
    ends = (1.0, 0.0) if backward else (0.0, 1.0)
    y = ours.odeint_dense(Decay(dtype), torch.ones(1, dtype=dtype), *map(torch.tensor, ends))
    assert y(0.5).dtype == dtype
    near(y(0.5), math.exp(0.5 if backward else -0.5), dtype, 3.0)


@both
@pytest.mark.parametrize("interface", [ours.odeint, ours.odeint_adjoint])
@pytest.mark.parametrize("options", [{"method": "dopri5"}, {"method": "rk4", "options": {"step_size": 0.05}}])
def test_events_of_16_bits_are_located_to_their_rounding(dtype, interface, options):
    func, seen = Decay(dtype), set()
    y0 = torch.ones(1, dtype=dtype, requires_grad=True)

    def half_gone(t, y):
        seen.add(y.dtype)
        return y - 0.5

    when, y = ours.odeint_event(func, y0, torch.tensor(0.0), event_fn=half_gone, odeint_interface=interface, **options)
    assert seen == {dtype}
    assert y.dtype == dtype
    near(when, math.log(2), dtype, 3.0)
    near(y[-1], 0.5, dtype)
    slope, by_rate = torch.autograd.grad(when, (y0, func.rate))
    near(slope, 1.0, dtype, 3.0)
    near(by_rate, -math.log(2), dtype, 12.0)  # autograd sums it over the steps in 16 bits


@both
def test_func_and_callbacks_are_shown_a_tuple_of_16_bits(dtype):
    class Watcher:
        seen = ()

        def __call__(self, t, y):
            return -y[0], y[0] * t

        def callback_step(self, t, y, dt):
            self.seen = tuple(leaf.dtype for leaf in y)

    func = Watcher()
    y0 = (torch.ones(2, 1, dtype=dtype), torch.zeros(2, 1, dtype=dtype))
    x, total = ours.odeint(func, y0, torch.tensor([0.0, 1.0]), rtol=[1e-3, 1e-4], atol=1e-6)
    assert func.seen == (x.dtype, total.dtype) == (dtype, dtype)
    near(total[-1], 1 - 2 / math.e, dtype, 3.0)


@both
def test_a_field_of_16_bits_sees_the_sides_of_a_jump(dtype):
    def func(t, y):
        return torch.where(t < 0.5, 1.0, -1.0).to(dtype) + 0 * y

    y = ours.odeint(func, torch.ones(1, dtype=dtype), torch.tensor([0.0, 1.0]), options={"jump_t": [0.5]})
    near(y[-1], 1.0, dtype, 1.0)


@both
def test_a_looser_tolerance_than_the_rounding_is_kept(dtype):
    counts = []
    for tolerance in (1e-7, 0.05):
        func = Decay(dtype)
        ours.odeint(func, torch.ones(1, dtype=dtype), torch.tensor([0.0, 5.0]), rtol=tolerance, atol=tolerance)
        counts.append(func.count)
    assert counts[1] < counts[0]


def test_implicit_methods_name_the_dtype_of_16_bits():
    with pytest.raises(ncode.InputError, match=r"given y0 of torch\.bfloat16"):
        ours.odeint(Decay(torch.bfloat16), torch.ones(1).bfloat16(), torch.tensor([0.0, 1.0]), method="gl4")
