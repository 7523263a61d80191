"""Plastic weights, the paper's memory task: ten patterns shown twice, then one of them with half of its bits missing.

dx/dt = tanh(theta x), dtheta/dt = mu * x x^T, half a second a presentation, gradients to theta_0 and mu. Our rows are
`NCODE.episode`, which never carries theta. Peers carry it in their state, since it changes: by dopri5 at 1e-3, and
torchdiffeq also by the very RK4 steps that we take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

import ncode
from ncode.closed_forms import plastic_episode

from ..contest import Aim, Contest, Entry, Nfe, Outcome, Runner, Settings, synchronise
from ..flow import Step, read
from ..memory import peak_bytes

TITLE = "Plastic weights: n = 1000 (a CPU: 100), 10 patterns twice and a query, batch 16"
AIMS = tuple(
    aim
    for device in ("cpu", "cuda")
    for aim in (
        Aim("episode", "torchdiffeq", 0.1, device, row="as the paper writes it"),
        Aim("episode", "torchdiffeq", 1.0, device),
        Aim("episode", "diffrax", 1.0, device),
    )
)
DURATION, RTOL, ATOL = 0.5, 1e-3, 1e-6


class Problem(NamedTuple):
    """What is shown, what should be recalled, and the weights."""

    stimuli: Tensor  # (batch, P, n)
    target: Tensor  # (batch, n)
    theta0: Tensor
    mu: Tensor

    def on(self, device: str, dtype: torch.dtype = torch.float32) -> Problem:
        """A copy whose weights want gradients."""
        stimuli, target, theta0, mu = (leaf.to(device, dtype, copy=True) for leaf in self)
        return Problem(stimuli, target, torch.nn.Parameter(theta0), torch.nn.Parameter(mu))


Recall = Callable[[Problem], Tensor]


def contest(settings: Settings) -> Contest:
    """Everyone on the same problem."""
    n = 10 if settings.quick else 1000 if settings.device == "cuda" else 100
    problem = draw(2 if settings.quick else 16, n, 2 if settings.quick else 10, settings.seed)
    entries, skipped = _ours(problem, settings), {}
    for library, make in {"torchdiffeq": _torchdiffeq, "diffrax": _diffrax}.items():
        if settings.peers is not None and library not in settings.peers:
            continue
        if find_spec(library) is None:
            skipped[library] = f"{library} is not installed"
        else:
            entries += make(problem, settings)
    skipped["torchode"] = "its state must be (batch, features)"
    return Contest(entries, reference(problem, settings.device), AIMS, skipped)


def draw(batch: int, n: int, patterns: int, seed: int) -> Problem:
    """Patterns of +1 and -1; weights of the size that learning starts from."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shown = normal(batch, patterns, n).sign()
    hidden = torch.rand(batch, 1, n, generator=generator, dtype=torch.float64) > 0.5
    return Problem(torch.cat([shown, shown, shown[:, :1] * hidden], 1), shown[:, 0], normal(n, n) / n, normal(n, n) / n)


def finish(x: Tensor, problem: Problem) -> Step:
    """The second half of a training step."""
    loss = (x - problem.target).square().mean()
    return loss.detach(), torch.autograd.grad(loss, [problem.theta0, problem.mu]), x.detach()


def reference(problem: Problem, device: str) -> Outcome:
    """Four steps of dopri8 a presentation, in float64."""
    given = problem.on(device, torch.float64)
    x = plastic_episode(given.stimuli, given.theta0, given.mu, duration=DURATION, steps=4, method="dopri8").x
    return read(finish(x, given))


def _entry(library: str, label: str, recall: Recall, problem: Problem, settings: Settings, nfe: Any) -> Entry:
    def build() -> Runner:
        given = problem.on(settings.device)

        def run() -> Step:
            result = finish(recall(given), given)
            synchronise(settings.device)
            return result

        return Runner(run, read, functools.partial(nfe, given), lambda: peak_bytes(run, settings.device))

    return Entry(library, label, {"": build})


def _ours(problem: Problem, settings: Settings) -> list[Entry]:
    """One and two steps of RK4 a presentation."""
    n, shown = len(problem.mu), problem.stimuli.shape[1]

    def entry(steps: int) -> Entry:
        block = ncode.NCODE(
            ncode.dynamics.Recurrent(n), ncode.Hebbian(), t1=DURATION, method="rk4", dt=DURATION / steps
        ).to(settings.device)

        def recall(given: Problem) -> Tensor:
            controller = block.controller
            assert isinstance(controller, ncode.Hebbian)
            controller.theta, controller.mu = _parameter(given.theta0), _parameter(given.mu)
            return block.episode(given.stimuli).x

        label = f"episode, {steps} RK4 step{'s' if steps > 1 else ''}"
        return _entry("ncode", label, recall, problem, settings, lambda given: Nfe(4 * steps * shown, backward=0))

    return [entry(1), entry(2)]


