"""compile="inductor" gives what eager gives, and compiles once for a shape.

Only the tests marked `compiled by TorchInductor` pay for a C++ compiler. The others run the traced graphs as they are,
which is where all but rounding could go wrong.
"""

import math
import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import ncode
from ncode.ode.backends import graph

from .systems import DOUBLE, GRADIENTS, Everything, close, decay, double, explode, gradients

# tests/block/test_modules.py has a fast test of a compiled solve.
pytestmark = pytest.mark.slow

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def both(solve, inputs, loss):
    """Values and gradients, eager and compiled."""
    results = []
    for compile in (False, "inductor"):
        sol = solve(compile)
        found = loss(sol)
        results.append((found.detach(), gradients(found, inputs)))
    return results


@pytest.mark.parametrize(
    ("feedback", "options"),
    [
        (True, {}),
        (False, {"dt": 0.13, "method": "rk4"}),
        (False, {"method": "heun", "rtol": 1e-2}),
        (False, {"checkpoint_every": 3}),
    ],
)
@pytest.mark.usefixtures("traced")
def test_compiled_equals_eager_for_everything(feedback, options):
    system = Everything(batch=4, feedback=feedback)
    eager, fast = both(
        lambda compile: ncode.solve(**system.arguments(), **options, compile=compile), system.inputs, system.loss
    )
    close(fast, eager, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("compile", ["inductor", True])
@pytest.mark.usefixtures("traced")
def test_threads_that_compile_at_once_do_not_disturb_each_other(compile):
    errors = []

    def work(size):
        net, x0 = nn.Linear(2, 2, dtype=DOUBLE), torch.ones(size, 2, dtype=DOUBLE)
        try:
            found = [
                ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, method="rk4", dt=0.25, compile=it)
                for it in (compile, False)
            ]
            grads = [torch.autograd.grad(sol.x.sum(), net.weight) for sol in found]
            close(found[0].x, found[1].x)
            close(grads[0], grads[1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(size,)) for size in range(3, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("gradient", ["adjoint", "autograd"])
@pytest.mark.usefixtures("traced")
def test_compiled_equals_eager_with_every_gradient(gradient):
    system = Everything(batch=4)
    eager, fast = both(
        lambda compile: ncode.solve(**system.arguments(), gradient=gradient, compile=compile),
        system.inputs,
        system.loss,
    )
    close(fast, eager, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("traced")
def test_compiled_equals_eager_where_one_step_serves_the_batch():
    x0 = torch.randn(5, 2, dtype=DOUBLE).requires_grad_()
    eager, fast = both(
        lambda compile: ncode.solve(lambda t, x, theta: x.sin(), x0, 1.0, -1.0, step="batch", compile=compile),
        {"x0": x0},
        lambda sol: sol.x.square().sum(),
    )
    close(fast, eager)


@pytest.mark.usefixtures("traced")
def test_compiled_equals_eager_where_samples_take_very_different_numbers_of_steps():
    """Forty samples, of which one needs most of the steps: the batch shrinks on the way, forward and backward."""
    rates = torch.ones(40, 1, dtype=DOUBLE)
    rates[7] = 60.0
    x0 = torch.randn(40, 2, dtype=DOUBLE).requires_grad_()

    def field(t, x, theta):
        return theta * torch.stack([x[:, 1], -x[:, 0]], 1)

    def solve(compile):
        return ncode.solve(field, x0, 0.0, 3.0, theta=rates, save_at=[0.5, 3.0], compile=compile)

    def loss(sol):
        return sol.x.sin().sum() + sol.xs.square().sum()

    eager, fast = both(solve, {"x0": x0}, loss)
    close(fast, eager, rtol=1e-8)
    for name in ("nfe", "steps", "rejected"):
        assert torch.equal(getattr(solve(True).stats, name), getattr(solve(False).stats, name))


@pytest.mark.usefixtures("traced")
def test_dense_output_of_a_compiled_solve_is_that_of_an_eager_one():
    x0 = torch.randn(4, 2, dtype=DOUBLE).requires_grad_()
    ts = torch.linspace(0, 2, 9, dtype=DOUBLE)
    eager, fast = both(
        lambda compile: ncode.solve(
            lambda t, x, theta: x.cos() * t[:, None], x0, 0.0, 2.0, dense=True, compile=compile
        ),
        {"x0": x0},
        lambda sol: sol(ts).square().sum() + sol.x.sum(),
    )
    close(fast, eager)


@pytest.mark.usefixtures("traced")
def test_failures_of_a_compiled_solve_are_those_of_an_eager_one():
    x0 = double(2.0, 0.5, 1e200).requires_grad_()
    for dt in (None, 0.1):
        eager, fast = (
            ncode.solve(explode, x0, 0.0, 1.0, dt=dt, throw=False, compile=compile) for compile in (False, "inductor")
        )
        assert fast.status == eager.status
        close(fast.x, eager.x, equal_nan=True)
        close(*(torch.autograd.grad(sol.x[1].sum(), x0)[0] for sol in (fast, eager)))
    with pytest.raises(ncode.SolveError, match="sample 0"):
        ncode.solve(explode, x0, 0.0, 1.0, compile="inductor")


def test_a_shape_is_compiled_once(traced):
    net = nn.Linear(2, 2, dtype=DOUBLE)

    def use(batch):
        x0 = torch.randn(batch, 2, dtype=DOUBLE)
        sol = ncode.solve(lambda t, x, theta: torch.tanh(net(x)), x0, 0.0, 1.0, compile="inductor")
        sol.x.sum().backward()

    use(4)
    first = len(traced)
    assert first > 0
    for _ in range(3):
        use(4)  # a fresh lambda each time
    assert len(traced) == first
    use(5)
    second = len(traced)
    assert second > first
    use(4)
    use(5)
    assert len(traced) == second


def test_fresh_closures_over_fresh_tensors_are_compiled_once_and_use_the_fresh_tensors(traced):
    def use(rate):
        rate = torch.tensor(rate, dtype=DOUBLE, requires_grad=True)
        sol = ncode.solve(lambda t, x, theta: rate * x, double(1.0), 0.0, 1.0, compile="inductor", **TIGHT)
        return sol.x.item(), torch.autograd.grad(sol.x.sum(), rate)[0].item()

    counts = []
    for rate in (-1.0, 0.5, 2.0):
        close(use(rate), (math.exp(rate),) * 2, rtol=1e-6)
        counts.append(len(traced))
    assert counts[0] == counts[-1]


def test_another_tolerance_or_method_is_another_graph(traced):
    """What is part of a graph must be part of what it is recognised by."""
    x0 = double(1.0, 2.0)
    for options in (
        {"rtol": 1e-3},
        {"rtol": 1e-8},
        {"method": "tsit5"},
        {"max_steps": 3},
        {"step_rule": ncode.PID(p=0.3)},
        {"step": "batch"},
    ):
        eager, fast = (ncode.solve(decay, x0, 0.0, 5.0, **options, throw=False, compile=c) for c in (False, "inductor"))
        close(fast.x, eager.x, equal_nan=True)
        assert torch.equal(fast.stats.steps, eager.stats.steps)


@pytest.mark.usefixtures("traced")
def test_a_number_caught_in_a_closure_is_heeded_when_it_changes():
    def use(rate):
        return ncode.solve(
            lambda t, x, theta: rate * x, double(1.0), 0.0, 1.0, compile="inductor", rtol=1e-9, atol=1e-9
        ).x.item()

    for rate in (-1.0, 0.5, -1.0, True, 2):
        close(use(rate), math.exp(rate), rtol=1e-6)


@pytest.mark.usefixtures("traced")
def test_train_and_eval_mode_are_heeded():
    class Net(nn.Module):
        def forward(self, t, x, theta):
            return -x if self.training else x

    net = Net()
    for mode, rate in ((True, -1), (False, 1), (True, -1)):
        net.train(mode)
        close(
            ncode.solve(net, double(1.0), 0.0, 1.0, compile="inductor", **TIGHT).x.item(),
            math.exp(rate),
            rtol=1e-6,
        )


@pytest.mark.usefixtures("traced")
def test_parameters_that_change_in_place_or_are_replaced_are_followed():
    net = nn.Linear(2, 2, dtype=DOUBLE)
    x0 = torch.randn(4, 2, dtype=DOUBLE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

    def compare():
        results = both(
            lambda compile: ncode.solve(lambda t, x, theta: torch.tanh(net(x)), x0, 0.0, 1.0, compile=compile),
            dict(net.named_parameters()),
            lambda sol: sol.x.square().sum(),
        )
        close(results[1], results[0])
        return results[1][0]

    losses = [compare()]
    for _ in range(2):
        optimizer.zero_grad()
        ncode.solve(
            lambda t, x, theta: torch.tanh(net(x)), x0, 0.0, 1.0, compile="inductor"
        ).x.square().sum().backward()
        optimizer.step()
        losses.append(compare())
    net.weight = nn.Parameter(torch.randn(2, 2, dtype=DOUBLE))
    losses.append(compare())
    assert len({loss.item() for loss in losses}) == 4


@pytest.mark.usefixtures("traced")
def test_tensors_of_one_shape_are_not_confused_when_another_of_them_is_trained():
    """Which tensors want a gradient changes from call to call; what they are to the dynamics does not."""
    w, b = (torch.tensor(value, dtype=DOUBLE) for value in (-1.0, 3.0))

    def use(compile):
        return ncode.solve(lambda t, x, theta: w * x + b, double(1.0, 2.0), 0.0, 1.0, compile=compile)

    for trained in ((w,), (b,), (w, b), (), (b,)):
        for tensor in (w, b):
            tensor.requires_grad_(any(tensor is it for it in trained))
        eager, fast = use(False).x, use(True).x
        close(fast, eager)
        if trained:
            close(torch.autograd.grad(fast.sum(), trained), torch.autograd.grad(eager.sum(), trained))
    w.requires_grad_(False)
    b.requires_grad_(True)
    close(use(True).x, use(False).x)
    with torch.no_grad():
        close(use(True).x, use(False).x)


def test_a_code_caught_together_with_the_net_that_made_it_is_compiled_once(traced):
    net = nn.Linear(2, 2, dtype=DOUBLE)
    counts = []
    for _ in range(3):
        x0 = torch.randn(3, 2, dtype=DOUBLE).requires_grad_()

        def solve(compile, x0=x0):
            code = net(x0)
            return ncode.solve(lambda t, x, theta: torch.tanh(net(x)) * code, x0, 0.0, 1.0, compile=compile)

        eager, fast = both(solve, {"x0": x0, **dict(net.named_parameters())}, lambda sol: sol.x.square().sum())
        close(fast, eager)
        counts.append(len(traced))
    assert counts[0] == counts[-1] > 0


@pytest.mark.usefixtures("traced")
def test_a_function_that_knows_itself_can_be_compiled():
    def field(t, x, theta):
        field.calls += 1
        return -x

    field.calls = 0
    close(ncode.solve(field, double(1.0), 0.0, 1.0, compile="inductor", **TIGHT).x.item(), math.exp(-1), rtol=1e-6)
    assert field.calls > 0


@pytest.mark.usefixtures("traced")
def test_two_modules_of_one_class_are_two_systems():
    x0 = torch.randn(3, 2, dtype=DOUBLE)
    nets = [nn.Linear(2, 2, dtype=DOUBLE) for _ in range(2)]
    for net in nets * 2:
        eager, fast = (
            ncode.solve(lambda t, x, theta, f=net: f(x), x0, 0.0, 1.0, compile=c).x for c in (False, "inductor")
        )
        close(fast, eager)


@pytest.mark.usefixtures("traced")
def test_a_choice_that_depends_on_values_cannot_be_traced_and_is_refused():
    """Traced once, it would be made once and for all."""

    def field(t, x, theta):
        return -x if bool((t > 0.5).any()) else x

    for gradient in GRADIENTS:
        with pytest.raises(ncode.InputError, match="read the value of a tensor"):
            ncode.solve(field, double(1.0), 0.0, 1.0, compile="inductor", gradient=gradient)


@pytest.mark.usefixtures("traced")
def test_what_bad_input_gets_does_not_depend_on_compiling():
    with pytest.raises(ncode.InputError, match="the dynamics returned shape"):
        ncode.solve(lambda t, x, theta: x[:, 0], double(1.0), 0.0, 1.0, compile="inductor")
    empty = ncode.solve(decay, torch.zeros(0, 2), 0.0, 1.0, compile="inductor")
    assert empty.x.shape == (0, 2)
    still = ncode.solve(decay, double(1.0), 0.0, 0.0, compile="inductor")
    close(still.x, double(1.0))


@pytest.mark.usefixtures("traced")
def test_a_compiled_solve_may_run_under_autocast():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    x0 = torch.randn(5, 2)

    def grads(compile):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            sol = ncode.solve(lambda t, x, theta: net(x).float(), x0, 0.0, 1.0, dt=0.1, compile=compile)
        return torch.autograd.grad(sol.x.sum(), list(net.parameters()))

    for got, expected in zip(grads(True), grads(False), strict=True):
        assert float((got - expected).norm() / expected.norm()) < 0.02


@pytest.mark.usefixtures("traced")
def test_a_compiled_solve_may_stand_inside_of_activation_checkpointing():
    net = nn.Linear(2, 2, dtype=DOUBLE)
    x0 = torch.randn(3, 2, dtype=DOUBLE).requires_grad_()

    def block(x):
        return ncode.solve(lambda t, x, theta: net(x).sin(), x, 0.0, 1.0, compile="inductor").x.square()

    inputs = [x0, *net.parameters()]
    values = [block(x0), checkpoint(block, x0, use_reentrant=False)]
    close(*(torch.autograd.grad(value.sum(), inputs) for value in values))


@pytest.mark.parametrize("kind", ["tensor", "parameter"])
@pytest.mark.usefixtures("traced")
def test_a_tensor_with_a_row_a_sample_can_be_compiled(kind):
    rates = torch.ones(20, 1, dtype=DOUBLE)
    rates[3] = 40.0
    rates = nn.Parameter(rates) if kind == "parameter" else rates.requires_grad_()
    x0 = torch.randn(20, 2, dtype=DOUBLE)
    eager, fast = both(
        lambda compile: ncode.solve(
            lambda t, x, theta: rates * torch.stack([x[:, 1], -x[:, 0]], 1), x0, 0.0, 2.0, compile=compile
        ),
        {"rates": rates},
        lambda sol: sol.x.square().sum() + sol.x.sum(),
    )
    close(fast, eager, rtol=1e-8)


@pytest.mark.parametrize(
    ("place", "name", "values"),
    [
        (torch.backends.cudnn, "allow_tf32", (True, False)),
        (torch.backends.cuda.matmul, "allow_tf32", (False, True)),
        (torch.backends.cudnn, "deterministic", (False, True)),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", (True, False)),
    ],
)
def test_a_graph_is_not_used_under_other_settings_of_precision(traced, place, name, values):
    """It was compiled, or recorded, with what the settings chose then."""
    before, counts = getattr(place, name), []
    try:
        for value in (*values, *values):
            setattr(place, name, value)
            ncode.solve(decay, double(1.0, 2.0), 0.0, 1.0, compile="inductor")
            counts.append(len(traced))
    finally:
        setattr(place, name, before)
    assert 0 < counts[0] < counts[1] == counts[2] == counts[3]


def test_a_graph_is_not_used_where_algorithms_must_be_deterministic(traced):
    counts = []
    try:
        for wanted in (False, True, False):
            torch.use_deterministic_algorithms(wanted)
            ncode.solve(decay, double(1.0, 2.0), 0.0, 1.0, compile="inductor")
            counts.append(len(traced))
    finally:
        torch.use_deterministic_algorithms(False)
    assert 0 < counts[0] < counts[1] == counts[2]


@pytest.mark.usefixtures("traced")
def test_a_backward_graph_made_for_autocast_does_not_serve_a_solve_without():
    """Backward runs outside of the autocast region that its forward ran in."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    x0 = torch.randn(5, 2)

    def grads(enabled, compile):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            sol = ncode.solve(lambda t, x, theta: net(x).float(), x0, 0.0, 1.0, dt=0.1, compile=compile)
        return torch.autograd.grad(sol.x.sum(), list(net.parameters()))

    coarse = grads(True, True)
    close(grads(False, True), grads(False, False), rtol=1e-4, atol=1e-5)
    assert not torch.equal(coarse[0], grads(False, True)[0])


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("width", [2, 600])
def test_a_compiled_solve_that_goes_nowhere_returns_a_copy(width):
    x0 = torch.ones(3, width, dtype=DOUBLE)
    sol = ncode.solve(decay, x0, 1.0, 1.0, compile="inductor")
    sol.x.zero_()
    assert bool((x0 == 1).all())


class Outside(TorchDispatchMode):
    """Counts operations, without views and without those of a graph that says so."""

    count, within = 0, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not self.within and not func.is_view:
            self.count += 1
        return result


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("options", [{}, {"dt": 0.1, "method": "rk4"}, {"step": "batch"}])
def test_little_is_left_outside_of_the_graphs(monkeypatch, options):
    """On a GPU with a slow host every operation costs as much as a launch, however small it is."""
    seen = Outside()
    call = graph.CompiledFunction.__call__

    def quietly(self, *given):
        seen.within = True
        try:
            return call(self, *given)
        finally:
            seen.within = False

    monkeypatch.setattr(graph.CompiledFunction, "__call__", quietly)
    theta = torch.randn(4, 2, 2, dtype=DOUBLE).requires_grad_()
    x0 = torch.ones(4, 2, dtype=DOUBLE).requires_grad_()

    def field(t, x, theta):
        return torch.tanh(theta @ x[..., None])[..., 0]

    def solve():
        return ncode.solve(field, x0, 0.0, 1.0, theta=theta, compile="inductor", **options)

    solve().x.sum().backward()
    with seen:
        sol = solve()
    loss = sol.x.sum()
    only_on_a_cpu = 4  # copies of x and theta, and their comparison
    assert 0 < seen.count - only_on_a_cpu < 40
    if len({*sol.stats.steps.tolist()}) == 1:  # where samples differ, their steps are sorted first
        seen.count = 0
        with seen:
            loss.backward()
        assert 0 < seen.count < 25


# Compiled by TorchInductor


def test_a_solve_compiled_by_inductor_equals_an_eager_one():
    net = nn.Sequential(nn.Linear(2, 8, dtype=DOUBLE), nn.Tanh(), nn.Linear(8, 2, dtype=DOUBLE))
    x0, theta = (torch.randn(4, 2, dtype=DOUBLE).requires_grad_() for _ in range(2))
    inputs = {"x0": x0, "theta": theta, **dict(net.named_parameters())}

    def solve(compile):
        return ncode.solve(
            lambda t, x, theta: net(x) * theta + t[:, None],
            x0,
            0.0,
            1.0,
            theta=theta,
            cost=lambda t, x, theta: x.square().sum(1),
            compile=compile,
        )

    for _ in range(2):  # the second time with what was compiled, for other values
        eager, fast = both(solve, inputs, lambda sol: sol.x.sin().sum() + sol.cost.sum())
        close(fast, eager, rtol=1e-9, atol=1e-11)
        with torch.no_grad():
            for tensor in inputs.values():
                tensor.mul_(1.1)


def test_a_cost_of_complex_states_is_compiled(traced):
    """Its gradient views pairs of numbers as complex ones, which must lie side by side in memory."""
    x0 = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128, requires_grad=True)
    weight = torch.tensor([2 - 1j, 1 + 1j], dtype=torch.complex128, requires_grad=True)

    def cost(t, x, theta):
        return (x * x.conj()).real.reshape(len(x), -1).mean(1) * weight.real.mean()

    found = []
    for compile in (False, True):
        sol = ncode.solve(lambda t, x, theta: 1j * x, x0, 0.0, 1.0, cost=cost, compile=compile)
        found.append(torch.autograd.grad(sol.cost.sum() + sol.x.abs().sum(), [x0, weight]))
    torch.testing.assert_close(*found)


def test_inductor_keeps_compiled_graphs_on_disk_for_later_processes():
    def counts():
        return {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("bypass", "hit", "miss")}

    before = counts()
    sol = ncode.solve(lambda t, x, theta: -1.25 * x, torch.ones(3, 2), 0.0, 1.0, compile="inductor")
    after = counts()
    assert float(sol.x[0, 0]) == pytest.approx(math.exp(-1.25), abs=1e-3)
    assert after["bypass"] == before["bypass"]
    assert after["hit"] + after["miss"] > before["hit"] + before["miss"]
