"""Solves inside of torch.func, forward mode, autocast, torch.compile and torch.export; complex states."""

import math

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn

import ncode
from ncode.ode import METHODS

from .systems import DOUBLE, GRADIENTS, close, double

# Forward mode of torch itself uses a part of torch that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)
X0 = double(0.3, 1.0, -2.0)
FIXED = {"dt": 0.1, "method": "rk4", "gradient": "autograd"}
ADAPTIVE = {"method": "dopri5", "rtol": 1e-6, "atol": 1e-6, "gradient": "autograd"}
either = pytest.mark.parametrize("options", [FIXED, ADAPTIVE], ids=["fixed", "adaptive"])


def swing(t, x, theta):
    return torch.sin(x) * t.cos()[:, None] * (1.0 if theta is None else theta)


def end(x0, theta=None, **options):
    return ncode.solve(swing, x0, 0.0, 1.0, theta=theta, **options).x


# torch.func


@pytest.mark.parametrize("method", METHODS)
def test_vmap_works_with_fixed_steps(method):
    x0 = torch.randn(4, 3, 2, dtype=DOUBLE)
    options = {"dt": 0.1, "method": method, "gradient": "autograd"}
    mapped = torch.func.vmap(lambda x: end(x, **options))(x0)
    close(mapped, torch.stack([end(x, **options) for x in x0]))


def test_vmap_works_over_a_control_a_cost_and_saved_values():
    x0, theta = torch.randn(4, 3, 2, dtype=DOUBLE), torch.randn(4, 3, 2, dtype=DOUBLE)
    w = torch.randn(4, dtype=DOUBLE)

    def run(x, u, w):
        sol = ncode.solve(
            lambda t, x, theta: w * swing(t, x, theta),
            x,
            0.0,
            1.0,
            theta=u,
            feedback=lambda t, x, theta: x - theta,
            cost=lambda t, x, theta: (w * x).sum(1),
            save_at=[0.25, 1.0],
            **FIXED,
        )
        return sol.x, sol.theta, sol.cost, sol.xs

    mapped = torch.func.vmap(run)(x0, theta, w)
    one_by_one = [run(*row) for row in zip(x0, theta, w, strict=True)]
    close(mapped, tuple(map(torch.stack, zip(*one_by_one, strict=True))))


@pytest.mark.parametrize("what", ["state", "control", "closure"])
def test_vmap_over_an_adaptive_solve_is_refused_with_a_way_out(what):
    rows = torch.randn(2, 3, 1, dtype=DOUBLE)
    run = {
        "state": lambda row: end(row, **ADAPTIVE),
        "control": lambda row: end(X0, row, **ADAPTIVE),
        "closure": lambda row: ncode.solve(lambda t, x, theta: row * x, X0, 0.0, 1.0, gradient="autograd").x,
    }[what]
    with pytest.raises(ncode.InputError, match="batched already"):
        torch.func.vmap(run)(rows)


@pytest.mark.parametrize("name", ["t0", "t1", "save_at"])
def test_vmap_over_times_is_refused_with_a_way_out(name):
    def run(time):
        times = {"t0": 0.0, "t1": 1.0, name: time[None] if name == "save_at" else time}
        return ncode.solve(swing, X0, **times, **FIXED).x

    with pytest.raises(ncode.InputError, match=f"{name}.*batched already"):
        torch.func.vmap(run)(torch.tensor([0.5, 0.7]))


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
def test_other_gradients_inside_of_torch_func_are_refused_with_a_way_out(gradient, transform):
    def run(x):
        return end(x[None], gradient=gradient, dt=0.1).sum()

    transformed = {
        "jvp": lambda: torch.func.jvp(run, (X0[0],), (X0[0],)),
        "grad": lambda: torch.func.grad(run)(X0[0]),
        "vmap": lambda: torch.func.vmap(run)(X0),
    }
    with pytest.raises(ncode.InputError, match='gradient="autograd"'):
        transformed[transform]()


@either
def test_forward_mode_agrees_with_reverse_mode(options):
    def total(x, u):
        return end(x, u, **options)

    u = double(0.5, 1.0, 2.0)
    backward = torch.autograd.functional.jacobian(total, (X0, u))
    close(torch.func.jacfwd(total, argnums=(0, 1))(X0, u), backward, rtol=1e-8)
    close(torch.func.jacrev(total, argnums=(0, 1))(X0, u), backward, rtol=1e-8)
    direction = torch.randn_like(X0)
    value, tangent = torch.func.jvp(lambda x: total(x, u), (X0,), (direction,))
    close(value, total(X0, u))
    close(tangent, torch.einsum("iajb,jb->ia", backward[0], direction), rtol=1e-8)


