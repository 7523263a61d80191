"""Is a loop or a scan faster for a linear recurrence? Forward and backward, for several batches, lengths and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ncode.closed_forms import linear_recurrence

from .probe import arguments, headline, probe, write


def measure(batch: int, count: int, m: int, options: Any) -> list[dict]:
    """Both ways for one size."""
    generator = torch.Generator().manual_seed(0)
    e = torch.linalg.qr(torch.randn(batch, count, m, m, generator=generator, dtype=torch.float64))[0]
    x0 = torch.randn(batch, m, generator=generator, dtype=torch.float64)
    e, x0 = (leaf.to(options.device).requires_grad_() for leaf in (e, x0))
    headline(f"batch {batch}, {count} steps, m = {m}: milliseconds")
    rows, expected = [], None
    for name in ("loop", "scan"):

        def forward(name: str = name) -> Tensor:
            return linear_recurrence(e, x0, recurrence=name)

        def run(forward: Callable[[], Tensor] = forward) -> list[Tensor]:
            y = forward()
            return [y.detach(), *torch.autograd.grad(y.square().sum().log(), [e, x0])]

        expected = expected or run()
        rows.append(probe(name, forward, run, expected, options, batch=batch, count=count, m=m))
    return rows


def main() -> None:
    options = arguments(__doc__ or "")
    if options.quick:
        write(measure(2, 8, 2, options), options)
        return
    sizes = [(b, k, m) for b in (1, 32) for k in (16, 128, 1024) for m in (2, 5, 16, 64) if b * k * m**2 < 3e7]
    write([row for size in sizes for row in measure(*size, options)], options)


if __name__ == "__main__":
    main()
