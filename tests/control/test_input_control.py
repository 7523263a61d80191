import math

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn

import ncode
from ncode import paths

from ..differences import assert_gradients_agree

ATTRACTION = ncode.dynamics.Function(lambda t, x, theta: theta["goal"] - x, {"goal": (2,)})
TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def wave(batch=3, count=9, channels=2, make=paths.hermite, seed=0, **more):
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, count, channels, generator=g, dtype=torch.float64)
    return make(values, torch.linspace(0, 2, count, dtype=torch.float64), **more)


def zeros(batch=3, dim=2):
    return torch.zeros(batch, dim, dtype=torch.float64)


def test_the_input_sets_the_control_at_every_time():
    path, ts = wave(), torch.linspace(0, 2, 7, dtype=torch.float64)
    block = ncode.NCODE(ATTRACTION, ncode.InputControl(), t1=2.0, **TIGHT)
    sol = block.solve(zeros(), path=path, save_at=ts)
    torch.testing.assert_close(sol.thetas["goal"], path.evaluate(ts.expand(3, 7)))
    torch.testing.assert_close(sol.theta["goal"], path.evaluate(2.0))


def test_a_driven_state_is_that_of_scipy():
    path = wave(batch=1)
    block = ncode.NCODE(ATTRACTION, ncode.InputControl(torch.sin), t1=2.0, **TIGHT)
    f = lambda t, x: torch.sin(path.evaluate(t))[0].numpy() - x  # noqa: E731
    expected = solve_ivp(f, (0, 2), [0.0, 0.0], rtol=1e-10, atol=1e-10).y[:, -1]
    torch.testing.assert_close(block(zeros(1), path=path)[0], torch.tensor(expected), atol=1e-7, rtol=0)


def test_a_block_equals_a_solve_whose_theta_is_the_path():
    path = wave(make=paths.linear)
    block = ncode.NCODE(ATTRACTION, ncode.InputControl(), t1=2.0)
    plain = ncode.solve(lambda t, x, p: p.evaluate(t) - x, zeros(), 0.0, 2.0, theta=path, jump_ts=path.knots)
    assert torch.equal(block(zeros(), path=path), plain.x)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
def test_gradients_reach_the_map_and_the_values_of_the_path(gradient):
    # Fixed steps: where adaptive ones meet a kink of the path, their changes are the noise of finite differences.
    torch.manual_seed(0)
    values = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    controller = ncode.InputControl(nn.Linear(3, 4))
    block = ncode.NCODE(ncode.dynamics.Linear(2), controller, t1=3.0, gradient=gradient, method="rk4", dt=0.25).double()
    x = torch.randn(2, 2).double()
    assert_gradients_agree(block, x, path=paths.hermite(values.detach()))
    loss = lambda v: block(x, path=paths.hermite(v)).square().sum()  # noqa: E731
    (found,) = torch.autograd.grad(loss(values), values)
    step = 1e-6 * torch.randn_like(values)
    expected = (loss(values + step) - loss(values - step)).detach() / 2
    torch.testing.assert_close((found * step).sum(), expected, rtol=1e-5, atol=0)


def test_the_adjoint_gradient_reaches_the_map_and_the_values_of_the_path():
    torch.manual_seed(0)
    values = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    controller = ncode.InputControl(nn.Linear(3, 4))
    block, x = ncode.NCODE(ncode.dynamics.Linear(2), controller, t1=3.0, **TIGHT).double(), torch.ones(2, 2).double()
    found = []
    for gradient in ("discrete", "adjoint"):
        y = block.solve(x, path=paths.hermite(values), gradient=gradient).x
        found.append(torch.autograd.grad(y.square().sum(), (values, *block.parameters())))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_adaptive_steps_end_where_a_piecewise_constant_input_jumps():
    # dx/dt = u_k, so x(t) is a polygon; without the jumps the steps would have to find its corners.
    f = ncode.dynamics.Function(lambda t, x, theta: theta["u"].sin(), {"u": (1,)})
    path = wave(batch=4, count=12, channels=1, make=paths.constant)
    block = ncode.NCODE(f, ncode.control.Parts({"u": ncode.InputControl()}), t1=2.0)
    u = path.evaluate(path.knots[:, :-1]).sin()
    expected = (u * path.knots.diff(dim=1)[..., None]).sum(1)
    sol = block.solve(zeros(4, 1), path=path)
    torch.testing.assert_close(sol.x, expected, atol=1e-12, rtol=1e-12)
    assert not sol.stats.rejected.any()


@pytest.mark.parametrize("make", [paths.linear, paths.hermite])
@pytest.mark.parametrize("derivative", [False, True])
def test_adaptive_steps_keep_their_tolerance_where_an_input_bends(make, derivative):
    f = ncode.dynamics.Function(lambda t, x, theta: theta - x, (1,))
    torch.manual_seed(0)
    knots = torch.linspace(0, 3, 30, dtype=torch.float64)
    path = make(torch.randn(8, 30, 1, dtype=torch.float64), knots)
    block = ncode.NCODE(f, ncode.InputControl(derivative=derivative), t1=3.0, rtol=1e-6, atol=1e-6)
    exact = block.solve(zeros(8, 1), path=path, method="dopri8", rtol=1e-12, atol=1e-12, jump_ts=knots)
    torch.testing.assert_close(block(zeros(8, 1), path=path), exact.x, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("make", "stops"), [(paths.constant, True), (paths.linear, False), (paths.hermite, False)])