@either
def test_forward_mode_reaches_parameters(options):
    net = nn.Linear(1, 1, dtype=DOUBLE)
    parameters = dict(net.named_parameters())

    def total(parameters):
        def field(t, x, theta):
            return torch.func.functional_call(net, parameters, (x,)).tanh()

        return ncode.solve(field, X0, 0.0, 1.0, **options).x.sum()

    expected = torch.autograd.grad(total(parameters), list(parameters.values()))
    forward = torch.func.jacfwd(total)({name: p.detach() for name, p in parameters.items()})
    close(list(forward.values()), list(expected), rtol=1e-8)


@either
def test_the_hessian_is_the_derivative_of_the_gradient(options):
    def total(x):
        return end(x, **options).square().sum()

    hessian = torch.func.hessian(total)(X0)[:, 0, :, 0]
    eps = 1e-5
    gradient = torch.func.grad(total)
    columns = [
        (gradient(X0 + eps * e) - gradient(X0 - eps * e)) / (2 * eps) for e in torch.eye(3, dtype=DOUBLE)[:, :, None]
    ]
    # Finite differences see the steps change as well, which derivatives do not: to the tolerance of the solve.
    close(hessian, torch.stack(columns, 1)[..., 0], rtol=1e-3, atol=1e-5)


@either
def test_forward_mode_without_torch_func_works(options):
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(end(forward_ad.make_dual(X0, torch.ones_like(X0)), **options)).tangent
    close(tangent, torch.func.jvp(lambda x: end(x, **options), (X0,), (torch.ones_like(X0),))[1])


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_forward_mode_of_another_gradient_is_refused_rather_than_left_out(gradient):
    with forward_ad.dual_level(), pytest.raises(ncode.InputError, match='gradient="autograd"'):
        end(forward_ad.make_dual(X0, X0), gradient=gradient)
    weight = torch.tensor(1.0, dtype=DOUBLE)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weight, weight)
        with pytest.raises(ncode.InputError, match='gradient="autograd"'):
            ncode.solve(lambda t, x, theta: dual * x, X0, 0.0, 1.0, gradient=gradient)


# Autocast


def cast_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


@every_gradient
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
def test_the_dynamics_may_run_under_autocast(gradient, inside):
    """Backward runs the dynamics again as forward did, whether or not it is called under autocast."""
    net, seen = cast_net(), set()
    x0 = torch.randn(5, 2)

    def field(t, x, theta):
        y = net(x)
        seen.add(y.dtype)
        return y.to(x.dtype)

    def grads(sol):
        return torch.autograd.grad(sol.x.square().sum(), list(net.parameters()))

    options = {"dt": 0.1, "method": "rk4", "gradient": gradient}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sol = ncode.solve(field, x0, 0.0, 1.0, **options)
        found = grads(sol) if inside else None
    found = found or grads(sol)
    assert seen == {torch.bfloat16}
    assert sol.x.dtype == torch.float32
    exact = grads(ncode.solve(field, x0, 0.0, 1.0, **options))
    assert seen == {torch.bfloat16, torch.float32}
    for got, expected in zip(found, exact, strict=True):
        assert float((got - expected).norm() / expected.norm()) < 0.05
        assert not torch.equal(got, expected)


@every_gradient
def test_autocast_inside_of_the_dynamics_is_theirs_alone(gradient):
    net = cast_net()

    def field(t, x, theta):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x).float()

    sol = ncode.solve(field, torch.randn(5, 2), 0.0, 1.0, dt=0.1, gradient=gradient)
    sol.x.sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.abs().max() > 0 for p in net.parameters())


@every_gradient
@pytest.mark.parametrize("dt", [None, 0.25])
def test_two_solves_may_share_a_net_under_one_autocast(gradient, dt):
    """Autocast keeps its copies of weights: the second solve finds those that the first one made."""
    net, x0 = cast_net(), torch.randn(5, 2)
    options = {"dt": dt, "rtol": 1e-1, "atol": 1e-1, "gradient": gradient}

    def field(t, x, theta):
        return net(x).float()

    def grads():
        before = net(x0).float()  # and so does whatever else uses the net
        first = ncode.solve(field, x0 + before, 0.0, 1.0, **options)
        after = net(first.x).float()
        second = ncode.solve(field, first.x + after, 0.0, 1.0, **options)
        return second.x.sum()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = grads()
    found = torch.autograd.grad(loss, list(net.parameters()))
    expected = torch.autograd.grad(grads(), list(net.parameters()))
    for got, exact in zip(found, expected, strict=True):
        assert float((got - exact).norm() / exact.norm()) < 0.1


