"""Tensors of func that change between the solve of `odeint_adjoint` and its backward pass."""

import pytest
import torch
from torch import nn

import ncode
from ncode.compat import torchdiffeq as ours

from .systems import ADAPTIVE, FIXED

T = torch.tensor([0.0, 1.0])


class Scaled(nn.Module):
    """dy/dt = -weight scale (1 + shift) y, with a count of its evaluations and a tensor that it does not use."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("unused", torch.zeros(1))
        self.shift = torch.zeros(1)

    def forward(self, t, y):
        self.count += 1
        return -self.weight * self.scale * self.frozen * (1 + self.shift) * y


def solve(func, **options):
    return ours.odeint_adjoint(func, torch.ones(1, requires_grad=True), T, **options)[-1]


@pytest.mark.parametrize("method", [*ADAPTIVE, *FIXED, "gl4"])
@pytest.mark.parametrize("name", ["scale", "shift", "frozen"])
def test_a_tensor_of_func_that_was_changed_before_backward_is_refused(method, name):
    func = Scaled()
    y = solve(func, method=method)
    getattr(func, name).detach().add_(1)
    with pytest.raises(ncode.InputError, match=r"a tensor of shape \(1,\) .* was changed in place"):
        y.backward()


def test_a_tensor_of_a_plain_function_or_beside_adjoint_params_is_watched_too():
    weight, scale = torch.ones(1, requires_grad=True), torch.ones(1)
    func = Scaled()
    y = solve(lambda t, y: -weight * scale * y)
    other = solve(func, adjoint_params=(func.weight,))
    scale.add_(1)
    func.scale.add_(1)
    for changed in (y, other):
        with pytest.raises(ncode.InputError, match="was changed in place"):
            changed.backward()


@pytest.mark.parametrize("method", ["dopri5", "euler"])
def test_what_func_changes_itself_or_does_not_use_may_change(method):
    func = Scaled()
    y, later = solve(func, method=method), solve(func, method=method)
    func.count.zero_()
    func.unused.add_(1)
    (y + later).backward()
    expected = Scaled()
    solve(expected, method=method).backward()
    torch.testing.assert_close(func.weight.grad, 2 * expected.weight.grad)


def test_a_buffer_that_was_changed_back_is_no_change():
    func = Scaled()
    y = solve(func)
    func.scale.add_(1)
    func.scale.sub_(1)
    y.backward()
    assert float(func.weight.grad) == pytest.approx(-0.3679, abs=1e-3)
