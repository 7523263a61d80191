"""Solves in a kernel are eager solves: values, gradients, counts and statuses."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import ncode
from ncode import InputError, Status
from ncode.ode.kernel import plan
from ncode.ode.kernel.build import compiler
from ncode.ode.kernel.build_cuda import FLAGS

from .machines import MACHINES, ThreadsOnCpu

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
BATCH = 19  # more than one block of samples, and the last one not full


class Case(NamedTuple):
    """A solve: its function, x0, and the keyword arguments of `solve`; `trained` are captures with a gradient."""

    dynamics: Callable[..., Any]
    x0: Any
    t0: Any = 0.0
    t1: Any = 1.0
    options: Mapping[str, Any] = MappingProxyType({})
    trained: Sequence[Tensor] = ()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return _draw(torch.randn, shape, seed)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return _draw(torch.rand, shape, seed)


def _draw(function: Callable[..., Tensor], shape: Sequence[int], seed: int) -> Tensor:
    """The same numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    drawn = function(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return drawn.to(torch.get_default_device())


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test on every machine."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if request.param == "threads":
        monkeypatch.setitem(plan.KERNELS, "cpu", ThreadsOnCpu)
        monkeypatch.setattr(plan, "_plans", type(plan._plans)())
    with torch.device("cuda" if request.param == "cuda" else "cpu"):
        yield request.param


def lorenz() -> Case:
    def f(t: Tensor, x: Tensor, rho: Tensor) -> Tensor:
        a, b, c = x.unbind(1)
        return torch.stack([10 * (b - a), a * (rho - c) - b, a * b - 8 / 3 * c], 1)

    return Case(f, 1 + normal(BATCH, 3), t1=0.7, options={"theta": 21 + uniform(BATCH), "method": "tsit5"})


def shared_network() -> Case:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 17), nn.Softplus(), nn.Linear(17, 11), nn.SiLU(), nn.Linear(11, 3)).double()
    return Case(lambda t, x, _: net(x), normal(BATCH, 3), trained=tuple(net.parameters()))


def own_weights() -> Case:
    theta = {"w": normal(BATCH, 9, 4, seed=1), "b": normal(BATCH, 9, seed=2), "v": normal(BATCH, 4, 9, seed=3)}

    def f(t: Tensor, x: Tensor, own: dict[str, Tensor]) -> Tensor:
        h = torch.tanh(torch.einsum("bij,bj->bi", own["w"], x) + own["b"])
        return torch.baddbmm(-x[..., None], own["v"], h[..., None])[..., 0]

    return Case(f, normal(BATCH, 4), options={"theta": theta})


