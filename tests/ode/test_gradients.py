import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ncode

from .systems import DOUBLE, GRADIENTS, Everything, close, decay, double, gradients, numeric

TIGHT = {"method": "dopri8", "rtol": 1e-10, "atol": 1e-10}
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)
either_control = pytest.mark.parametrize("feedback", [True, False], ids=["feedback", "constant control"])


def compare(system: Everything, **options) -> None:
    """Discrete gradients of everything equal those of autograd, and so do the values."""
    results = {}
    for gradient in ("discrete", "autograd"):
        every = {"checkpoint_every": options["checkpoint_every"]} if "checkpoint_every" in options else {}
        shared = {name: value for name, value in options.items() if name != "checkpoint_every"}
        sol = ncode.solve(**{**system.arguments(), **shared}, **every, gradient=gradient)
        loss = system.loss(sol)
        results[gradient] = (loss.detach(), gradients(loss, system.inputs))
    close(results["discrete"], results["autograd"], rtol=1e-9, atol=1e-11)
    assert all(grad.abs().max() > 1e-4 for grad in results["autograd"][1].values()), "a test of zeros"


@either_control
@pytest.mark.parametrize("method", ["heun", "bosh3", "dopri5", "tsit5", "dopri8"])
def test_discrete_equals_autograd_for_everything(method, feedback):
    compare(Everything(feedback=feedback), method=method, rtol=1e-4, atol=1e-5)


@either_control
@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4", "dopri5"])
def test_discrete_equals_autograd_with_fixed_steps(method, feedback):
    compare(Everything(feedback=feedback), method=method, dt=0.13)


@pytest.mark.parametrize("every", [1, 2, 3, 1000])
def test_keeping_every_kth_state_changes_no_gradient(every):
    compare(Everything(), rtol=1e-6, atol=1e-6, checkpoint_every=every)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_discrete_equals_autograd_where_samples_take_very_different_numbers_of_steps(every):
    system = Everything(batch=6)
    with torch.no_grad():
        # One sample has all of the way to go, one next to none, and one goes backward.
        system.t1.copy_(system.t0 + torch.tensor([9.0, 0.1, 0.3, 0.2, -0.4, 0.2], dtype=DOUBLE))
        inside = torch.linspace(0.2, 0.9, 3, dtype=DOUBLE)
        system.save_at.copy_(system.t0[:, None] + (system.t1 - system.t0)[:, None] * inside)
    compare(system, rtol=1e-6, atol=1e-6, checkpoint_every=every)


@either_control
def test_discrete_equals_autograd_where_one_step_serves_the_batch(feedback):
    system = Everything(feedback=feedback)
    with torch.no_grad():
        system.t0.fill_(0.1)
        system.t1.fill_(1.3)
        system.save_at.copy_(torch.tensor([0.1, 0.7, 1.3]))
    compare(system, step="batch", rtol=1e-5, atol=1e-6)


