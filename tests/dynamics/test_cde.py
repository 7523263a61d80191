import pytest
import torch
from torch import nn

import ncode
from ncode import paths

from ..differences import assert_gradients_agree

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def walk(batch=3, count=6, channels=2, make=paths.linear, seed=0, **more):
    g = torch.Generator().manual_seed(seed)
    return make(torch.randn(batch, count, channels, generator=g, dtype=torch.float64), **more)


def solve(cde, z0, path):
    return ncode.solve(cde, z0, path.start, path.end, theta=path, jump_ts=path.knots, **TIGHT).x


def field(hidden=4, channels=2, width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(hidden, width), nn.Tanh(), nn.Linear(width, hidden * channels), nn.Tanh()).double()


@pytest.mark.parametrize("make", [paths.linear, paths.hermite, paths.rectilinear])
def test_a_linear_cde_of_one_channel_grows_exponentially_with_the_path(make):
    # dz = z dX has the solution z(0) exp(X(t) - X(0)), whatever the path between is.
    path = walk(channels=1, make=make)
    one = path.channels - 1
    cde = ncode.dynamics.CDE(lambda z: torch.cat([torch.zeros(len(z), 1, one).to(z), z[..., None]], 2), path.channels)
    z0 = torch.ones(3, 1).double()
    z = solve(cde, z0, path)
    growth = (path.evaluate(path.end) - path.evaluate(path.start))[:, -1:]
    torch.testing.assert_close(z, growth.exp(), rtol=1e-8, atol=0)


def test_the_solution_does_not_depend_on_the_speed_along_the_path():
    f = field()
    values = torch.randn(3, 6, 2, dtype=torch.float64)  # field() has set the seed
    cde, z0 = ncode.dynamics.CDE(f, 2), torch.randn(3, 4).double()
    slow, fast = (paths.linear(values, torch.arange(6.0) * scale) for scale in (1.0, 0.2))
    ends = [solve(cde, z0, path) for path in (slow, fast)]
    torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-8)


def test_a_block_and_a_plain_solve_agree():
    cde, z0 = ncode.dynamics.CDE(field(), 2), torch.randn(3, 4).double()
    block = ncode.NCODE(cde, ncode.InputControl(derivative=True), t1=5.0)
    for path in (walk(make=paths.hermite), walk()):
        assert torch.equal(block(z0, path=path), ncode.solve(cde, z0, 0.0, 5.0, theta=path, jump_ts=path.knots).x)


@pytest.mark.parametrize("step", ["sample", "batch"])
def test_steps_of_a_block_end_at_the_jumps_of_the_derivative(step):
    cde, z0, path = ncode.dynamics.CDE(field(), 2), torch.randn(3, 4).double(), walk(count=20)
    block = ncode.NCODE(cde, ncode.InputControl(derivative=True), t1=19.0, step=step, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(block(z0, path=path), solve(cde, z0, path), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
def test_gradients_agree_with_finite_differences(gradient):
    block = ncode.NCODE(
        ncode.dynamics.CDE(field(2, 2, 3), 2),
        ncode.InputControl(derivative=True),
        t1=5.0,
        gradient=gradient,
        method="rk4",
        dt=0.25,  # no noise of adaptive steps at the kinks of dX/dt
    )
    assert_gradients_agree(block, torch.randn(3, 2).double(), path=walk(make=paths.hermite))


def test_a_sample_that_ends_early_stays_where_it_is():
    path = walk(lengths=torch.tensor([6, 3, 1]), time=True)
    cde, z0 = ncode.dynamics.CDE(field(4, 3), 3), torch.randn(3, 4).double()
    to_the_last = ncode.solve(cde, z0, 0.0, 5.0, theta=path, jump_ts=path.knots, **TIGHT).x
    torch.testing.assert_close(solve(cde, z0, path), to_the_last, rtol=1e-8, atol=1e-8)
    assert torch.equal(to_the_last[2], z0[2])


def test_a_block_of_a_cde_is_saved(tmp_path):
    block = ncode.NCODE(ncode.dynamics.CDE(field(), 2), ncode.InputControl(derivative=True), t1=5.0)
    block.save_pretrained(tmp_path)
    z0 = torch.randn(3, 4).double()
    assert torch.equal(ncode.NCODE.from_pretrained(tmp_path)(z0, path=walk()), block(z0, path=walk()))


def test_shapes_that_do_not_fit_are_refused():
    z0, path = torch.zeros(3, 4).double(), walk()
    with pytest.raises(ncode.InputError, match=r"returned \(3, 12\); expected \(3, 4, 2\)"):
        solve(ncode.dynamics.CDE(field(4, 3), 2), z0, path)
    with pytest.raises(ncode.InputError, match="a path of 2 channels"):
        solve(ncode.dynamics.CDE(field(4, 3), 3), z0, path)
    with pytest.raises(ncode.InputError, match=r"expects z \(batch, hidden\)"):
        solve(ncode.dynamics.CDE(field(), 2), z0[:, None], path)
    with pytest.raises(ncode.InputError, match="field must be a function"):
        ncode.dynamics.CDE(None, 2)
