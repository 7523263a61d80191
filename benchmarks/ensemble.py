"""An ensemble of Lorenz systems: forward at several tolerances, and the gradient, in double precision on a GPU or CPU.

    python -m benchmarks.ensemble --device cuda --json results/bench-ensemble-cuda.json
    python -m benchmarks.ensemble --samples 512                    # does it run?

x' = 10 (y - x), y' = x (rho - z) - y, z' = x y - 8/3 z from (1, 0, 0) over [0, 1], rho = linspace(0, 21, N), tsit5 with
rtol = atol. The setting, and the published times and errors beside it, are those of the notebooks of GRADSOLVE and
DiffEqGPU (H200 NVL, N = 524,288; gradients N = 32,768). The error is the largest relative one of x at rho = 21 against
rtol = 1e-12. "kernel" is the time on the GPU alone, "call" that of a whole call from Python.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .environment import describe, prepare

PUBLISHED = {  # ms and error, by rtol
    "1e-03": {"GRADSOLVE": [0.276, None], "DiffEqGPU": [0.748, None]},
    "1e-06": {"GRADSOLVE": [0.657, 3.2e-7], "DiffEqGPU": [1.922, 1.0e-7]},
    "1e-08": {"GRADSOLVE": [1.42, None], "DiffEqGPU": [4.24, None]},
    "gradient, 1e-06": {"GRADSOLVE, without the recording pass": [3.42, None], "diffrax": [32.5, None]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=524_288)
    parser.add_argument("--gradient-samples", type=int, default=32_768)
    parser.add_argument("--tolerances", nargs="*", type=float, default=[1e-3, 1e-6, 3e-7, 2e-7, 1e-7, 1e-8])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    prepare(arguments.device, 1)
    found = {"forward": [forward(arguments, rtol) for rtol in arguments.tolerances], "gradient": gradient(arguments)}
    print(json.dumps(found, indent=1))
    command = ("python -m benchmarks.ensemble " + shlex.join(sys.argv[1:])).strip()
    result = {"command": command, **describe(arguments.device, 1), **found, "published": PUBLISHED}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def lorenz(t: Any, x: Any, rho: Any) -> Any:
    import torch

    a, b, c = x.unbind(1)
    return torch.stack([10 * (b - a), a * (rho - c) - b, a * b - 8 / 3 * c], 1)


def problem(samples: int, device: str) -> tuple[Any, Any]:
    import torch

    rho = torch.linspace(0, 21, samples, dtype=torch.float64, device=device)
    x0 = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64, device=device).expand(samples, 3).contiguous()
    return x0, rho


def forward(arguments: argparse.Namespace, rtol: float) -> dict[str, Any]:
    import torch

    import ncode

    x0, rho = problem(arguments.samples, arguments.device)

    def run() -> Any:
        with torch.no_grad():
            return ncode.solve(lorenz, x0, 0.0, 1.0, theta=rho, method="tsit5", rtol=rtol, atol=rtol, compile=True)

    exact = ncode.solve(
        lorenz, x0[-1:], 0.0, 1.0, theta=rho[-1:], method="dopri8", rtol=1e-12, atol=1e-12, max_steps=100_000
    ).x
    solution = run()
    error = float(((solution.x[-1:] - exact) / exact).abs().max())
    return {
        "rtol": rtol,
        "samples": arguments.samples,
        "error": error,
        "steps": float(solution.stats.steps.double().mean()),
        "backend": solution.stats.backend,
        **timed(run, arguments),
    }


def gradient(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    import ncode

    samples, device = arguments.gradient_samples, arguments.device
    x0, rho = problem(samples, device)
    rho.requires_grad_()

    def run() -> Any:
        sol = ncode.solve(lorenz, x0, 0.0, 1.0, theta=rho, method="tsit5", rtol=1e-6, atol=1e-6, compile=True)
        return torch.autograd.grad(sol.x.square().sum(), rho)[0]

    tight = {"method": "dopri8", "rtol": 1e-11, "atol": 1e-11}
    some = rho.detach()[:: max(samples // 64, 1)].clone().requires_grad_()
    sol = ncode.solve(lorenz, x0[: len(some)], 0.0, 1.0, theta=some, **tight)
    exact = torch.autograd.grad(sol.x.square().sum(), some)[0]
    found = run()[:: max(samples // 64, 1)]
    error = float((found - exact).norm() / exact.norm())
    return {"rtol": 1e-6, "samples": samples, "gradient_error": error, **timed(run, arguments)}


def timed(run: Callable[[], Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Median milliseconds of a call, and of its kernels on a GPU."""
    import torch

    calls = []
    for _ in range(arguments.turns):
        begin = time.perf_counter()
        run()
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        calls.append(1e3 * (time.perf_counter() - begin))
    times: dict[str, Any] = {"call_ms": statistics.median(calls)}
    if arguments.device == "cuda":
        times["kernel_ms"] = kernel_time(run)
    return times


def kernel_time(run: Callable[[], Any]) -> float:
    """Milliseconds that the GPU spends in the kernels of one call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    totals = []
    for _ in range(5):
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            run()
            torch.cuda.synchronize()
        events = [it for it in recorded.events() if it.name in ("solve", "pull")]
        totals.append(sum(it.device_time_total for it in events) / 1e3)
    return statistics.median(totals)


if __name__ == "__main__":
    main()