def test_discrete_equals_autograd_backward_in_time():
    system = Everything()
    with torch.no_grad():
        system.t1.copy_(system.t0 - 1.1)
        inside = torch.linspace(0.2, 0.9, 3, dtype=DOUBLE)
        system.save_at.copy_(system.t0[:, None] + (system.t1 - system.t0)[:, None] * inside)
    compare(system, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@either_control
@every_gradient
def test_gradients_of_everything_equal_finite_differences(gradient, feedback):
    system = Everything(feedback=feedback)

    def loss():
        return system.loss(ncode.solve(**system.arguments(), **TIGHT, gradient=gradient))

    got = gradients(loss(), system.inputs)
    for name, tensor in system.inputs.items():
        direction = torch.randn_like(tensor)
        expected = numeric(loss, tensor, direction)
        close((got[name] * direction).sum(), expected, rtol=1e-6, atol=1e-8, msg=lambda text, n=name: f"{n}: {text}")


@every_gradient
@pytest.mark.parametrize("method", ["bosh3", "dopri5", "tsit5"])
def test_every_method_has_the_right_gradient(gradient, method):
    w = torch.tensor(-0.7, dtype=DOUBLE, requires_grad=True)
    x0 = double(1.0, 2.0).requires_grad_()
    t1 = torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(lambda t, x, theta: w * x, x0, 0.0, t1, method=method, gradient=gradient, rtol=1e-9, atol=1e-9)
    got = torch.autograd.grad(sol.x.sum(), [x0, w, t1])
    grow = math.exp(-0.7 * 1.5)
    close(got[0], torch.full_like(x0, grow), rtol=1e-6)
    close(got[1], torch.tensor(3 * 1.5 * grow, dtype=DOUBLE), rtol=1e-6)
    close(got[2], torch.tensor(3 * -0.7 * grow, dtype=DOUBLE), rtol=1e-6)


@every_gradient
def test_t0_of_all_samples_gets_the_gradient_of_all(gradient):
    t0 = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(decay, double(1.0, 3.0), t0, 1.0, gradient=gradient, rtol=1e-9, atol=1e-9)
    (got,) = torch.autograd.grad(sol.x.sum(), t0)
    close(got, torch.tensor(4 * math.exp(-0.5), dtype=DOUBLE), rtol=1e-6)


@every_gradient
def test_times_in_single_precision_get_gradients_in_single_precision(gradient):
    t1 = torch.tensor([1.0, 2.0], requires_grad=True)
    save_at = torch.tensor([0.5, 1.0], requires_grad=True)
    sol = ncode.solve(decay, double(1.0, 1.0), 0.0, t1, save_at=save_at, gradient=gradient, rtol=1e-9, atol=1e-9)
    got = torch.autograd.grad(sol.x.sum() + sol.xs.sum(), [t1, save_at])
    assert [grad.dtype for grad in got] == [torch.float32, torch.float32]
    close(got[0], -(-t1.detach()).exp(), rtol=1e-5)
    close(got[1], -2 * (-save_at.detach()).exp(), rtol=1e-5)


@every_gradient
def test_a_leaf_and_a_computed_tensor_of_a_closure_get_gradients(gradient):
    leaf = torch.tensor(0.4, dtype=DOUBLE, requires_grad=True)
    root = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True)
    computed = root.exp() * 2

    def field(t, x, theta):
        return (leaf - computed) * x

    sol = ncode.solve(field, double(1.0), 0.0, 1.0, gradient=gradient, rtol=1e-9, atol=1e-9)
    got = torch.autograd.grad(sol.x.sum(), [leaf, root])
    rate = 0.4 - 2 * math.exp(0.3)
    close(got[0].item(), math.exp(rate), rtol=1e-6)
    close(got[1].item(), -2 * math.exp(0.3) * math.exp(rate), rtol=1e-6)


@every_gradient
def test_a_tensor_that_is_an_attribute_of_some_object_gets_a_gradient(gradient):
    class Rate:
        def __init__(self):
            self.value = torch.tensor(-0.5, dtype=DOUBLE, requires_grad=True)

        def __call__(self, t, x, theta):
            return self.value * x

    rate = Rate()
    sol = ncode.solve(rate, double(1.0), 0.0, 1.0, gradient=gradient, rtol=1e-9, atol=1e-9)
    (got,) = torch.autograd.grad(sol.x.sum(), rate.value)
    close(got.item(), math.exp(-0.5), rtol=1e-6)


@every_gradient
def test_a_tensor_may_be_both_x0_and_part_of_the_dynamics(gradient):
    x0 = double(0.5).requires_grad_()
    sol = ncode.solve(lambda t, x, theta: x0 * x, x0, 0.0, 1.0, gradient=gradient, rtol=1e-10, atol=1e-10)
    (got,) = torch.autograd.grad(sol.x.sum(), x0)
    close(got.item(), math.exp(0.5) * 1.5, rtol=1e-6)