def closed_loop() -> Case:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()

    def f(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return torch.bmm(theta.tanh(), x[:, :, None]).squeeze(-1) - x

    def g(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return net(torch.cat([x, t[:, None]], 1)).view(-1, 2, 2) - theta

    options = {"theta": normal(BATCH, 2, 2, seed=4), "feedback": g}
    return Case(f, normal(BATCH, 2), t0=0.3, t1=1.7, options=options, trained=tuple(net.parameters()))


def running_cost() -> Case:
    weight, goal = normal(2, seed=5).requires_grad_(), normal(2, seed=6).requires_grad_()

    def cost(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return (weight.exp() * (x - goal) ** 2).sum(1) + theta.square().mean(1)

    options = {"theta": normal(BATCH, 3, seed=7), "cost": cost}
    return Case(
        lambda t, x, theta: x.sin() * theta[:, :2] + theta[:, 2:].relu(),
        normal(BATCH, 2),
        options=options,
        trained=(weight, goal),
    )


def uneven() -> Case:
    speed = torch.logspace(-1, 1.5, BATCH, dtype=torch.float64)[:, None]
    turn = lambda t, x, w: w * torch.stack([x[:, 1], -x[:, 0]], 1)  # noqa: E731
    return Case(turn, normal(BATCH, 2), t1=2.0, options={"theta": speed, "step_rule": ncode.PID(p=0.2, d=0.05)})


def own_times() -> Case:
    t0, t1 = uniform(BATCH, seed=8), 2 * uniform(BATCH, seed=9)
    t1[3] = t0[3]  # nothing to do
    return Case(lambda t, x, _: -x * (1 + t.sin()[:, None]), normal(BATCH, 2), t0=t0, t1=t1)


def backward_in_time() -> Case:
    return Case(
        lambda t, x, _: x.cos() + t[:, None], normal(BATCH, 2), t0=1.5, t1=torch.tensor(-0.5, dtype=torch.float64)
    )


def fixed_steps() -> Case:
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    options = {"method": "rk4", "dt": 0.15}
    return Case(lambda t, x, _: scale * x.sigmoid(), normal(BATCH, 5), options=options, trained=(scale,))


def nested() -> Case:
    def f(t: Tensor, x: Any, _: Any) -> Any:
        return {"q": x["p"], "p": -(x["q"] ** 3)}

    x0 = {"q": normal(BATCH, 2), "p": normal(BATCH, 2, seed=1)}
    return Case(f, x0, options={"method": "dopri8", "rtol": {"q": 1e-7, "p": 1e-5}})


def hamiltonian() -> Case:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()

    def f(t: Tensor, x: Tensor, _: Any) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            dq, dp = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].unbind(1)
        return torch.stack([dp, -dq], 1)

    return Case(f, normal(BATCH, 2), trained=tuple(net.parameters()))


def masked_weights() -> Case:
    weight = normal(4, 4, seed=3).requires_grad_()
    mask = torch.tril(torch.ones(4, 4)).bool()

    def f(t: Tensor, x: Tensor, _: Any) -> Tensor:
        w = torch.where(mask, weight, 0).expand(len(x), 4, 4)
        return torch.softmax((w @ x[..., None]).squeeze(-1), -1) - x.clamp(-0.5, 0.5)

    # Fixed steps: at the kinks of clamp, step sizes follow rounding errors.
    return Case(f, normal(BATCH, 4), options={"method": "heun", "dt": 0.1}, trained=(weight,))


def stiff_reaction() -> Case:
    def f(t: Tensor, x: Tensor, rates: Tensor) -> Tensor:
        (a, b, c), (k1, k2, k3) = x.unbind(1), rates.unbind(1)
        first, second, third = k1 * a, k2 * b * b, k3 * b * c
        return torch.stack([third - first, first - second - third, second], 1)

    rates = torch.tensor([0.04, 3e7, 1e4], dtype=torch.float64) * (0.3 * normal(BATCH, 3)).exp()
    x0 = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(BATCH, 3)
    # Over a short time: of a long one, gradients are as exact as the elimination, which differs from LAPACK's.
    return Case(f, x0, t1=10.0, options={"theta": rates, "method": "rodas5p", "atol": 1e-10})


def stiff_in_time() -> Case:
    torch.manual_seed(3)
    net = nn.Linear(2, 2).double()
    t1 = 1 + uniform(BATCH, seed=4)

    def f(t: Tensor, x: Tensor, _: Any) -> Tensor:
        return -50 * (x - t.cos()[:, None]) + net(x).tanh()

    def cost(t: Tensor, x: Tensor, _: Any) -> Tensor:
        return x.square().sum(1)

    options = {"method": "rosenbrock23", "cost": cost, "rtol": 1e-4}
    return Case(f, normal(BATCH, 2), t0=0.5, t1=t1, options=options, trained=tuple(net.parameters()))


def stiff_closed_loop() -> Case:
    options = {"theta": normal(BATCH, 2, seed=4), "method": "rodas5p", "dt": 0.25}
    options["feedback"] = lambda t, x, theta: -20 * (theta - x.sin())
    return Case(lambda t, x, theta: theta * x.cos() - 30 * x, normal(BATCH, 2), options=options)


def saved_times() -> Case:
    """Each sample's own times, some of them at t0 or t1, one of them missing, and a driven control."""
    times = 2 * uniform(BATCH, 6, seed=3).sort(1).values
    times[3, 2], times[4, 5], times[5, 0] = torch.nan, 2.0, 0.0

    def g(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return x.sin() - theta * t[:, None]

    options = {"theta": normal(BATCH, 2, seed=4), "feedback": g, "save_at": times}
    return Case(lambda t, x, theta: theta * x.cos() - x, normal(BATCH, 2), t1=2.0, options=options)


def saved_between_fixed_steps() -> Case:
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    options = {"method": "rk4", "dt": 0.3, "save_at": [0.0, 0.1, 0.6, 0.6, 1.0]}
    return Case(lambda t, x, _: scale * x.sin() + t[:, None], normal(BATCH, 3), options=options, trained=(scale,))


CASES = (
    lorenz,
    shared_network,
    own_weights,
    closed_loop,
    running_cost,
    uneven,
    own_times,
    backward_in_time,
    fixed_steps,
    nested,
    hamiltonian,
    masked_weights,
    stiff_reaction,
    stiff_in_time,
    stiff_closed_loop,
    saved_times,
    saved_between_fixed_steps,
)


def leaves(tree: Any) -> list[Tensor]:
    return [it for it in pytree.tree_leaves(tree) if isinstance(it, Tensor)]


def run(case: Case, compile: Any, dtype: torch.dtype = torch.float64, **more: Any) -> tuple[ncode.Solution, list[Any]]:
    """The solution, and the gradients of a scalar with respect to all inputs."""
    fresh = lambda it: it.detach().to(dtype if it.is_floating_point() else it.dtype).requires_grad_()  # noqa: E731
    known = {"rtol": 1e-6, "atol": 1e-8, "keep": "states"}  # so that backward evaluates the same steps again
    x0, options = pytree.tree_map(fresh, case.x0), {**known, **case.options, **more}
    if options.get("theta") is not None:
        options["theta"] = pytree.tree_map(fresh, options["theta"])
    times = [it.detach().clone().requires_grad_() if isinstance(it, Tensor) else it for it in (case.t0, case.t1)]
    sol = ncode.solve(case.dynamics, x0, *times, compile=compile, **options)
    outputs = [*leaves(sol.x), *leaves(sol.theta), *leaves(sol.cost), *leaves(sol.xs), *leaves(sol.thetas)]
    loss = torch.as_tensor(
        sum((it.nan_to_num() * torch.linspace(1, 2, it.numel()).view(it.shape)).sum() for it in outputs)
    )
    inputs = [*leaves(x0), *leaves(options.get("theta")), *leaves(times), *case.trained]
    return sol, [loss.detach(), *torch.autograd.grad(loss, inputs, allow_unused=True)]


def assert_same(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    sol, grads = found
    eager, wanted = expected
    assert sol.stats.backend == "kernel"
    assert eager.stats.backend == "eager"
    values, others = ([*leaves(it.x), *leaves(it.cost), *leaves(it.xs), *leaves(it.thetas)] for it in (sol, eager))
    for a, b in zip((*values, *grads), (*others, *wanted), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    # Eager evaluates the end of a step again where a sample next to it passes a saved time.
    for name in ("nfe", "steps", "rejected", *([] if sol.xs is not None else ["nfe_backward"])):
        assert torch.equal(getattr(sol.stats, name), getattr(eager.stats, name)), name
    assert torch.equal(sol.codes, eager.codes)
    torch.testing.assert_close(sol.t, eager.t, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
@pytest.mark.usefixtures("machine")
def test_a_kernel_solves_as_eager_does(make: Callable[[], Case]) -> None:
    assert_same(run(make(), "kernel"), run(make(), False))


@pytest.mark.parametrize(
    "make", [shared_network, own_weights, closed_loop, uneven, stiff_in_time], ids=lambda make: make.__name__
)
@pytest.mark.usefixtures("machine")
def test_a_kernel_works_in_single_precision(make: Callable[[], Case]) -> None:
    single = torch.float32
    case = make()
    for module in {id(it): it for it in case.trained}.values():
        module.data = module.data.float()
    sol, grads = run(case, "kernel", single, rtol=1e-3, atol=1e-4)
    eager, wanted = run(case, False, single, rtol=1e-3, atol=1e-4)
    assert sol.stats.backend == "kernel"
    assert leaves(sol.x)[0].dtype == single
    for a, b in zip((*leaves(sol.x), *grads), (*leaves(eager.x), *wanted), strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3 * float(b.detach().abs().max()))
    assert (sol.stats.steps - eager.stats.steps).abs().max() <= 1


def blow_up() -> Case:
    x0 = torch.linspace(0.1, 3.0, BATCH, dtype=torch.float64)[:, None]  # x(t) = x0 / (1 - x0 t)
    return Case(lambda t, x, theta: theta * x * x, x0, options={"theta": torch.ones(BATCH, 1).double(), "throw": False})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_steps": 5},
        {"max_steps": 5, "keep_last": True},
        {"min_dt": 0.01},
        {"keep_last": True},
        {"max_dt": 0.05},
        {"max_steps": 5, "save_at": [0.0, 0.1, 0.5, 1.0]},
        {"max_steps": 5, "save_at": [0.0, 0.1, 0.5, 1.0], "keep_last": True},
    ],
    ids=str,
)
@pytest.mark.usefixtures("machine")
def test_failures_are_those_of_eager(more: dict[str, Any]) -> None:
    found, expected = run(blow_up(), "kernel", **more), run(blow_up(), False, **more)
    assert not expected[0].ok.all()
    assert expected[0].ok.any()
    if more != {"keep_last": True}:
        assert_same(found, expected)
        return
    # Near a pole the last state depends on rounding; its failure does not.
    assert torch.equal(found[0].codes, expected[0].codes)
    rows = expected[0].ok
    torch.testing.assert_close(found[0].x[rows], expected[0].x[rows], rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("machine")
def test_a_state_where_the_slope_is_not_finite_fails_and_spoils_no_gradient() -> None:
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    x0 = torch.linspace(-0.2, 2.0, BATCH, dtype=torch.float64)[:, None]
    case = Case(lambda t, x, _: scale * x.sqrt(), x0, options={"throw": False}, trained=(scale,))
    found, expected = run(case, "kernel"), run(case, False)
    assert (found[0].codes == Status.NOT_FINITE).any()
    assert_same(found, expected)
    assert torch.isfinite(found[1][-1])


@pytest.mark.parametrize("method", ["dopri5", "rodas5p"])
@pytest.mark.usefixtures("machine")
def test_a_sample_that_cannot_start_keeps_its_start_and_its_gradient(method: str) -> None:
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    x0 = torch.linspace(0.5, 2.0, BATCH, dtype=torch.float64)[:, None]
    x0[5], x0[6] = 0.0, -1.0  # where the slope is infinite and nan
    options = {"method": method, "throw": False, "keep_last": True}
    case = Case(lambda t, x, _: scale * (1 / x + x.sqrt()), x0, options=options, trained=(scale,))
    found, expected = run(case, "kernel"), run(case, False)
    assert (found[0].codes == Status.NOT_FINITE).nonzero().flatten().tolist() == [5, 6]
    assert_same(found, expected)
    assert (found[1][1][5:7] != 0).all()  # of x0
    assert torch.isfinite(found[1][-1])


@pytest.mark.usefixtures("machine")
def test_a_stiff_problem_that_runs_out_of_steps_is_called_stiff() -> None:
    case = Case(lambda t, x, _: -1e5 * (x - t.cos()[:, None]), normal(2, 1), options={"throw": False, "max_steps": 200})
    sol, eager = (run(case, compile)[0] for compile in ("kernel", False))
    assert torch.equal(sol.codes, eager.codes)
    assert (sol.codes == Status.STIFF).all()


@pytest.mark.parametrize("name", list(ncode.ode.METHODS))
@pytest.mark.usefixtures("machine")
def test_all_explicit_methods_have_kernels(name: str) -> None:
    options: dict[str, Any] = {"method": name, "dt": 0.1 if not ncode.ode.METHODS[name].adaptive else None}
    case = Case(lambda t, x, _: x.tanh() - t[:, None], normal(3, 1), options=options)
    assert_same(run(case, "kernel"), run(case, False))


@pytest.mark.usefixtures("machine")
def test_functions_are_exact_to_a_few_units_in_the_last_place() -> None:
    smooth = ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "softplus", "sin", "cos", "erf"]
    names = [*smooth, "sqrt", "rsqrt", "reciprocal", "atan"]
    functions = [getattr(torch, it, None) or getattr(nn.functional, it) for it in names]

    def f(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return torch.stack([function(theta) for function in functions], 1)

    sizes = torch.logspace(-12, 2.8, 60, dtype=torch.float64)
    theta = torch.cat([sizes, -sizes, torch.zeros(2).double()])
    x0 = torch.zeros(len(theta), len(names), dtype=torch.float64)
    sol = ncode.solve(
        f, x0, 0.0, 1.0, theta=theta, method="euler", dt=1.0, compile="kernel", throw=False, keep_last=True
    )
    expected = f(theta, x0, theta)
    rows = torch.isfinite(expected).all(1)
    torch.testing.assert_close(sol.x[rows], expected[rows], rtol=2e-15, atol=1e-300)
    assert torch.equal(sol.codes == Status.OK, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.usefixtures("machine")
def test_tanh_is_exact_at_every_size_and_keeps_signs_and_nan(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    sizes = torch.logspace(math.log10(info.tiny) + 1, 3, 3000, dtype=torch.float64)
    ends = torch.tensor([0.0, -0.0, info.max], dtype=torch.float64)
    theta = torch.cat([sizes, -sizes, torch.linspace(-25, 25, 5000), ends]).to(dtype)

    def f(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        spoilt = torch.tanh(theta * math.inf)  # nan at 0
        return torch.stack([torch.tanh(theta), theta.abs(), spoilt.isnan().to(dtype), spoilt.nan_to_num()], 1)

    x0 = torch.full((len(theta), 4), -0.0, dtype=dtype)
    sol = ncode.solve(f, x0, 0.0, 1.0, theta=theta, method="euler", dt=1.0, compile="kernel")
    found, size, missing, ends = sol.x.unbind(1)
    torch.testing.assert_close(found.double(), theta.double().tanh(), rtol=2 * info.eps, atol=info.tiny)
    assert torch.equal(found.signbit(), theta.signbit())
    assert torch.equal(size, theta.abs())
    assert torch.equal(missing == 1, theta == 0)
    assert torch.equal(ends, theta.sign())


class Straight(torch.autograd.Function):
    """The sign of x, with the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return 2 * grad


def without_gradient(t: Tensor, x: Tensor, _: Any) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return y * x - x.detach()


@pytest.mark.parametrize("f", [lambda t, x, _: Straight.apply(x) - x, without_gradient], ids=("own", "none"))
def test_gradients_of_the_user_s_own_are_kept(f: Callable[..., Any]) -> None:
    case = Case(f, normal(BATCH, 2), options={"method": "rk4", "dt": 0.25})
    assert_same(run(case, "kernel"), run(case, False))


def test_operations_in_place_on_new_tensors_are_allowed() -> None:
    def f(t: Tensor, x: Tensor, _: Any) -> Tensor:
        y = x + 2
        z = x.sin()
        y += z
        return y.tanh_() - x

    assert_same(run(Case(f, normal(4, 2)), "kernel"), run(Case(f, normal(4, 2)), False))


ROWS = normal(4, 1)


def in_place(t: Tensor, x: Tensor, _: Any) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 0] = x[:, 1]
    return y


def by_value(t: Tensor, x: Tensor, _: Any) -> Tensor:
    return x if float(ROWS.sum()) > 0 else -x


@pytest.mark.parametrize(
    ("f", "more", "reason"),
    [
        (lambda t, x, _: x - x.mean(0), {}, "mean over samples"),
        (lambda t, x, _: x - x.flip(0), {}, "the operation flip"),
        (lambda t, x, _: x.cumsum(0), {}, "the operation cumsum"),
        (lambda t, x, _: x - x[:1], {}, "takes some samples"),
        (lambda t, x, _: x @ (x.T @ x), {}, "may not interact"),
        (lambda t, x, _: x * ROWS, {}, "one row per sample: pass it as theta"),
        (lambda t, x, _: torch.fft.fft(x).real, {}, "_fft"),
        (lambda t, x, _: x * torch.rand_like(x), {}, "random numbers"),
        (lambda t, x, _: (x.double() * 2).to(torch.float64).half().double(), {}, "float16"),
        (in_place, {}, "in place"),
        (by_value, {}, "read the values of a tensor"),
        (lambda t, x, _: -x, {"save_at": [0.5], "method": "dopri8"}, "takes further stages"),
        (lambda t, x, _: -x, {"save_at": torch.tensor([0.5], requires_grad=True)}, "times need gradients"),
        (lambda t, x, _: -x, {"dense": True}, "dense output"),
        (lambda t, x, _: -x, {"step": "batch"}, "couples the samples"),
        (lambda t, x, _: -x, {"method": "auto"}, "the method auto has no kernel"),
        (lambda t, x, _: -x, {"rtol": torch.tensor([1e-3, 1e-4])}, "rtol or atol is a tensor"),
        (lambda t, x, _: -x, {"gradient": "adjoint"}, "adjoint"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(f: Callable[..., Any], more: dict[str, Any], reason: str) -> None:
    x0 = normal(4, 2).requires_grad_()
    with pytest.raises(InputError, match=reason):
        ncode.solve(f, x0, 0.0, 1.0, compile="kernel", **more)
    why = ncode.explain(f, x0, 0.0, 1.0, compile=True, **more)
    assert why.backend == "inductor"
    assert reason in why.why_not["kernel"]


@pytest.mark.usefixtures("traced")
def test_true_takes_a_kernel_where_it_fits_and_inductor_where_not() -> None:
    x0 = normal(4, 2)
    for f, backend in ((lambda t, x, _: -x, "kernel"), (lambda t, x, _: -x.flip(1), "inductor")):
        sol = ncode.solve(f, x0, 0.0, 1.0, compile=True)
        assert sol.stats.backend == backend == ncode.explain(f, x0, 0.0, 1.0, compile=True).backend


def test_new_values_of_captures_are_used_and_a_changed_number_compiles_anew() -> None:
    weight, settings = torch.tensor(1.0, dtype=torch.float64), {"power": 1}
    f = lambda t, x, _: -weight * x ** settings["power"]  # noqa: E731
    for value, power in ((1.0, 1), (2.0, 1), (2.0, 3)):
        weight.fill_(value)
        settings["power"] = power
        sol, eager = (ncode.solve(f, normal(4, 2), 0.0, 1.0, compile=compile) for compile in ("kernel", False))
        torch.testing.assert_close(sol.x, eager.x, rtol=1e-12, atol=1e-12)


def test_a_known_function_is_not_evaluated_again_and_new_tensors_are_found() -> None:
    calls = []

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2).double()

        def forward(self, t: Tensor, x: Tensor, _: Any) -> Tensor:
            calls.append(len(x))
            return self.linear(x).tanh()

    field = Field()

    def gradient(compile: Any) -> list[Tensor]:
        sol = ncode.solve(field, normal(4, 2), 0.0, 1.0, compile=compile)
        return [sol.x.detach(), *torch.autograd.grad(sol.x.sum(), tuple(field.parameters()))]

    gradient("kernel")
    calls.clear()
    gradient("kernel")
    assert not calls
    field.linear.weight = nn.Parameter(normal(2, 2, seed=5))  # another tensor at the same place
    for a, b in zip(gradient("kernel"), gradient(False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_tensors_that_become_one_are_told_apart_from_two() -> None:
    first, second = normal(2, 2).requires_grad_(), normal(2, 2, seed=1).requires_grad_()
    for held in ([first, first], [first, second], [second, first]):
        found = []
        for compile in ("kernel", False):
            sol = ncode.solve(
                lambda t, x, _, w=held: x @ w[0] - x.sin() @ w[1], normal(5, 2), 0.0, 1.0, compile=compile
            )
            found.append([sol.x.detach(), *torch.autograd.grad(sol.x.sum(), (first, second), allow_unused=True)])
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["x0", "theta"])
@pytest.mark.parametrize("t1", [0.0, 1.0])
def test_values_that_are_not_finite_are_refused(name: str, t1: float) -> None:
    given = {"x0": normal(4, 2), "theta": normal(4, 2)}
    given[name][2, 1] = torch.nan
    with pytest.raises(InputError, match=f"{name} is not finite in 1 of 4 samples: 2"):
        ncode.solve(lambda t, x, _: -x, given["x0"], 0.0, t1, theta=given["theta"], compile="kernel")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler")
@pytest.mark.parametrize(
    ("make", "dtype"),
    [(closed_loop, torch.float64), (stiff_in_time, torch.float64), (saved_times, torch.float32)],
    ids=("closed_loop", "stiff_in_time", "saved_times"),
)
def test_cuda_accepts_the_source_for_gpus(
    make: Callable[[], Case], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its compiler needs no GPU, and refuses what that of C++ does not."""
    monkeypatch.setitem(plan.KERNELS, "cpu", ThreadsOnCpu)
    monkeypatch.setattr(plan, "_plans", type(plan._plans)())
    monkeypatch.setattr(ThreadsOnCpu, "sources", [])
    run(make(), "kernel", dtype, rtol=1e-3)
    files = [tmp_path / f"{name}.cu" for name in ("backward", "forward")]
    for file, source in zip(files, ThreadsOnCpu.sources, strict=True):
        file.write_text(source)
    command = ["nvcc", "--ptx", "--gpu-architecture=sm_90", *FLAGS, *map(str, files)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(file.with_suffix(".ptx").exists() for file in files)


def test_a_tape_that_is_too_short_is_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan.KERNELS, "cpu", ThreadsOnCpu)
    monkeypatch.setattr(plan, "_plans", type(plan._plans)())
    monkeypatch.setattr("ncode.ode.kernel.run_cuda._FIRST_CAPACITY", 2)
    assert_same(run(uneven(), "kernel"), run(uneven(), False))


def test_sums_do_not_depend_on_the_speed_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, second = (run(shared_network(), "kernel")[1] for _ in range(2))
        torch.set_num_threads(1)
        alone = run(shared_network(), "kernel")[1]
    finally:
        torch.set_num_threads(before)
    for a, b, c in zip(first, second, alone, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("machine")
def test_a_hook_on_a_parameter_sees_the_whole_gradient_once() -> None:
    weight, seen = normal(2, 2).requires_grad_(), []
    weight.register_hook(seen.append)
    ncode.solve(lambda t, x, _: x @ weight, normal(5, 2), 0.0, 1.0, compile="kernel").x.sum().backward()
    assert len(seen) == 1
    assert torch.equal(seen[0], weight.grad)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: torch.tanh(x @ w) @ w.T - x.T.sin().T,
        lambda x, w: x @ (w @ w).tanh() + w[0].exp() * w.mean(),
    ],
    ids=("used twice", "computed from"),
)
@pytest.mark.usefixtures("machine")
def test_weights_as_large_as_the_batch_are_not_taken_for_samples(f: Callable[..., Any]) -> None:
    weight = normal(5, 5, seed=11).requires_grad_()
    options = {"method": "rk4", "dt": 0.25}
    case = Case(lambda t, x, _: f(x, weight), normal(5, 5), options=options, trained=(weight,))
    assert_same(run(case, "kernel"), run(case, False))


def test_a_number_that_changes_before_backward_is_that_of_the_forward_pass():
    """Backward walks along the tape with the function that was compiled for it, and evaluates nothing again."""
    scale, found = [1.0], []
    for changed in (False, True):
        x0 = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
        sol = ncode.solve(lambda t, x, theta: -scale[0] * x.sin(), x0, 0.0, 1.0, compile="kernel")
        scale[0] = 3.0 if changed else 1.0
        found.append(torch.autograd.grad(sol.x.sum(), x0)[0])
        scale[0] = 1.0
    assert torch.equal(*found)
