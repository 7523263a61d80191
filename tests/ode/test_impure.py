"""Dynamics that are no pure function of (t, x, theta): handled, or refused before a wrong number can come of it."""

import numpy as np
import pytest
import torch
from torch import nn

import ncode
from ncode import InputError

from .systems import DOUBLE, GRADIENTS, close, double

MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)
RATES = double(1.0, 100.0, 1.0, 1.0, 50.0, 3.0, 0.1, 0.2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("trained", [True, False])
def test_dynamics_that_change_x_are_refused_and_x0_stays(mode, trained):
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)).requires_grad_(trained)
    x0 = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    kept = x0.clone()
    with mode(), pytest.raises(InputError, match="in place"):
        ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0)
    assert torch.equal(x0, kept)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("change", [lambda x: x.data.mul_(0.9), lambda x: np.multiply(x.numpy(), 0.9, out=x.numpy())])
def test_a_change_of_x_that_no_counter_shows_is_refused_and_x0_stays(mode, change):
    def dynamics(t, x, theta):
        change(x.detach())
        return -x

    x0 = torch.ones(3, 2)
    with mode(), pytest.raises(InputError, match="in place"):
        ncode.solve(dynamics, x0, 0.0, 1.0)
    assert torch.equal(x0, torch.ones(3, 2))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize(
    "function", [lambda t, x, theta: x.sub_(2)[:, 0], lambda t, x, theta: x.detach().sub_(2)[:, 0]]
)
def test_an_event_that_changes_x_is_refused(mode, function):
    with mode(), pytest.raises(InputError, match="function of an Event changed"):
        ncode.solve(lambda t, x, theta: -x, torch.ones(3, 2), 0.0, 1.0, events=ncode.Event(function))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("mode", MODES)
def test_an_event_that_autograd_cannot_follow_is_refused(mode):
    buffer = torch.empty(3)
    ways = (lambda x: torch.sub(x[:, 0], 0.5, out=buffer), lambda x: torch.from_numpy(x.numpy()[:, 0] - 0.5))
    for way in ways:
        event = ncode.Event(lambda t, x, theta, way=way: way(x))
        with mode(), pytest.raises(InputError, match="by operations of torch"):
            ncode.solve(lambda t, x, theta: -x, torch.ones(3, 2), 0.0, 1.0, events=event)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5", "dopri5"])
def test_numpy_on_what_requires_a_gradient_is_refused(mode, method):
    def dynamics(t, x, theta):
        return torch.from_numpy(-x.numpy())

    if mode is not torch.enable_grad and method == "dopri5":
        with mode():
            assert ncode.solve(dynamics, torch.ones(3, 1), 0.0, 1.0, method=method).ok.all()
        return
    with mode(), pytest.raises(InputError, match="in operations of torch"):
        ncode.solve(dynamics, torch.ones(3, 1), 0.0, 1.0, method=method)


@pytest.mark.parametrize("mode", MODES)
def test_dynamics_that_change_theta_are_refused_and_theta_stays(mode):
    theta = torch.ones(3, 2)
    with mode(), pytest.raises(InputError, match="in place"):
        ncode.solve(lambda t, x, theta: theta.mul_(2) * x, torch.ones(3, 2), 0.0, 1.0, theta=theta)
    assert torch.equal(theta, torch.ones(3, 2))


@pytest.mark.parametrize("mode", MODES)
def test_dynamics_that_change_t_are_refused(mode):
    with mode(), pytest.raises(InputError, match="in place"):
        ncode.solve(lambda t, x, theta: -t.detach().add_(1)[:, None] * x, torch.ones(3, 2), 0.0, 1.0)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.25}])
def test_a_change_in_place_at_a_later_time_is_refused(gradient, options):
    def dynamics(t, x, theta):
        return -x if float(t.detach().max()) < 0.3 else x.detach().neg_()

    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), pytest.raises(InputError, match="in place"):
            ncode.solve(dynamics, torch.ones(3, 2), 0.0, 1.0, gradient=gradient, **options)


