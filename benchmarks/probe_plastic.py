"""How fast are plastic weights here? The workload: 10 patterns twice and a query, n = 1000 (100 on a CPU), batch 16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncode.closed_forms import plastic_episode
from ncode.ode import solve

from .probe import arguments, headline, probe, write

DURATION = 0.5


def generic(stimuli: Tensor, theta0: Tensor, mu: Tensor, steps: int, **how: Any) -> Tensor:
    """The same steps by `ncode.solve`, with theta in the state."""
    theta = theta0.expand(len(stimuli), -1, -1)
    x = stimuli[:, 0]
    for x0 in stimuli.unbind(1):
        solution = solve(
            lambda t, x, theta: torch.tanh((theta @ x[..., None])[..., 0]),
            x0,
            0.0,
            DURATION,
            theta=theta,
            feedback=lambda t, x, theta: mu * (x[:, :, None] * x[:, None]),
            dt=DURATION / steps,
            method="rk4",
            **how,
        )
        x, theta = solution.x, solution.theta
    return x


def measure(batch: int, n: int, patterns: int, steps: int, options: Any) -> list[dict[str, Any]]:
    """Ours and the generic solver, with the same RK4 steps."""
    generator = torch.Generator().manual_seed(0)
    shown = torch.randn(batch, patterns, n, generator=generator).sign()
    query = shown[:, :1] * (torch.rand(batch, 1, n, generator=generator) > 0.5)
    stimuli = torch.cat([shown, shown, query], 1).to(options.device)
    theta0, mu = ((torch.randn(n, n, generator=generator) / n).to(options.device).requires_grad_() for _ in range(2))
    target = shown[:, 0].to(options.device)
    precise = [tensor.detach().double().requires_grad_() for tensor in (theta0, mu)]
    x = plastic_episode(stimuli.double(), *precise, duration=DURATION, steps=steps).x
    expected = [x.detach(), *torch.autograd.grad((x - target).square().mean(), precise)]
    del x, precise

    def shown(**how: Any) -> Tensor:
        return plastic_episode(stimuli, theta0, mu, duration=DURATION, steps=steps, **how).x

    ways = {
        "episode, vectors": lambda: shown(formulation="vectors"),
        "episode, matrix": lambda: shown(formulation="matrix"),
        "episode, auto, decay": lambda: shown(decay=0.1),
        "generic, discrete": lambda: generic(stimuli, theta0, mu, steps),
        "generic, autograd": lambda: generic(stimuli, theta0, mu, steps, gradient="autograd"),
    }
    rows = []
    for setting in ["highest", "high"] if options.device == "cuda" else ["highest"]:
        torch.set_float32_matmul_precision(setting)
        headline(f"batch {batch}, n = {n}, {patterns} patterns twice, {steps} RK4 steps each, {setting}: milliseconds")
        for name, forward in ways.items():

            def run(forward: Any = forward) -> list[Tensor]:
                y = forward()
                return [y, *torch.autograd.grad((y - target).square().mean(), [theta0, mu])]

            facts = {"batch": batch, "n": n, "patterns": patterns, "steps": steps, "setting": setting}
            against = None if "decay" in name else expected
            rows.append(probe(name, forward, run, against, options, capture=False, **facts))
    torch.set_float32_matmul_precision("highest")
    return rows


def main() -> None:
    """One and two steps a presentation."""
    options = arguments(__doc__ or "")
    if options.quick:
        write(measure(2, 10, 2, 1, options), options)
        return
    n = 1000 if options.device == "cuda" else 100
    rows = [row for steps in (1, 2, 4) for row in measure(16, n, 10, steps, options)]
    if options.device == "cuda":
        rows += measure(16, 100, 10, 1, options)
    write(rows, options)


if __name__ == "__main__":
    main()