def test_steps_may_cross_bends_but_no_jumps(make, stops):
    f = ncode.dynamics.Function(lambda t, x, theta: theta - x, (1,))
    knots = torch.linspace(0, 3, 200, dtype=torch.float64)
    path = make(knots.sin()[:, None].expand(2, 200, 1), knots)
    sols = [
        ncode.NCODE(f, ncode.InputControl(stop_at_bends=stop), t1=3.0).solve(zeros(2, 1), path=path)
        for stop in (True, False)
    ]
    assert sols[0].stats.steps.min() >= 199
    assert (sols[1].stats.steps.min() >= 199) == stops
    torch.testing.assert_close(sols[1].x, sols[0].x, atol=1e-3, rtol=0)


def test_torch_func_takes_the_same_steps():
    """The knots are jumps also inside of a transform."""
    f = ncode.dynamics.Function(lambda t, x, theta: theta["u"] - x - x**3, {"u": (1,)})
    path = wave(batch=4, count=12, channels=1, make=paths.constant)
    parts = ncode.control.Parts({"u": ncode.InputControl()})
    block = ncode.NCODE(f, parts, t1=2.0, gradient="autograd", rtol=1e-3)
    x0 = zeros(4, 1)
    found = torch.func.grad(lambda x: block(x, path=path).sum())(x0)
    x0.requires_grad_()
    block(x0, path=path).sum().backward()
    torch.testing.assert_close(found, x0.grad, rtol=1e-12, atol=1e-12)


def test_a_path_may_be_part_of_the_controller_and_shared_by_all_samples():
    path = wave(batch=1)
    block = ncode.NCODE(ATTRACTION, ncode.InputControl(path=path), t1=2.0)
    own = ncode.NCODE(ATTRACTION, ncode.InputControl(), t1=2.0)
    assert torch.equal(block(zeros(5)), own(zeros(5), path=path.expand(5)))
    assert block.controller.path is not None
    assert block.float()(zeros(5).float()).dtype == torch.float32


def test_a_block_is_saved_without_its_path(tmp_path):
    block = ncode.NCODE(
        ncode.dynamics.Linear(2), ncode.InputControl(nn.Linear(3, 4), wave(channels=3)), t1=2.0
    ).double()
    block.save_pretrained(tmp_path)
    again = ncode.NCODE.from_pretrained(tmp_path)
    x = torch.randn(3, 2).double()
    assert torch.equal(again(x, path=wave(channels=3)), block(x))


def test_an_input_is_one_part_of_a_control():
    f = ncode.dynamics.MLP(2, hidden=8, context=1)
    block = ncode.NCODE(f, ncode.control.Parts({"context": ncode.InputControl()}, rest=ncode.Static()), t1=2.0).double()
    path, x = wave(channels=1), torch.randn(3, 2).double()
    weights = dict(block.controller.controllers[1].theta.items())
    f_of_path = lambda t, x, p: f(t, x, {**weights, "context": p.evaluate(t)})  # noqa: E731
    plain = ncode.solve(f_of_path, x, 0.0, 2.0, theta=path, jump_ts=path.knots)
    torch.testing.assert_close(block(x, path=path), plain.x)


def test_an_input_beside_a_driven_control():
    # d(goal)/dt = 1 and dx/dt = goal + u, so x = t^2 / 2 + the integral of u.
    f = ncode.dynamics.Function(lambda t, x, theta: theta["goal"] + theta["u"], {"goal": (1,), "u": (1,)})
    rise = ncode.ClosedLoop(lambda t, x, theta: {"goal": torch.ones_like(theta["goal"])}, initial="zero")
    parts = ncode.control.Parts({"goal": rise, "u": ncode.InputControl()})
    torch.manual_seed(0)
    values = torch.randn(3, 5, 1, dtype=torch.float64, requires_grad=True)
    block = ncode.NCODE(f, parts, t1=4.0, **TIGHT)
    sol = block.solve(zeros(dim=1), path=paths.linear(values), save_at=torch.tensor([2.0, 4.0]))
    area = (values[:, 1:] + values[:, :-1]).sum(1) / 2
    torch.testing.assert_close(sol.x, 8.0 + area, atol=1e-6, rtol=0)
    torch.testing.assert_close(sol.thetas["u"][:, 0], values[:, 2])
    sol.x.sum().backward()
    weights = torch.tensor([0.5, 1.0, 1.0, 1.0, 0.5], dtype=torch.float64)[:, None].expand(3, 5, 1)
    torch.testing.assert_close(values.grad, weights, atol=1e-5, rtol=0)


