"""Gradients reach every tensor that the dynamics use, wherever it is held, or the solve is refused."""

import collections
import dataclasses
import functools
import threading
import types

import pytest
import torch
from torch import nn

import ncode
from ncode import InputError

from .systems import DOUBLE, GRADIENTS, close, double

STEPS = {"method": "rk4", "dt": 0.25}


def linear():
    return nn.Linear(2, 2, dtype=DOUBLE)


SHARED = types.SimpleNamespace(late=linear())


def named_by_a_helper(x):
    return SHARED.late(x)


class HoldsInClass:
    late = linear()


class HoldsInSlot:
    __slots__ = ("late",)

    def __init__(self, late):
        self.late = late


@dataclasses.dataclass
class Record:
    late: nn.Module


def ways_to_hold(late):
    """Functions of x that use the module `late`, each holding it in another way."""
    objects = {
        "a plain object": types.SimpleNamespace(late=late),
        "a dataclass": Record(late),
        "a slot": HoldsInSlot(late),
        "an object in an object": types.SimpleNamespace(late=types.SimpleNamespace(late=late).late),
    }
    ways = {name: lambda x, it=it: it.late(x) for name, it in objects.items()}
    queue, table, many = collections.deque([late]), {"deep": [{"late": late}]}, (0,) * 500 + (late,)

    def has_attribute(x):
        return has_attribute.late(x)

    has_attribute.late = late
    return ways | {
        "a closure": lambda x: late(x),
        "a deque": lambda x: queue[0](x),
        "a nested dict": lambda x: table["deep"][0]["late"](x),
        "a long tuple": lambda x: many[-1](x),
        "a default": lambda x, late=late: late(x),
        "an attribute of the function": has_attribute,
        "a partial of a method": functools.partial(
            Record.__dict__.get("apply", lambda self, x: self.late(x)), Record(late)
        ),
        "a bound method": types.MethodType(lambda self, x: self.late(x), Record(late)),
    }


WAYS = tuple(ways_to_hold(linear()))


def early_and_late(early, late):
    """Dynamics that use the second function only after t = 0.5."""
    return lambda t, x, theta: early(x) if float(t.detach().max()) < 0.5 else late(x)


def gradient_of(late, dynamics, gradient):
    late.weight.grad = None
    sol = ncode.solve(dynamics, torch.ones(3, 2, dtype=DOUBLE), 0.0, 1.0, gradient=gradient, **STEPS)
    sol.x.sum().backward()
    return late.weight.grad


@pytest.mark.parametrize("way", WAYS)
def test_what_is_used_after_t0_only_has_its_gradient(way):
    early, late = linear(), linear()
    dynamics = early_and_late(early, ways_to_hold(late)[way])
    expected = gradient_of(late, dynamics, "autograd")
    close(gradient_of(late, dynamics, "discrete"), expected)
    close(gradient_of(late, dynamics, "adjoint"), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("late", "use"), [(SHARED.late, named_by_a_helper), (HoldsInClass.late, lambda x: HoldsInClass.late(x))]
)
def test_globals_that_dynamics_name_are_followed(late, use):
    dynamics = early_and_late(linear(), use)
    close(gradient_of(late, dynamics, "discrete"), gradient_of(late, dynamics, "autograd"))


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_what_nobody_can_find_is_refused_not_forgotten(gradient):
    hidden = [0] * 5000 + [linear()]  # more than a search would look through
    dynamics = early_and_late(linear(), lambda x: hidden[-1](x))
    with pytest.raises(InputError, match="its gradient would be lost"):
        gradient_of(hidden[-1], dynamics, gradient)
    assert gradient_of(hidden[-1], dynamics, "autograd").abs().sum() > 0


def test_a_tensor_of_a_graph_that_is_gone_does_no_harm():
    memory = types.SimpleNamespace(last=None)
    net = linear()
    for _ in range(2):
        sol = ncode.solve(lambda t, x, theta: net(x) + 0 * len(vars(memory)), torch.ones(2, 2, dtype=DOUBLE), 0.0, 1.0)
        memory.last = sol.x
        sol.x.sum().backward()
    assert net.weight.grad is not None


# Nothing is written to what threads share.


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_hook_sees_the_whole_gradient_once(gradient):
    net, seen = linear(), []
    net.weight.register_hook(lambda grad: seen.append(grad.clone()))
    sol = ncode.solve(lambda t, x, theta: net(x), torch.ones(3, 2, dtype=DOUBLE), 0.0, 1.0, gradient=gradient, **STEPS)
    sol.x.sum().backward()
    assert len(seen) == 1
    close(seen[0], net.weight.grad)


def test_a_hook_that_clamps_clamps_the_sum_of_all_steps():
    net = linear()
    net.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    ncode.solve(lambda t, x, theta: net(x), torch.ones(3, 2, dtype=DOUBLE), 0.0, 1.0, **STEPS).x.sum().backward()
    assert net.weight.grad.abs().max() == 1e-3


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_backward_after_functional_call_leaves_the_module_alone(gradient):
    net = linear()
    own = dict(net.named_parameters())
    other = {name: (2 * it.detach()).requires_grad_() for name, it in own.items()}

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return ncode.solve(lambda t, x, theta: self.net(x), x, 0.0, 1.0, gradient=gradient, rtol=1e-8, atol=1e-8).x

    x0 = torch.ones(3, 2, dtype=DOUBLE)
    y = torch.func.functional_call(Block(), {f"net.{name}": it for name, it in other.items()}, (x0,))
    seen = []
    handle = net.register_forward_hook(
        lambda module, args, out: seen.append(module._parameters["weight"] is own["weight"])
    )
    got = torch.autograd.grad(y.sum(), list(other.values()))
    handle.remove()
    assert seen
    assert all(seen)
    with torch.no_grad():
        for it in own.values():
            it.mul_(2)
    expected = torch.autograd.grad(Block()(x0).sum(), list(own.values()))
    close(got, expected, rtol=1e-6, atol=1e-8)