@pytest.mark.parametrize("method", ["midpoint", "rk4", "dopri5"])
def test_an_output_that_is_written_again_is_refused(method):
    buffer = torch.empty(3, 1)
    with torch.no_grad(), pytest.raises(InputError, match="had returned before"):
        ncode.solve(lambda t, x, theta: torch.mul(x, -1, out=buffer), torch.ones(3, 1), 0.0, 1.0, method=method, dt=0.1)


def through_numpy(size):
    """Dynamics that write -x into one array, each time."""
    memory = np.empty((size, 1), np.float32)
    shared = torch.from_numpy(memory)

    def dynamics(t, x, theta):
        np.multiply(x.detach().numpy(), -1, out=memory[: len(x)])
        return shared if len(x) == size else shared[: len(x)]

    return dynamics


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.1}, {"method": "midpoint", "step": "batch"}])
def test_an_output_that_is_written_again_through_numpy_is_refused(mode, size, options):
    with mode(), pytest.raises(InputError, match="had returned before"):
        ncode.solve(through_numpy(size), torch.ones(size, 1), 0.0, 1.0, **options)


def test_one_evaluation_per_step_may_write_its_output_again_through_numpy():
    x0 = torch.ones(3, 1)
    sol = ncode.solve(through_numpy(3), x0, 0.0, 1.0, method="euler", dt=0.125)
    close(sol.x, x0 * 0.875**8, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.1}])
def test_a_constant_that_is_returned_each_time_is_no_output_that_is_written_again(options):
    slope, x0 = double(1.0, 2.0, torch.nan), double(1.0, 1.0, 1.0)
    sol = ncode.solve(lambda t, x, theta: slope, x0, 0.0, 1.0, throw=False, **options)
    close(sol.x, x0 + slope, equal_nan=True)


def test_an_output_that_is_given_is_refused_where_autograd_cannot_follow_it():
    buffer = torch.empty(3, 1)
    with pytest.raises(InputError, match="return a new tensor"):
        ncode.solve(lambda t, x, theta: torch.mul(x, -1, out=buffer), torch.ones(3, 1), 0.0, 1.0)


