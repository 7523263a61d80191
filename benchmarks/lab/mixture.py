"""The time to fit Gaussian mixtures with full covariances to codes.

    python -m benchmarks.lab.mixture [--device cuda] [--components 10 100 1000] [--json lab/results/mixture-cuda.json]

The aim is 1,000 components for 10,000 codes of 128 dimensions in under a minute on a GPU. Codes lie near a curved
surface, so that components overlap. Each number of components is fitted twice: as in `ncode run generate`, where EM
stops when the likelihood no longer grows, and with all 100 iterations, the most that it can take.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from ncode_lab.metrics import GaussianMixture

from .record import Stopwatch, write_record

# The tolerance that stops EM, and the least variance: without a tolerance, no component may run out of codes.
CASES = {"until it converges": (1e-3, 1e-6), "100 iterations": (0.0, 1.0)}


def main() -> None:
    """Measure, print, and write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--components", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--codes", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    codes = draw_codes(given.codes, given.dimensions).to(given.device)
    GaussianMixture(2, max_iterations=2).fit(codes[:100])  # initialises libraries
    rows = [measure(codes, count, case) for count in given.components for case in CASES]
    write_record("mixture", {"seed": 0, "codes": list(codes.shape), "fits": rows}, given.device, given.json)


def draw_codes(count: int, dimensions: int) -> torch.Tensor:
    """Draw codes near a curved surface of 16 dimensions."""
    generator = torch.Generator().manual_seed(0)
    places, turn = torch.randn(count, 16, generator=generator), torch.randn(16, dimensions, generator=generator)
    return torch.tanh(places @ turn / 4) + 0.1 * torch.randn(count, dimensions, generator=generator)


def measure(codes: torch.Tensor, count: int, case: str) -> dict[str, object]:
    """Time one fit, including k-means."""
    tol, least = CASES[case]
    mixture = GaussianMixture(count, tol=tol, reg_covar=least)
    if codes.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    clock = Stopwatch(codes.device.type)
    mixture.fit(codes, generator=torch.Generator().manual_seed(0))
    row = {"components": count, "case": case, "seconds": round(clock.lap(), 2), "iterations": mixture.iterations}
    if codes.is_cuda:
        row["GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