def test_threads_that_share_a_module_get_the_gradients_of_one():
    net = linear()
    net.weight.register_hook(lambda grad: grad * 0.5)
    x0 = torch.randn(4, 3, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))

    def work(x):
        y = ncode.solve(lambda t, x, theta: net(x), x, 0.0, 1.0, **STEPS).x
        return torch.autograd.grad(y.square().sum(), net.weight)[0]

    expected, found = [work(x) for x in x0], [[] for _ in x0]
    threads = [
        threading.Thread(target=lambda i=i: found[i].extend(work(x0[i]) for _ in range(8))) for i in range(len(x0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for several, one in zip(found, expected, strict=True):
        assert len(several) == 8
        for it in several:
            close(it, one)


# What changes between solve and backward.


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_a_buffer_that_changes_before_backward_is_refused(gradient):
    rate, x0 = double(1.0), double(1.0, 2.0).requires_grad_()
    sol = ncode.solve(lambda t, x, theta: -rate * x, x0, 0.0, 1.0, gradient=gradient)
    rate.add_(1)
    with pytest.raises(InputError, match="changed in place between solve and backward"):
        sol.x.sum().backward()


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_a_number_that_changes_before_backward_is_refused(gradient):
    settings, x0 = {"rate": 1.0}, double(1.0, 2.0).requires_grad_()
    sol = ncode.solve(lambda t, x, theta: -settings["rate"] * x, x0, 0.0, 1.0, gradient=gradient)
    settings["rate"] = 3.0
    with pytest.raises(InputError, match="not the function that they were"):
        sol.x.sum().backward()


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_random_numbers_inside_of_the_dynamics_are_refused_in_backward(gradient):
    net, x0 = nn.Sequential(linear(), nn.Dropout(0.5)), torch.ones(8, 2, dtype=DOUBLE)
    torch.manual_seed(0)
    sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, gradient=gradient, **STEPS)
    with pytest.raises(InputError, match="not the function that they were"):
        sol.x.sum().backward()


def test_batch_statistics_that_the_dynamics_update_themselves_are_no_change_from_outside():
    net = nn.Sequential(nn.BatchNorm1d(2, dtype=DOUBLE), linear())
    x0 = torch.randn(5, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, step="batch")
    net(x0)  # as a second use of the same module would
    sol.x.sum().backward()
    assert net[1].weight.grad is not None


def test_eval_between_solve_and_backward_is_refused():
    net = nn.Sequential(nn.BatchNorm1d(2, dtype=DOUBLE), linear())
    x0 = 3 + 2 * torch.randn(5, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, step="batch")
    net.eval()
    with pytest.raises(InputError, match="not the function that they were"):
        sol.x.sum().backward()


# Changes between solve and backward that no version counter shows.

SILENT_CHANGES = {
    "a number": lambda place: place.__setattr__("scale", place.scale * 1.001),
    "data": lambda place: place.buffer.data.mul_(1.001),
    "memory shared with NumPy": lambda place: place.buffer.numpy().__imul__(1.001),
    "the data of a parameter": lambda place: place.net.weight.data.mul_(1.001),
    "a module in its place": lambda place: place.__setattr__("net", nn.Linear(2, 2, dtype=place.buffer.dtype)),
}


@pytest.mark.parametrize("change", SILENT_CHANGES)
@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.25}, {"method": "rodas5p"}, {"checkpoint_every": 3}])
def test_small_changes_that_no_counter_shows_are_refused(change, gradient, dtype, options):
    torch.manual_seed(0)
    place = types.SimpleNamespace(net=nn.Linear(2, 2, dtype=dtype), buffer=torch.ones(2, dtype=dtype), scale=1.0)
    x0 = torch.randn(7, 2, dtype=dtype)
    sol = ncode.solve(
        lambda t, x, theta: place.scale * place.buffer * place.net(x), x0, 0.0, 1.0, gradient=gradient, **options
    )
    SILENT_CHANGES[change](place)
    with pytest.raises(InputError, match=r"not the function that they were|did not find it"):
        sol.x.sum().backward()


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_spectral_normalisation_changes_itself_and_can_be_trained(gradient):
    torch.manual_seed(0)
    net = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    x0 = torch.randn(5, 2)
    sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, gradient=gradient)
    sol.x.sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize("size", [1, 33])
def test_rounding_of_half_precision_inside_of_the_dynamics_is_no_change(size):
    torch.manual_seed(0)
    net, x0 = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.randn(size, 64)
    rates = torch.linspace(0.1, 20, size)[:, None].expand(size, 64)

    def dynamics(t, x, theta):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return theta * net(x).float()

    ncode.solve(dynamics, x0, 0.0, 1.0, theta=rates).x.sum().backward()
    assert net[0].weight.grad is not None


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("warm", [True, False])
def test_a_number_that_changes_before_a_compiled_backward_is_noticed_and_a_counter_does_no_harm(warm):
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.scale, self.calls = linear(), 1.0, 0

        def forward(self, t, x, theta):
            return self.scale * self.net(x)

    field, x0 = Field(), torch.ones(3, 2, dtype=DOUBLE)

    def solve():
        return ncode.solve(field, x0, 0.0, 1.0, compile="inductor", **STEPS)

    if warm:
        solve().x.sum().backward()
    sol = solve()
    field.calls += 1
    sol.x.sum().backward()
    sol = solve()
    field.scale = 1.001
    with pytest.raises(InputError, match="not the function that they were"):
        sol.x.sum().backward()
