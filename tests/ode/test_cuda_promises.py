"""The solver's promises on a GPU, one by one: memory, waits, failures, autocast. `test_cuda.py` is the short form."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import ncode
from ncode.ode import backends, integrate

from .systems import DOUBLE, GRADIENTS, Everything, close, double, explode, gradients

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch.compile and the profiler import parts of torch that torch itself has deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# Calls of the CUDA runtime in which the CPU waits for the GPU.
WAITS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"}


def everything(device, **options):
    """Values and gradients of a system in which everything wants a gradient."""
    system = Everything(batch=6)
    for name in ("leaf", "root", "x0", "t0", "t1", "save_at"):
        setattr(system, name, getattr(system, name).detach().to(device).requires_grad_())
    system.to(device)
    sol = ncode.solve(**system.arguments(), **options)
    loss = system.loss(sol)
    found = gradients(loss, system.inputs)
    return loss.item(), {name: grad.cpu() for name, grad in found.items()}, sol.stats.steps.cpu()


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("options", [{}, {"dt": 0.13, "method": "rk4"}, {"checkpoint_every": 3}])
def test_a_gpu_gives_what_a_cpu_gives(gradient, options):
    close(everything("cuda", gradient=gradient, **options), everything("cpu", gradient=gradient, **options), rtol=1e-7)


@pytest.mark.parametrize("options", [{}, {"dt": 0.13, "method": "rk4"}, {"checkpoint_every": 3}, {"method": "dopri8"}])
def test_compiled_equals_eager_on_a_gpu(options):
    expected = everything("cuda", **options)
    for _ in range(2):
        close(everything("cuda", compile=True, **options), expected, rtol=1e-7, atol=1e-9)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)).to("cuda", DOUBLE)


def grads(net, x0, **options):
    x0 = x0.detach().clone().requires_grad_()
    sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, rtol=1e-6, **options)
    found = torch.autograd.grad(sol.x.square().sum(), [x0, *net.parameters()])
    return sol.x.detach(), found


def test_a_compiled_solve_follows_new_inputs_and_parameters_that_change_in_place():
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        x0 = torch.randn(16, 4, device="cuda", dtype=DOUBLE)
        eager, fast = grads(net, x0), grads(net, x0, compile=True)
        close(fast, eager, rtol=1e-8, atol=1e-10)
        optimizer.zero_grad()
        ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, compile=True).x.square().mean().backward()
        optimizer.step()


def test_a_compiled_solve_follows_parameters_that_are_replaced():
    net = mlp()
    x0 = torch.randn(16, 4, device="cuda", dtype=DOUBLE)
    first = grads(net, x0, compile=True)
    net[0].weight = nn.Parameter(torch.randn_like(net[0].weight))
    close(grads(net, x0, compile=True), grads(net, x0), rtol=1e-8, atol=1e-10)
    assert not torch.allclose(first[0], grads(net, x0, compile=True)[0])


def test_a_compiled_solve_follows_tensors_of_a_closure():
    x0 = torch.ones(8, 1, device="cuda", dtype=DOUBLE)
    for value in (-1.0, 0.5, -2.0):
        rate = torch.tensor(value, device="cuda", dtype=DOUBLE, requires_grad=True)
        sol = ncode.solve(lambda t, x, theta, w=rate: w * x, x0, 0.0, 1.0, compile=True, rtol=1e-9, atol=1e-9)
        close(sol.x, torch.full_like(x0, value).exp(), rtol=1e-6)
        close(torch.autograd.grad(sol.x.sum(), rate)[0], 8 * rate.detach().exp(), rtol=1e-6)


def test_results_of_one_compiled_solve_are_not_changed_by_the_next():
    """A recorded graph writes to the same memory again: what was returned must not live there."""
    net = mlp()
    first_x0, second_x0 = torch.randn(2, 16, 4, device="cuda", dtype=DOUBLE)
    first_x0.requires_grad_()
    first = ncode.solve(lambda t, x, theta: net(x), first_x0, 0.0, 1.0, save_at=[0.5], compile=True)
    kept = first.x.detach().clone(), first.xs.detach().clone()
    second = ncode.solve(lambda t, x, theta: net(x), second_x0, 0.0, 1.0, save_at=[0.5], compile=True)
    second.x.sum().backward()
    close((first.x.detach(), first.xs.detach()), kept)
    # The backward pass of the first still finds its own steps.
    (got,) = torch.autograd.grad(first.x.sum() + first.xs.sum(), first_x0)
    eager = ncode.solve(lambda t, x, theta: net(x), first_x0, 0.0, 1.0, save_at=[0.5])
    close(got, torch.autograd.grad(eager.x.sum() + eager.xs.sum(), first_x0)[0], rtol=1e-8)


@pytest.mark.parametrize("compile", [False, True])
def test_samples_that_take_very_different_numbers_of_steps_are_solved_as_on_a_cpu(compile):
    rates = torch.ones(40, 1, dtype=DOUBLE)
    rates[7] = 60.0
    start = torch.randn(40, 2, dtype=DOUBLE)

    def run(device):
        x0, theta = start.to(device).requires_grad_(), rates.to(device).requires_grad_()
        sol = ncode.solve(
            lambda t, x, theta: theta * torch.stack([x[:, 1], -x[:, 0]], 1),
            x0,
            0.0,
            3.0,
            theta=theta,
            save_at=[0.5, 3.0],
            compile=compile and device == "cuda",
        )
        found = torch.autograd.grad(sol.x.sin().sum() + sol.xs.square().sum(), [x0, theta])
        return sol.x.detach().cpu(), [grad.cpu() for grad in found], sol.stats.steps.cpu(), sol.stats.nfe.cpu()

    close(run("cuda"), run("cpu"), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("compile", [False, True])
def test_failures_are_those_of_a_cpu(compile):
    results = []
    for device in ("cpu", "cuda"):
        x0 = double(2.0, 0.5, 0.1).to(device).requires_grad_()
        options = {"throw": False, "compile": compile and device == "cuda", "save_at": [0.25, 1.0]}
        sol = ncode.solve(explode, x0, 0.0, 1.0, **options)
        (grad,) = torch.autograd.grad(sol.x[1:].sum(), x0)
        results.append((sol.x.detach().cpu(), sol.xs.detach().cpu(), grad.cpu(), sol.codes.cpu()))
    close(*results, rtol=1e-8, equal_nan=True)
    with pytest.raises(ncode.SolveError, match="sample 0"):
        ncode.solve(explode, x0, 0.0, 1.0, compile=compile)


def waits(steps, *, adaptive, backward, compile):
    """How often the CPU waited for the GPU in a solve of about so many steps, and how many attempts it made."""
    net = mlp()
    x0 = torch.randn(16, 4, device="cuda", dtype=DOUBLE)

    def run():
        sol = ncode.solve(
            lambda t, x, theta: net(x) + (20 * t).sin()[:, None],
            x0,
            0.0,
            steps / 20 if adaptive else 1.0,
            dt=None if adaptive else 1 / steps,
            rtol=1e-6,
            compile=compile,
        )
        if backward:
            sol.x.sum().backward()
        return sol

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as prof:
        sol = run()
    calls = sum(event.count for event in prof.key_averages() if event.key in WAITS)
    return calls, int((sol.stats.steps + sol.stats.rejected).max())


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_fixed_steps_do_not_wait_for_the_gpu(backward, compile):
    few, many = (waits(n, adaptive=False, backward=backward, compile=compile)[0] for n in (10, 60))
    assert many - few <= 2


@pytest.mark.parametrize("compile", [False, True])
def test_an_adaptive_loop_waits_only_for_the_attempt_before(compile):
    """The count of the living travels while the next attempt is queued: one wait on an event a step, for the past."""
    (few, n), (many, m) = (waits(size, adaptive=True, backward=False, compile=compile) for size in (20, 100))
    assert m > 2 * n  # or the two solves would tell nothing apart
    assert many - few <= m - n + 4


@pytest.mark.parametrize("compile", [False, "inductor"])
def test_no_attempt_is_made_in_vain(compile, monkeypatch):
    """The loop waits for the attempt that should be the last, and queues no other behind it."""
    made = []
    backend = backends.find_backend(compile)
    run = type(backend).run

    def counting(self, function, inputs, captures):
        made.append(isinstance(function, integrate.Attempt))
        return run(self, function, inputs, captures)

    monkeypatch.setattr(type(backend), "run", counting)
    net = mlp()
    x0 = torch.randn(16, 4, device="cuda", dtype=DOUBLE)
    sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 3.0, compile=compile)
    expected = int((sol.stats.steps + sol.stats.rejected).max())
    assert sum(made) == expected


def test_a_graph_is_recorded_anew_where_the_precision_of_products_changes():
    torch.manual_seed(0)
    net = nn.Linear(256, 256).cuda()
    x0 = torch.randn(64, 256, device="cuda")
    kept = torch.backends.cuda.matmul.allow_tf32
    results = {}
    try:
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, dt=0.25, method="rk4", compile=True)
            results.setdefault(allowed, []).append(sol.x.detach())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept
    first, last = results[False]
    close(first, last, rtol=0, atol=0)
    assert not torch.equal(results[True][0], first)


def test_an_eager_loop_makes_no_hidden_wait():
    """torch raises at every synchronisation that is not asked for by name."""
    net = mlp()
    x0 = torch.randn(16, 4, device="cuda", dtype=DOUBLE)

    def steps_alone(march_steps):
        return ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, dt=1 / march_steps, throw=False)

    def watched(steps):
        try:
            torch.cuda.set_sync_debug_mode("warn")  # which warns, once, that it is a prototype
            steps_alone(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    steps_alone(5)
    messages = []
    for steps in (5, 50):
        with pytest.warns(UserWarning, match="[Ss]ynchroni") as caught:
            watched(steps)
        messages.append(sum("synchronizing CUDA" in str(warning.message) for warning in caught))
    assert messages[0] == messages[1]


def test_discrete_holds_less_than_a_quarter_of_autograd_on_a_gpu():
    def peak(gradient):
        net = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16)).cuda()
        x0 = torch.randn(256, 16, device="cuda")
        net(x0).sum().backward()  # the first product of a process allocates cuBLAS's workspace
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        sol = ncode.solve(
            lambda t, x, theta: net(x), x0, 0.0, 1.0, dt=0.01, method="rk4", gradient=gradient, keep="states"
        )
        sol.x.sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    assert peak("discrete") < peak("autograd") / 4


def test_memory_is_freed_with_the_solution_on_a_gpu():
    net = mlp()
    x0 = torch.randn(16, 4, device="cuda", dtype=DOUBLE)

    def use():
        ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, save_at=[0.5]).x.sum().backward()
        net.zero_grad(set_to_none=True)

    use()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        use()
    assert torch.cuda.memory_allocated() == before


def test_a_state_and_its_control_on_different_devices_are_refused():
    with pytest.raises(ncode.InputError, match=r"cpu.*cuda"):
        ncode.solve(lambda t, x, theta: theta * x, torch.ones(2, 1, device="cuda"), 0.0, 1.0, theta=torch.ones(2, 1))
    with pytest.raises(ncode.InputError, match=r"cpu.*cuda"):
        ncode.solve(lambda t, x, theta: -x.cpu(), torch.ones(2, 1, device="cuda"), 0.0, 1.0)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_dynamics_may_run_under_autocast_on_a_gpu(gradient):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)).cuda()
    x0 = torch.randn(16, 4, device="cuda")

    def run():
        return ncode.solve(lambda t, x, theta: net(x).to(x.dtype), x0, 0.0, 1.0, dt=0.1, gradient=gradient)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        sol = run()
    found = torch.autograd.grad(sol.x.sum(), list(net.parameters()))
    expected = torch.autograd.grad(run().x.sum(), list(net.parameters()))
    for got, exact in zip(found, expected, strict=True):
        assert float((got - exact).norm() / exact.norm()) < 0.05
        assert not torch.equal(got, exact)