def test_the_speed_of_the_control_is_the_derivative_of_the_map_of_the_path():
    # |d/dt sin(2 t)|^2 = 4 cos(2 t)^2, whose integral over [0, pi] is 2 pi.
    f = ncode.dynamics.Function(lambda t, x, theta: theta, (1,))
    path = paths.linear(torch.tensor([[[0.0], [2 * math.pi]]]).double(), torch.tensor([0.0, math.pi]).double())
    block = ncode.NCODE(f, ncode.InputControl(torch.sin), t1=math.pi, **TIGHT)
    cost = block.solve(zeros(1, 1), path=path, cost=ncode.costs.ControlSpeed()).cost
    torch.testing.assert_close(cost, torch.tensor([2 * math.pi]).double(), atol=1e-6, rtol=0)


def test_samples_end_with_their_paths_and_do_not_depend_on_each_other():
    path = wave(batch=4, lengths=torch.tensor([9, 2, 5, 3]))
    block = ncode.NCODE(ATTRACTION, ncode.InputControl())
    sol = block.solve(zeros(4), path=path, t1=path.end)
    for row in range(4):
        one = path.rows(torch.tensor([row]))
        alone = block.solve(zeros(1), path=one, t1=one.end).x
        torch.testing.assert_close(sol.x[row : row + 1], alone, atol=1e-12, rtol=0)


def test_a_printed_block_shows_its_input():
    assert "theta = map(u(t))" in repr(ncode.NCODE(ATTRACTION, ncode.InputControl(torch.sin)))
    assert "theta = du/dt" in repr(ncode.NCODE(ATTRACTION, ncode.InputControl(derivative=True)))


@pytest.mark.parametrize("path", [torch.zeros(3, 4, 2), [1, 2], "linear"])
def test_something_else_than_a_path_is_refused(path):
    with pytest.raises(ncode.InputError, match=r"path must be one of ncode.paths"):
        ncode.InputControl(path=path)
    with pytest.raises(ncode.InputError, match=r"path must be one of ncode.paths"):
        ncode.NCODE(ATTRACTION, ncode.InputControl())(zeros(), path=path)


def test_misuse_is_refused_with_a_sentence():
    block, x = ncode.NCODE(ATTRACTION, ncode.InputControl()), zeros()
    with pytest.raises(ncode.InputError, match=r"takes a path: block\(x, path=...\)"):
        block(x)
    with pytest.raises(ncode.InputError, match="a path of 2 samples cannot be that of 3"):
        block(x, path=wave(batch=2))
    with pytest.raises(ncode.InputError, match=r"convert it with path.to"):
        block(x.float(), path=wave())
    with pytest.raises(ncode.InputError, match="the control does not fit"):
        block(x, path=wave(channels=3))
    with pytest.raises(ncode.InputError, match="no controller takes one"):
        ncode.NCODE(ATTRACTION).double()(x, path=wave())
    with pytest.raises(ncode.InputError, match="cannot start from a given theta"):
        block.solve(x, path=wave(), theta=x)
    with pytest.raises(ncode.InputError, match="nothing to control"):
        ncode.NCODE(ncode.dynamics.Function(lambda t, x, theta: -x), ncode.InputControl())
    with pytest.raises(ncode.InputError, match=r"give it 2 inputs, as in nn.Linear\(2, ...\)"):
        ncode.NCODE(ATTRACTION, ncode.InputControl(torch.nn.Linear(3, 2).double()))(x, path=wave())
    with pytest.raises(ncode.InputError, match="the map of InputControl returned"):
        ncode.NCODE(ATTRACTION, ncode.InputControl(lambda u: {"gaol": u}))(x, path=wave())


def test_a_block_follows_each_path_to_its_end():
    values = torch.tensor([[[1.0], [2.0], [3.0]], [[0.0], [2.0], [float("nan")]]])
    path = paths.linear(values, torch.tensor([[0.5, 1.0, 3.0], [0.0, 0.7, 0.9]]))
    f = ncode.dynamics.Function(lambda t, x, theta: theta, (1,))
    solution = ncode.NCODE(f, ncode.InputControl()).solve(torch.zeros(2, 1), path=path, t0=path.start, t1=path.end)
    torch.testing.assert_close(solution.t.float(), torch.tensor([3.0, 0.7]))
    torch.testing.assert_close(solution.x, torch.tensor([[5.75], [0.7]]))


def test_the_derivative_of_a_constant_path_is_refused():
    path, z0 = wave(make=paths.constant), torch.ones(3, 4, dtype=torch.float64)
    cde = ncode.dynamics.CDE(nn.Linear(4, 8).double(), channels=2)
    with pytest.raises(ncode.InputError, match=r"du/dt of ncode.paths.constant is 0, .* use ncode.paths.rectilinear"):
        ncode.solve(cde, z0, path.start, path.end, theta=path, jump_ts=path.knots)
    with pytest.raises(ncode.InputError, match=r"du/dt of ncode.paths.constant is 0"):
        ncode.NCODE(cde, ncode.InputControl(derivative=True))(z0, path=path)