class Coded(nn.Module):
    """The dynamics catch a code, and with `self` also the encoder that it comes from; `shared` uses that twice."""

    def __init__(self, shared):
        super().__init__()
        self.encoder = nn.Linear(2, 2, dtype=DOUBLE)
        self.f = nn.Linear(2, 2, dtype=DOUBLE)
        self.shared = shared

    def forward(self, x0, **options):
        code = self.encoder(x0)
        scale = code.sum()  # computed from what is caught as well

        def field(t, x, theta):
            y = torch.tanh(self.f(x) + code) + 0.1 * scale
            return y + torch.sin(self.encoder(x)) if self.shared else y

        def cost(t, x, theta):
            return code.sum(1)  # nothing but what was computed outside

        return ncode.solve(field, x0, 0.0, 1.0, cost=cost, **options)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("options", [{}, {"dt": 1.0, "method": "heun"}, {"step": "batch", "checkpoint_every": 2}])
def test_a_code_may_be_caught_together_with_the_net_that_made_it(shared, options):
    net = Coded(shared)
    x0 = torch.randn(3, 2, dtype=DOUBLE).requires_grad_()
    results = []
    for gradient in ("discrete", "autograd"):
        sol = net(x0, gradient=gradient, rtol=1e-6, **options)
        loss = sol.x.square().sum() + sol.cost.sum()
        results.append((sol.x.detach(), torch.autograd.grad(loss, [x0, *net.parameters()])))
    close(*results)


@pytest.mark.parametrize("shared", [True, False])
def test_the_adjoint_knows_a_code_and_the_net_that_made_it_apart(shared):
    net = Coded(shared)
    x0 = torch.randn(3, 2, dtype=DOUBLE).requires_grad_()
    results = []
    for gradient in ("adjoint", "autograd"):
        sol = net(x0, gradient=gradient, **TIGHT)
        results.append(torch.autograd.grad(sol.x.square().sum() + sol.cost.sum(), [x0, *net.parameters()]))
    close(*results, rtol=1e-6)


@every_gradient
def test_dynamics_may_return_what_they_caught(gradient):
    root = double(0.5, -1.0).requires_grad_()
    drift = root * 2
    sol = ncode.solve(lambda t, x, theta: drift, double(0.0, 1.0), 0.0, 3.0, theta=root, gradient=gradient)
    (grad,) = torch.autograd.grad(sol.x.sum(), root)
    close(grad, double(6.0, 6.0))


def late(weight):
    """The weight is not touched before t = 0.5, and then drives the state."""

    def field(t, x, theta):
        return torch.where(t[:, None] > 0.5, weight() * x, 0 * x) if bool((t > 0.5).any()) else 0 * x

    return field


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(-1.0, dtype=DOUBLE))

    def forward(self):
        return self.value


class Held:
    """A plain object, whose weight is used only late."""

    def __init__(self, weight):
        self.weight = weight

    def slope(self, t, x, theta):
        return late(lambda: self.weight)(t, x, theta)

    __call__ = slope


GLOBAL_WEIGHT = torch.tensor(-1.0, dtype=DOUBLE)


def global_late(t, x, theta):
    return GLOBAL_WEIGHT * x * (t[:, None] > 0.5) if bool((t > 0.5).any()) else 0 * x