@pytest.mark.parametrize("compile", [True, "inductor", "kernel"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("write", [lambda x, to: torch.mul(x, -1, out=to), lambda x, to: to.copy_(-x)])
def test_an_output_that_is_written_again_is_refused_by_compilers(compile, size, write):
    buffer = torch.empty(size, 1, dtype=DOUBLE)
    with torch.no_grad(), pytest.raises(InputError, match="had returned before"):
        ncode.solve(lambda t, x, theta: write(x, buffer), torch.ones_like(buffer), 0.0, 1.0, compile=compile)


@pytest.mark.parametrize("compile", [True, "inductor"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "function",
    [
        lambda t, x, theta: torch.from_numpy(-x.numpy()),
        lambda t, x, theta: -x * torch.as_tensor(np.abs(np.asarray(x))),
    ],
)
def test_numpy_inside_of_compiled_dynamics_is_refused(compile, size, function):
    x0 = torch.ones(size, 1, dtype=DOUBLE)
    with torch.no_grad():
        with pytest.raises(InputError, match="cannot read the value of a tensor"):
            ncode.solve(function, x0, 0.0, 1.0, compile=compile)
        assert ncode.solve(function, x0, 0.0, 1.0).ok.all()


def test_one_evaluation_per_step_may_write_its_output_again():
    buffer, x0 = torch.empty(3, 1, dtype=DOUBLE), double(1.0, 2.0, 3.0)
    with torch.no_grad():
        sol = ncode.solve(lambda t, x, theta: torch.mul(x, -1, out=buffer), x0, 0.0, 1.0, method="euler", dt=0.125)
    close(sol.x, x0 * 0.875**8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda k: k[:1], "shape"),
        (lambda k: k.sum(), "shape"),
        (lambda k: k.double(), "float64"),
        (lambda k: k + 0j, "complex"),
        (lambda k: k[..., None], "shape"),
        (lambda k: None, "NoneType"),
    ],
)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_what_dynamics_return_is_checked_at_every_evaluation(change, words, gradient):
    calls = []

    def dynamics(t, x, theta):
        calls.append(t)
        return -x if len(calls) < 5 else change(-x)

    with pytest.raises(InputError, match=words):
        ncode.solve(dynamics, torch.ones(3, 2), 0.0, 1.0, gradient=gradient)


# Dynamics that know their samples by position.


def rows_of_a_longer_table(x):
    return torch.cat([RATES, torch.zeros(92, 1, dtype=DOUBLE)])[: len(x)]


def rows_made_inside(x):
    return RATES.clone()


def rows_in_a_loop(x):
    numbers = RATES[:, 0].tolist()
    return torch.stack([torch.full_like(row, numbers[i]) for i, row in enumerate(x)])


@pytest.mark.parametrize("rates", [rows_of_a_longer_table, rows_made_inside, rows_in_a_loop])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("options", [{}, {"method": "dopri8"}, {"checkpoint_every": 3}])
def test_dynamics_may_know_their_samples_by_position(rates, gradient, options):
    x0 = torch.ones(8, 1, dtype=DOUBLE, requires_grad=True)
    tight = {"rtol": 1e-8, "atol": 1e-8}
    sol = ncode.solve(lambda t, x, theta: -rates(x) * x, x0, 0.0, 1.0, gradient=gradient, **tight, **options)
    close(sol.x, torch.exp(-RATES), atol=1e-6, rtol=1e-6)
    if gradient != "adjoint":  # its reverse, exp(100 t), has no right digits here
        (grad,) = torch.autograd.grad(sol.x.sum(), x0)
        close(grad, torch.exp(-RATES), atol=1e-6, rtol=1e-6)


def test_samples_that_finish_are_still_left_out_where_positions_do_not_matter():
    sizes = []

    def dynamics(t, x, theta):
        sizes.append(len(x))
        return -theta * x

    ncode.solve(dynamics, torch.ones(8, 1, dtype=DOUBLE), 0.0, 1.0, theta=RATES, rtol=1e-8, atol=1e-8)
    assert sizes[-1] < 8


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_failed_sample_of_a_batch_that_stays_whole_spoils_no_shared_gradient(gradient):
    weight = torch.tensor([1.0, 2.0], dtype=DOUBLE, requires_grad=True)
    rows = double(0.0, 1.0)

    def dynamics(t, x, theta):
        return torch.tanh(weight + 0 * x) + rows * torch.exp(1e3 * torch.where(rows > 0, x, 0.0).abs())

    x0 = torch.tensor([[1.5, -0.3], [-2.1, 0.5]], dtype=DOUBLE)
    sol = ncode.solve(dynamics, x0, 0.0, 1.0, method="midpoint", throw=False, gradient=gradient)
    assert sol.ok.tolist() == [True, False]
    sol.x[:1].sum().backward()
    close(weight.grad, 1 - torch.tanh(weight.detach()) ** 2)


# Errors of the dynamics themselves.


def test_an_error_inside_of_the_dynamics_says_what_they_were_given():
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        ncode.solve(lambda t, x, theta: x @ torch.ones(4, 3), torch.ones(3, 2), 0.0, 1.0)
    assert caught.value.__notes__ == ["solve called the dynamics with t of shape (3,) and x of shape (3, 2)"]


def test_an_error_that_passes_by_itself_is_not_blamed_on_the_shape_of_time():
    calls = []

    def field(t, x, theta):
        calls.append(t.shape)
        if len(calls) == 1:
            raise RuntimeError("once")
        return -x

    with pytest.raises(RuntimeError, match="once"):
        ncode.solve(field, torch.ones(3, 2), 0.0, 1.0)