def test_dynamics_that_autocast_leaves_in_half_precision_are_refused_with_a_way_out():
    net = cast_net()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ncode.InputError, match=r"\.to\(x\.dtype\)"):
        ncode.solve(lambda t, x, theta: net(x), torch.randn(5, 2), 0.0, 1.0)


# Complex states


def spin(t, x, theta):
    return (theta * 1j - 0.1) * x + t[:, None]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_state_may_be_complex(dtype):
    z0 = torch.tensor([[1 + 2j], [0.5 - 1j]], dtype=dtype)
    seen = set()

    def field(t, x, theta):
        seen.add((t.dtype, x.dtype))
        return 2j * x

    tight = 1e-5 if dtype == torch.complex64 else 1e-9
    sol = ncode.solve(field, z0, 0.0, 1.5, save_at=[0.5, 1.5], dense=True, rtol=tight, atol=tight)
    assert seen == {(z0.real.dtype, dtype)}
    turned = torch.polar(torch.ones(2), 2 * torch.tensor([0.5, 1.5])).to(dtype)
    close(sol.xs[..., 0], z0 * turned, rtol=50 * tight, atol=50 * tight)
    close(sol.x, sol.xs[:, 1], rtol=tight)
    close(sol(0.5), sol.xs[:, 0], rtol=tight)


def test_a_complex_solve_is_a_real_one_of_twice_the_size():
    z0 = torch.tensor([[1 + 2j], [0.5 - 1j]], dtype=torch.complex128)
    one = ncode.solve(lambda t, x, theta: 2j * x, z0, 0.0, 1.5)
    two = ncode.solve(
        lambda t, x, theta: torch.stack([-2 * x[:, 1], 2 * x[:, 0]], 1),
        torch.view_as_real(z0[:, 0]),
        0.0,
        1.5,
        rtol=1e-8,
    )
    close(torch.view_as_real(one.x[:, 0]), two.x, rtol=1e-2)


@pytest.mark.slow
@every_gradient
@pytest.mark.parametrize("driven", [True, False])
def test_complex_states_have_the_gradient_of_autograd_and_of_finite_differences(gradient, driven):
    z0 = torch.tensor([[1 + 2j], [0.5 - 1j]], dtype=torch.complex128, requires_grad=True)
    theta = torch.tensor([[1.0 + 0j], [2.0 - 1j]], dtype=torch.complex128, requires_grad=True)
    w = torch.tensor(0.3 + 0.2j, dtype=torch.complex128, requires_grad=True)
    t1 = torch.tensor(1.2, dtype=DOUBLE, requires_grad=True)

    def loss(gradient):
        sol = ncode.solve(
            lambda t, x, theta: w * spin(t, x, theta),
            z0,
            0.0,
            t1,
            theta=theta,
            feedback=(lambda t, x, theta: x.conj() - theta) if driven else None,
            cost=lambda t, x, theta: x.abs().square().sum(1),
            save_at=[0.4, 0.8],
            method="dopri8",
            rtol=1e-10,
            atol=1e-10,
            gradient=gradient,
        )
        return sol.x.abs().square().sum() + sol.xs.real.sum() + sol.xs.imag.square().sum() + sol.cost.sum()

    inputs = [z0, theta, w, t1]
    got = torch.autograd.grad(loss(gradient), inputs)
    close(got, torch.autograd.grad(loss("autograd"), inputs), rtol=1e-6, atol=1e-8)
    for tensor, grad in zip(inputs, got, strict=True):
        for unit in (1, 1j) if tensor.is_complex() else (1,):
            eps = 1e-5
            with torch.no_grad():
                tensor.add_(eps * unit)
                up = loss("discrete").detach()
                tensor.sub_(2 * eps * unit)
                down = loss("discrete").detach()
                tensor.add_(eps * unit)
            expected = (grad.conj() * unit).real.sum() if tensor.is_complex() else grad.sum()
            close(expected, (up - down) / (2 * eps), rtol=1e-5, atol=1e-6)


# torch.compile of a caller, compiled dynamics, torch.export

# torch.compile looks at .grad of tensors that are no leaves, and hides the warning from all but pytest.
compiling = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.mark.slow
@compiling
@every_gradient
def test_a_caller_may_be_compiled(gradient):
    def caller(x):
        return 2 * ncode.solve(swing, 1 * x, 0.0, 1.0, gradient=gradient).x

    x = X0.clone().requires_grad_()
    torch.compiler.reset()
    values = [function(x) for function in (torch.compile(caller, backend="aot_eager"), caller)]
    close(*values)
    close(*(torch.autograd.grad(value.sum(), x)[0] for value in values))