@every_gradient
@pytest.mark.parametrize(
    "where", ["module", "tensor", "computed", "function", "list", "global", "default", "object", "method"]
)
def test_what_is_used_only_late_gets_its_gradient(gradient, where):
    root = torch.tensor(-1.0, dtype=DOUBLE, requires_grad=True)
    if where == "module":
        module = Weight()
        wanted, field = module.value, late(module)
    elif where == "global":
        wanted, field = GLOBAL_WEIGHT.requires_grad_(), global_late
    elif where == "default":

        def field(t, x, theta, weight=root):
            return late(lambda: weight)(t, x, theta)

        wanted = root
    elif where in ("object", "method"):
        held = Held(root)
        wanted, field = root, held if where == "object" else held.slope
    else:
        value = root * 1.0 if where == "computed" else root
        box = [value] if where == "list" else value

        def inner():
            return box[0] if where == "list" else value

        def field(t, x, theta):
            if bool((t > 0.5).any()):
                return (inner() if where in ("function", "list") else value) * x * (t[:, None] > 0.5)
            return 0 * x

        wanted = root
    sol = ncode.solve(field, double(1.0), 0.0, 1.0, gradient=gradient, method="rk4", dt=0.25)
    (got,) = torch.autograd.grad(sol.x.sum(), wanted)
    reference = wanted.detach().clone().requires_grad_()
    expected = ncode.solve(
        lambda t, x, theta: reference * x * (t[:, None] > 0.5),
        double(1.0),
        0.0,
        1.0,
        gradient=gradient,
        method="rk4",
        dt=0.25,
    )
    close(got, torch.autograd.grad(expected.x.sum(), reference)[0])
    assert got.abs() > 0.1


@every_gradient
def test_unused_parameters_get_none_and_frozen_ones_stay_untouched(gradient):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(2, 2, dtype=DOUBLE)
            self.frozen = nn.Linear(2, 2, dtype=DOUBLE).requires_grad_(False)
            self.unused = nn.Linear(2, 2, dtype=DOUBLE)

        def forward(self, t, x, theta):
            return torch.tanh(self.frozen(self.used(x)))

    net = Net()
    sol = ncode.solve(net, torch.randn(3, 2, dtype=DOUBLE), 0.0, 1.0, gradient=gradient)
    sol.x.sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in net.used.parameters())
    assert all(p.grad is None for p in net.frozen.parameters())
    assert all(p.grad is None for p in net.unused.parameters())


@every_gradient
def test_what_wants_no_gradient_makes_no_graph(gradient):
    net = nn.Linear(2, 2).requires_grad_(False)
    sol = ncode.solve(lambda t, x, theta: net(x), torch.ones(1, 2), 0.0, 1.0, gradient=gradient, save_at=[0.5])
    assert not sol.x.requires_grad
    assert not sol.xs.requires_grad


@every_gradient
def test_no_grad_makes_no_graph(gradient):
    net = nn.Linear(2, 2)
    with torch.no_grad():
        sol = ncode.solve(lambda t, x, theta: net(x), torch.ones(1, 2), 0.0, 1.0, gradient=gradient)
    assert not sol.x.requires_grad
    with torch.inference_mode():
        sol = ncode.solve(
            lambda t, x, theta: net(x), torch.ones(1, 2), 0.0, 1.0, gradient=gradient, save_at=[0.5], dense=True
        )
    assert sol(0.5).isfinite().all()


def test_the_gradient_does_not_change_the_values():
    values = []
    for gradient in GRADIENTS:
        system = Everything()
        sol = ncode.solve(**system.arguments(), gradient=gradient)
        values.append((sol.x, sol.theta, sol.cost, sol.xs, sol.thetas))
    close(values[1], values[0], rtol=1e-12)
    close(values[2], values[0], rtol=1e-12)


@every_gradient
def test_gradients_accumulate_as_they_do_elsewhere(gradient):
    net = nn.Linear(2, 2, dtype=DOUBLE)
    x0 = torch.randn(3, 2, dtype=DOUBLE)

    def backward():
        ncode.solve(lambda t, x, theta: torch.tanh(net(x)), x0, 0.0, 1.0, gradient=gradient).x.sum().backward()
        return net.weight.grad.clone()

    close(backward() * 2, backward())


@every_gradient
def test_backward_may_run_twice_over_a_retained_graph(gradient):
    x0 = double(1.0, 2.0).requires_grad_()
    sol = ncode.solve(decay, x0, 0.0, 1.0, gradient=gradient, save_at=[0.5])
    loss = (sol.x.square() + sol.xs[:, 0]).sum()
    (first,) = torch.autograd.grad(loss, x0, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x0)
    close(first, second)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, x0)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize("name", ["x", "theta", "cost", "xs", "thetas"])
