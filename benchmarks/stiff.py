"""A batch of Robertson's problem: forward, and with the gradient with respect to the rates, next to diffrax.

    python -m benchmarks.stiff                                  # 256 systems
    python -m benchmarks.stiff --batch 32768 --device cuda
    python -m benchmarks.stiff --batch 4 --turns 1 --ours rodas5p   # does it run?

The rates are spread by exp(0.3 N(0, 1)), t runs to 1e5, in double precision with rtol = 1e-6 and atol = 1e-10.
Gradients are those of the sum of the third component; their largest relative error is taken, for the first systems,
against central differences of solves with rtol = 1e-11. diffrax is skipped if it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .environment import describe, prepare

RATES = (0.04, 3e7, 1e4)
T1 = 1e5
TOLERANCE = {"rtol": 1e-6, "atol": 1e-10}
CHECKED = 8  # systems whose gradients are compared with differences

Run = Callable[[bool], Any]  # gradient of the rates, or the third component


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ours", nargs="*", default=["rodas5p", "rodas5p, compiled", "kvaerno5"])
    parser.add_argument("--peers", nargs="*", default=["Kvaerno5", "Kvaerno3"])
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    prepare(arguments.device, 1)
    found = measure(arguments)
    command = "python -m benchmarks.stiff " + shlex.join(sys.argv[1:])
    result = {"command": command.strip(), "seed": arguments.seed, **describe(arguments.device, 1), **found}
    print(json.dumps(found, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and gradient errors of every row."""
    import torch

    generator = torch.Generator().manual_seed(arguments.seed)
    noise = torch.randn(arguments.batch, 3, dtype=torch.float64, generator=generator)
    rates = torch.tensor(RATES, dtype=torch.float64) * (0.3 * noise).exp()
    expected = differences(rates[:CHECKED])
    runs: dict[str, Run] = {f"ncode, {name}": _ours(name, rates.to(arguments.device)) for name in arguments.ours}
    if importlib.util.find_spec("diffrax") is None:
        print("diffrax is not installed: skipped", file=sys.stderr)
    else:
        runs |= {f"diffrax, {name}": _diffrax(name, rates, arguments.device) for name in arguments.peers}
    rows = {name: _measured(run, arguments.turns, expected) for name, run in runs.items()}
    return {"batch": arguments.batch, "turns": arguments.turns, "rows": rows}


def _measured(run: Run, turns: int, expected: Any) -> dict[str, float]:
    """The first call of each kind compiles; then the fastest of several turns."""
    found: dict[str, float] = {}
    for name, gradient in (("forward", False), ("with gradient", True)):
        seconds = []
        for _ in range(turns + 1):
            begin = time.perf_counter()
            result = run(gradient)
            seconds.append(time.perf_counter() - begin)
            if gradient:
                found["gradient_error"] = float((result[:CHECKED].cpu() / expected - 1).abs().max())
        found[f"{name}, first call"], found[name] = seconds[0], min(seconds[1:])
    return found


def robertson(t: Any, x: Any, rates: Any) -> Any:
    """The dynamics of a batch."""
    import torch

    a, b, c = x.unbind(1)
    slow, fast, back = rates[:, 0] * a, rates[:, 1] * b * b, rates[:, 2] * b * c
    return torch.stack([back - slow, slow - back - fast, fast], 1)


def differences(rates: Any) -> Any:
    """Central differences of tight solves, (batch, 3)."""
    import torch

    import ncode

    shift = torch.diag_embed(1e-4 * rates)
    moved = torch.cat([rates[:, None] + shift, rates[:, None] - shift]).flatten(0, 1)
    x0 = moved.new_tensor([1.0, 0.0, 0.0]).expand(len(moved), 3)
    ends = ncode.solve(robertson, x0, 0.0, T1, theta=moved, method="rodas5p", rtol=1e-11, atol=1e-15).x[:, 2]
    plus, minus = ends.reshape(2, len(rates), 3)
    return (plus - minus) / (2e-4 * rates)


def _ours(name: str, rates: Any) -> Run:
    import torch

    import ncode

    method, _, compiled = name.partition(", ")
    x0 = rates.new_tensor([1.0, 0.0, 0.0]).expand(len(rates), 3).contiguous()

    def run(gradient: bool) -> Any:
        leaf = rates.clone().requires_grad_(gradient)
        sol = ncode.solve(
            robertson, x0, 0.0, T1, theta=leaf, method=method, compile=bool(compiled), max_steps=2000, **TOLERANCE
        )
        result = torch.autograd.grad(sol.x[:, 2].sum(), leaf)[0] if gradient else sol.x[:, 2]
        if rates.is_cuda:
            torch.cuda.synchronize()
        return result

    return run


def _diffrax(name: str, rates: Any, device: str) -> Run:
    import diffrax
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    jax.config.update("jax_enable_x64", True)

    def field(t: Any, x: Any, rates: Any) -> Any:
        slow, fast, back = rates[0] * x[0], rates[1] * x[1] * x[1], rates[2] * x[1] * x[2]
        return jnp.stack([back - slow, slow - back - fast, fast])

    def end(rates: Any) -> Any:
        sol = diffrax.diffeqsolve(
            *(diffrax.ODETerm(field), getattr(diffrax, name)(), 0.0, T1, None, jnp.array([1.0, 0.0, 0.0])),
            args=rates,
            stepsize_controller=diffrax.PIDController(**TOLERANCE),
            max_steps=2048,
        )
        return sol.ys[-1, 2]

    forward = jax.jit(jax.vmap(end))
    backward = jax.jit(jax.grad(lambda given: jax.vmap(end)(given).sum()))
    given = jax.device_put(rates.numpy(), jax.devices("gpu" if device == "cuda" else "cpu")[0])

    def run(gradient: bool) -> Any:
        return torch.from_numpy(np.array((backward if gradient else forward)(given).block_until_ready()))

    return run


if __name__ == "__main__":
    main()