def _parameter(tensor: Tensor) -> torch.nn.Parameter:
    """The tensor itself, as modules want it."""
    assert isinstance(tensor, torch.nn.Parameter)
    return tensor


def _torchdiffeq(problem: Problem, settings: Settings) -> list[Entry]:
    """theta in the state: the paper's adjoint, backpropagation, and the same RK4 steps."""
    from torchdiffeq import odeint, odeint_adjoint

    def present(solve: Any, options: dict[str, Any], calls: list[int], given: Problem) -> Tensor:
        def field(t: Tensor, z: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            calls[0] += 1
            x, theta = z
            return torch.tanh(torch.bmm(theta, x[..., None])[..., 0]), given.mu * (x[:, :, None] * x[:, None, :])

        span = torch.tensor([0.0, DURATION], device=given.stimuli.device)
        x, theta = given.stimuli[:, 0], given.theta0.expand(len(given.stimuli), -1, -1)
        for start in given.stimuli.unbind(1):
            more = {"adjoint_params": (given.mu,)} if solve is odeint_adjoint else {}
            xs, thetas = solve(field, (start, theta), span, **options, **more)
            x, theta = xs[-1], thetas[-1]
        return x

    def row(label: str, solve: Any, **options: Any) -> Entry:
        calls = [0]
        recall = functools.partial(present, solve, options, calls)

        def nfe(given: Problem) -> Nfe:
            calls[0] = 0
            x = recall(given)
            forward = calls[0]
            finish(x, given)
            return Nfe(forward, backward=calls[0] - forward)

        return _entry("torchdiffeq", label, recall, problem, settings, nfe)

    adaptive: dict[str, Any] = {"method": "dopri5", "rtol": RTOL, "atol": ATOL}
    return [
        row("as the paper writes it", odeint_adjoint, **adaptive),
        row("backprop", odeint, **adaptive),
        row("backprop, 1 RK4 step", odeint, method="rk4", options={"step_size": DURATION}),
    ]


def _diffrax(problem: Problem, settings: Settings) -> list[Entry]:
    """One jitted function: a scan over presentations, each one adaptive solve for the batch."""
    return [Entry("diffrax", "checkpointed", {"": functools.partial(_build_diffrax, problem, settings)})]


def _build_diffrax(problem: Problem, settings: Settings) -> Runner:
    import diffrax
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_default_matmul_precision", "float32")
    device = jax.devices("gpu" if settings.device == "cuda" else "cpu")[0]
    arrays = [jax.device_put(np.asarray(leaf, dtype=np.float32), device) for leaf in problem]

    def field(t: Any, z: Any, mu: Any) -> Any:
        x, theta = z
        return jnp.tanh(jnp.einsum("bij,bj->bi", theta, x)), mu * (x[:, :, None] * x[:, None, :])

    def loss(theta0: Any, mu: Any, stimuli: Any, target: Any) -> Any:
        def present(theta: Any, start: Any) -> Any:
            sol = diffrax.diffeqsolve(
                *(diffrax.ODETerm(field), diffrax.Dopri5(), 0.0, DURATION, None, (start, theta)),
                args=mu,
                stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL),
                max_steps=64,
            )
            xs, thetas = sol.ys
            return thetas[-1], (xs[-1], sol.stats["num_steps"])

        first = jnp.broadcast_to(theta0, (len(target), *theta0.shape))
        _, (xs, steps) = jax.lax.scan(present, first, jnp.swapaxes(stimuli, 0, 1))
        return jnp.mean((xs[-1] - target) ** 2), (xs[-1], steps)

    stimuli, target, theta0, mu = arrays
    arguments = (theta0, mu, stimuli, target)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)).lower(*arguments).compile()

    def run() -> Any:
        return jax.block_until_ready(step(*arguments))

    def read_jax(result: Any) -> Outcome:
        (value, (x1, _)), grads = result
        found = [torch.from_numpy(np.array(leaf, dtype=np.float64)) for leaf in (*grads, x1)]
        return Outcome(float(value), found[:-1], found[-1])

    def nfe() -> Nfe:
        (_, (_, steps)), _ = run()
        return Nfe(float(jnp.sum(6 * steps + 2)))

    def memory() -> int | None:
        analysis = step.memory_analysis()
        return None if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    return Runner(run, read_jax, nfe, memory)