@compiling
def test_a_caller_that_is_compiled_gets_the_same_errors():
    torch.compiler.reset()

    @torch.compile(backend="eager")
    def caller(x, t1):
        return ncode.solve(lambda t, x, theta: x.square(), 1 * x, 0.0, t1).x

    with pytest.raises(ncode.SolveError, match="2 of 3 samples"):
        caller(double(0.5, 1.0, 2.0), 1.0)
    with pytest.raises(ncode.InputError, match="not finite"):
        caller(double(0.5, math.nan), 1.0)


@compiling
@every_gradient
def test_the_dynamics_may_be_compiled_by_the_user(gradient):
    net = nn.Sequential(nn.Linear(1, 4, dtype=DOUBLE), nn.Tanh(), nn.Linear(4, 1, dtype=DOUBLE))
    torch.compiler.reset()
    grads = []
    for function in (net, torch.compile(net, backend="aot_eager", dynamic=False)):
        sol = ncode.solve(lambda t, x, theta, f=function: f(x), X0, 0.0, 1.0, dt=0.25, gradient=gradient)
        grads.append((sol.x.detach(), *torch.autograd.grad(sol.x.sum(), list(net.parameters()))))
    close(*grads, rtol=1e-7)


@pytest.mark.slow
def test_a_solve_with_fixed_steps_can_be_exported():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 2)

        def forward(self, x, theta):
            sol = ncode.solve(
                lambda t, x, theta: torch.tanh(self.net(x)) * theta,
                x,
                0.0,
                1.0,
                theta=theta,
                save_at=[0.5],
                cost=lambda t, x, theta: x.sum(1),
                **FIXED,
            )
            return sol.x, sol.xs, sol.cost

    model = Model()
    exported = torch.export.export(model, (torch.randn(3, 2), torch.randn(3, 2))).module()
    fresh = torch.randn(3, 2), torch.randn(3, 2)
    close(exported(*fresh), model(*fresh), rtol=1e-5, atol=1e-6)


# What these derivatives do not reach

SECOND = {
    "a time": lambda sol: sol.events[0].ts.sum(),
    "a function of a time": lambda sol: sol.events[0].ts.square().sum(),
    "a state behind a recorded event": lambda sol: sol.x.sum(),
}


@pytest.mark.parametrize("loss", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize("reset", [None, lambda t, x, theta: 2 * x], ids=["recorded", "reset"])
def test_second_derivatives_through_events_are_refused(loss, reset):
    x0 = double(1.0, 2.0).requires_grad_()
    event = ncode.Event(lambda t, x, theta: x[:, 0] - 0.5, terminal=False, direction=-1, reset=reset)
    sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 3.0, events=event, **ADAPTIVE)
    (first,) = torch.autograd.grad(loss(sol), x0, create_graph=True)
    with pytest.raises(ncode.InputError, match="second derivative through an event"):
        torch.autograd.grad(first.sum(), x0)


def _jumps(at):
    field = lambda t, x, theta: torch.where(t >= at, 1.0, 0.0)[:, None] + 0 * x  # noqa: E731
    return ncode.solve(field, X0, 0.0, 1.0, jump_ts=at[None], **ADAPTIVE).x


TIMES = {
    "t0": lambda at, options: ncode.solve(swing, X0, at, 1.0, **options).x,
    "t1": lambda at, options: ncode.solve(swing, X0, 0.0, at, **options).x,
    "save_at": lambda at, options: ncode.solve(swing, X0, 0.0, 1.0, save_at=at[None], **options).xs,
    "jump_ts": lambda at, options: _jumps(at),
}


@pytest.mark.parametrize("solve", TIMES.values(), ids=TIMES)
@either
def test_forward_mode_of_times_is_refused(solve, options):
    with pytest.raises(ncode.InputError, match="forward mode"):
        torch.func.jacfwd(lambda at: solve(at, options).sum())(torch.tensor(0.4, dtype=DOUBLE))


def test_forward_mode_through_events_is_refused():
    event = ncode.Event(lambda t, x, theta: x[:, 0] - 0.5)
    with forward_ad.dual_level(), pytest.raises(ncode.InputError, match="nor through events"):
        ncode.solve(swing, forward_ad.make_dual(X0, X0), 0.0, 1.0, events=event, **ADAPTIVE)