def test_a_loss_of_one_output_needs_no_other(gradient, name):
    results = []
    for kind in (gradient, "autograd"):
        system = Everything()
        value = getattr(ncode.solve(**system.arguments(), **TIGHT, gradient=kind), name)
        loss = (value["rest"][0] if isinstance(value, dict) else value).sin().sum()
        results.append(gradients(loss, system.inputs))
    close(*results, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize("what", ["x0", "theta", "weight", "computed"])
def test_an_input_changed_in_place_before_backward_is_refused(gradient, what):
    x0 = double(1.0, 2.0).requires_grad_()
    theta = double(-1.0, -2.0).requires_grad_()
    weight = torch.tensor([0.5], dtype=DOUBLE, requires_grad=True)
    inputs = {"x0": x0 * 1, "theta": theta * 1, "weight": weight, "computed": weight * 2}
    field = {"weight": lambda t, x, u: inputs["weight"] * u * x, "computed": lambda t, x, u: inputs["computed"] * u * x}
    sol = ncode.solve(
        field.get(what, lambda t, x, u: u * x), inputs["x0"], 0.0, 1.0, theta=inputs["theta"], gradient=gradient
    )
    with torch.no_grad():
        inputs[what].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sol.x.sum().backward()


@every_gradient
@pytest.mark.parametrize("kind", ["leaf", "computed"])
def test_a_hook_on_a_tensor_sees_its_whole_gradient_once(gradient, kind):
    root = torch.tensor(-1.0, dtype=DOUBLE, requires_grad=True)
    weight = root * 1.0 if kind == "computed" else root
    seen = []
    weight.register_hook(lambda grad: seen.append(grad.clone()) or grad * 0.5)
    sol = ncode.solve(lambda t, x, theta: weight * x, double(1.0), 0.0, 1.0, gradient=gradient, rtol=1e-9, atol=1e-9)
    sol.x.sum().backward()
    assert len(seen) == 1
    close(seen[0].item(), math.exp(-1), rtol=1e-6)
    close(root.grad.item(), 0.5 * math.exp(-1), rtol=1e-6)


@every_gradient
def test_a_computed_tensor_may_retain_its_gradient(gradient):
    root = torch.tensor(-1.0, dtype=DOUBLE, requires_grad=True)
    weight = root * 1.0
    weight.retain_grad()
    sol = ncode.solve(lambda t, x, theta: weight * x, double(1.0), 0.0, 1.0, gradient=gradient, rtol=1e-9, atol=1e-9)
    sol.x.sum().backward()
    close(weight.grad, root.grad)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
@pytest.mark.parametrize(("method", "dt"), [("dopri5", None), ("tsit5", None), ("dopri8", None), ("rk4", 0.1)])
def test_dense_output_has_the_right_gradient(gradient, method, dt):
    """With respect to x0, a weight, both ends of the interval and the time that is asked for."""
    x0 = double(1.0, 2.0).requires_grad_()
    w = torch.tensor(-0.8, dtype=DOUBLE, requires_grad=True)
    t0 = torch.tensor(0.2, dtype=DOUBLE, requires_grad=True)
    t1 = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    t = torch.tensor([0.7, 1.4], dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(
        lambda t, x, theta: w * x,
        x0,
        t0,
        t1,
        dense=True,
        method=method,
        dt=dt,
        rtol=1e-10,
        atol=1e-10,
        gradient=gradient,
    )
    values = sol(t)
    got = torch.autograd.grad(values.sum(), [x0, w, t0, t1, t])
    with torch.no_grad():
        grow = (w * (t - t0)).exp()
        expected = (
            grow.sum().expand(2, 1),
            (3 * (t - t0) * grow).sum(),
            -(3 * w * grow).sum(),
            torch.zeros((), dtype=DOUBLE),
            3 * w * grow,
        )
    close(got, expected, rtol=1e-5, atol=1e-5)


def test_dense_output_of_discrete_has_the_gradient_of_autograd_for_uneven_samples():
    results = []
    for gradient in ("discrete", "autograd"):
        system = Everything(batch=4)
        with torch.no_grad():
            system.t1.copy_(system.t0 + torch.tensor([4.0, 0.1, 1.0, -2.0], dtype=DOUBLE))
        arguments = {**system.arguments(), "save_at": None, "dense": True}
        sol = ncode.solve(**arguments, gradient=gradient, rtol=1e-5, atol=1e-5)
        ts = system.t0 + (system.t1 - system.t0) * torch.tensor([0.3, 0.6, 1.0], dtype=DOUBLE)[:, None]
        loss = sol(ts.T.detach()).sin().sum() + sol.x.sum()
        results.append(gradients(loss, system.inputs))
    close(*results, rtol=1e-9, atol=1e-11)


def test_dense_output_has_no_adjoint_gradient_and_says_so():
    x0 = double(1.0).requires_grad_()
    with pytest.raises(ncode.InputError, match="save_at"):
        ncode.solve(decay, x0, 0.0, 1.0, dense=True, gradient="adjoint")
    ncode.solve(decay, x0.detach(), 0.0, 1.0, dense=True, gradient="adjoint")


@pytest.mark.parametrize("dt", [None, 0.1])
def test_second_derivatives_work_with_autograd(dt):
    a = torch.tensor(-0.5, dtype=DOUBLE, requires_grad=True)
    x0 = double(1.3).requires_grad_()
    options = {"dt": dt, "method": "dopri5", "rtol": 1e-10, "atol": 1e-10, "gradient": "autograd"}
    x = ncode.solve(lambda t, x, theta: a * x, x0, 0.0, 2.0, **options).x
    (first,) = torch.autograd.grad(x.sum(), a, create_graph=True)
    second, mixed = torch.autograd.grad(first, [a, x0])
    close(second.item(), 4 * 1.3 * math.exp(-1.0), rtol=1e-5)
    close(mixed.item(), 2 * math.exp(-1.0), rtol=1e-5)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_a_second_derivative_of_another_gradient_is_refused_with_a_way_out(gradient):
    x0 = double(1.3).requires_grad_()
    x = ncode.solve(lambda t, x, theta: x.sin(), x0, 0.0, 1.0, gradient=gradient).x
    (first,) = torch.autograd.grad(x.square().sum(), x0, create_graph=True)
    with pytest.raises(ncode.InputError, match='gradient="autograd"'):
        torch.autograd.grad(first.sum(), x0)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_a_penalty_on_another_gradient_is_refused_rather_than_left_out(gradient):
    net = nn.Linear(1, 1, dtype=DOUBLE)
    x0 = double(1.3).requires_grad_()
    x = ncode.solve(lambda t, x, theta: net(x).tanh(), x0, 0.0, 1.0, gradient=gradient).x
    (slope,) = torch.autograd.grad(x.sum(), x0, create_graph=True)
    with pytest.raises(ncode.InputError, match='gradient="autograd"'):
        (x.sum() + slope.square().sum()).backward()


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_a_gradient_that_nobody_differentiates_again_may_be_asked_for_with_a_graph(gradient):
    x0 = double(1.3).requires_grad_()
    x = ncode.solve(decay, x0, 0.0, 1.0, gradient=gradient, rtol=1e-9, atol=1e-9).x
    (first,) = torch.autograd.grad(x.sum(), x0, create_graph=True)
    close(first.item(), math.exp(-1), rtol=1e-6)


def test_the_adjoint_names_the_samples_that_cannot_be_solved_backward():
    # Forward this contracts onto 0; backward it leaves for infinity long before t0.
    x0 = double(0.5, 1.0).requires_grad_()

    def field(t, x, theta):
        return -(x**3) - 30 * x

    sol = ncode.solve(field, x0, 0.0, 3.0, gradient="adjoint", rtol=1e-3, atol=1e-6, max_steps=60)
    with pytest.raises(ncode.SolveError, match='gradient="discrete"') as caught:
        sol.x.sum().backward()
    assert caught.value.samples
    assert all(status is not ncode.Status.OK for status in caught.value.statuses)


def test_times_at_which_the_adjoint_failed_are_those_of_the_user():
    def field(t, x, theta):
        return -3 * x * (1 + torch.cos(5 * (t[:, None] - 10)))

    x0 = double(1.0, 1.0).requires_grad_()
    sol = ncode.solve(field, x0, 10.0, 12.0, gradient="adjoint", max_steps=23, rtol=1e-5)
    with pytest.raises(ncode.SolveError) as caught:
        sol.x.sum().backward()
    assert all(10.0 < time < 12.0 for time in caught.value.times)


@every_gradient
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_solve_may_stand_inside_of_activation_checkpointing(gradient, reentrant):
    net = nn.Linear(2, 2, dtype=DOUBLE)
    x0 = torch.randn(3, 2, dtype=DOUBLE).requires_grad_()

    def block(x):
        scale = net(x).sum()  # computed inside, and caught in a closure
        return ncode.solve(lambda t, x, theta: scale * net(x).sin(), x, 0.0, 1.0, theta=x, gradient=gradient).x

    def grads(y):
        y.square().sum().backward()
        found = [leaf.grad for leaf in (x0, net.weight, net.bias)]
        for leaf in (x0, net.weight, net.bias):
            leaf.grad = None
        return found

    close(grads(checkpoint(block, x0, use_reentrant=reentrant)), grads(block(x0)))


@every_gradient
def test_saved_tensors_may_be_packed_away(gradient):
    """As torch.autograd.graph.save_on_cpu does: what comes back is another tensor of the same value."""
    net = nn.Linear(2, 2, dtype=DOUBLE)
    x0 = torch.randn(3, 2, dtype=DOUBLE).requires_grad_()
    grads = []
    for pack in (lambda tensor: tensor, lambda tensor: tensor.detach().clone()):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            sol = ncode.solve(lambda t, x, theta: net(x).sin(), x0, 0.0, 1.0, gradient=gradient)
        grads.append(torch.autograd.grad(sol.x.square().sum(), [x0, *net.parameters()]))
    close(*grads)


@pytest.mark.slow
@every_gradient
def test_deterministic_algorithms_and_anomaly_detection_do_no_harm(gradient):
    system = Everything()

    def grads():
        return gradients(system.loss(ncode.solve(**system.arguments(), gradient=gradient)), system.inputs)

    plain = grads()
    torch.use_deterministic_algorithms(True)
    try:
        close(grads(), plain)
    finally:
        torch.use_deterministic_algorithms(False)
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        close(grads(), plain)


@every_gradient
def test_training_gamma_f_and_g_together_learns(gradient):
    """The reflection x -> -x, which no flow of one dimension can do without a control of its own."""
    gamma = nn.Sequential(nn.Linear(1, 8, dtype=DOUBLE), nn.Tanh(), nn.Linear(8, 1, dtype=DOUBLE))
    x0 = torch.linspace(-1, 1, 8, dtype=DOUBLE)[:, None]
    optimizer = torch.optim.Adam(gamma.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        sol = ncode.solve(lambda t, x, theta: theta, x0, 0.0, 1.0, theta=gamma(x0), gradient=gradient)
        loss = (sol.x + x0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


class Flow(nn.Module):
    """A module with a solve inside: parameters and a buffer are used by the dynamics."""

    def __init__(self, **options):
        super().__init__()
        self.net, self.options = nn.Linear(2, 2, dtype=DOUBLE), options
        self.register_buffer("scale", torch.ones(1, dtype=DOUBLE))

    def forward(self, x):
        return ncode.solve(lambda t, x, theta: torch.tanh(self.net(x)) * self.scale, x, 0.0, 1.0, **self.options).x


@pytest.mark.parametrize("options", [{}, {"checkpoint_every": 2}, {"gradient": "adjoint", "rtol": 1e-8, "atol": 1e-8}])
def test_tensors_that_stand_in_for_parameters_during_a_call_get_their_gradient(options):
    """torch.func.functional_call puts the module's own back before backward evaluates the dynamics again."""
    flow, x = Flow(**options), torch.randn(3, 2, dtype=DOUBLE).requires_grad_()
    others = {name: torch.randn_like(own) for name, own in flow.state_dict().items()}
    parameters = {name: others[name].requires_grad_() for name, _ in flow.named_parameters()}
    loss = torch.func.functional_call(flow, others, (x,)).square().sum()
    found = gradients(loss, {"x": x, **parameters})

    flow.load_state_dict({name: tensor.detach() for name, tensor in others.items()})
    expected = gradients(flow(x).square().sum(), {"x": x, **dict(flow.named_parameters())})
    close(found, expected, rtol=1e-9)


def test_a_module_has_its_own_parameters_back_after_backward():
    flow, x = Flow(), torch.randn(3, 2, dtype=DOUBLE)
    own = {name: id(tensor) for name, tensor in flow.state_dict(keep_vars=True).items()}
    others = {name: torch.randn_like(tensor).requires_grad_() for name, tensor in flow.named_parameters()}
    torch.func.functional_call(flow, others, (x,)).sum().backward()
    assert {name: id(tensor) for name, tensor in flow.state_dict(keep_vars=True).items()} == own
    assert all(tensor.grad is None for tensor in flow.parameters())


TOO_STIFF = [
    {"method": "rk4", "dt": 0.05},
    {"rtol": 1e-6},
    {"save_at": [3.0]},
]


@pytest.mark.parametrize("options", TOO_STIFF)
def test_an_adjoint_that_does_not_come_back_to_the_start_is_refused(options):
    """Of two decays one is fast, and grows backward in time by exp(60)."""
    rate = torch.tensor(20.0, dtype=DOUBLE, requires_grad=True)

    def dynamics(t, x, theta):
        return torch.stack([x[:, 1], -x[:, 0] - rate * x[:, 1]], 1)

    sol = ncode.solve(dynamics, torch.ones(2, 2, dtype=DOUBLE), 0.0, 3.0, gradient="adjoint", **options)
    loss = sol.xs.sum() if "save_at" in options else sol.x.sum()
    with pytest.raises(ncode.InputError, match=r"came back to t0.*gradient=\"discrete\""):
        loss.backward()


def test_an_adjoint_that_has_died_out_before_the_state_is_lost_is_right():
    """The state is lost backward in time, by exp(60), of which a warning tells; but the adjoint decays as fast."""
    grads = []
    for gradient in ("discrete", "adjoint"):
        rate = torch.tensor(20.0, dtype=DOUBLE, requires_grad=True)
        options = {"gradient": gradient, "rtol": 1e-6, "atol": 1e-9}
        sol = ncode.solve(
            lambda t, x, r: torch.cos(x) - r * x,
            torch.ones(2, 1, dtype=DOUBLE),
            0.0,
            3.0,
            theta=rate.expand(2, 1),
            **options,
        )
        warned = pytest.warns(UserWarning, match="2 of 2 samples") if gradient == "adjoint" else nullcontext()
        with warned:
            grads.append(torch.autograd.grad(sol.x.sum(), rate)[0])
    close(grads[1], grads[0], rtol=1e-3)


def test_saved_times_of_a_solution_are_its_own():
    ts = torch.tensor([0.5, 1.0], dtype=DOUBLE)
    sol = ncode.solve(lambda t, x, theta: -x, torch.ones(2, 1, dtype=DOUBLE), 0.0, 1.0, save_at=ts)
    ts.zero_()
    assert sol.ts.tolist() == [[0.5, 1.0]] * 2
