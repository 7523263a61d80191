"""Which formulation of a linear flow is fastest here? Workload: batch 64, m = 128, two non-zeros per row, T = 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ncode.closed_forms import linear_flow

from .probe import arguments, headline, probe, write


def problem(batch: int, m: int, k: int, norm: float, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of norm `norm` a sample, their columns, and x0."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.stack([torch.randperm(m, generator=generator)[:k] for _ in range(m)])
    values = torch.randn(batch, m, k, generator=generator)
    values = norm * values / values.flatten(1).norm(dim=1)[:, None, None]
    x0 = torch.randn(batch, m, generator=generator)
    return (
        values.to(device).requires_grad_(),
        columns.to(device),
        x0.to(device).requires_grad_(),
    )


def dense(values: Tensor, columns: Tensor) -> Tensor:
    """The matrices (batch, m, m)."""
    batch, m, _ = values.shape
    return values.new_zeros(batch, m, m).scatter_add(2, columns.expand_as(values), values)


def by_torch(values: Tensor, columns: Tensor, x0: Tensor, span: float) -> Tensor:
    """torch's own matrix exponential."""
    return (torch.linalg.matrix_exp(dense(values, columns) * span) @ x0[..., None])[..., 0]


def measure(batch: int, m: int, k: int, norm: float, options: Any, span: float = 10.0, saved: int = 0) -> list[dict]:
    """All formulations of one size."""
    values, columns, x0 = problem(batch, m, k, norm, options.device)
    save_at = torch.linspace(0, span, saved) if saved else None
    title = f"batch {batch}, m = {m}, {k} non-zeros per row, norm {norm:g}, T = {span:g}, {saved} saved times"
    headline(f"{title}: milliseconds")

    def ours(**how: Any) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            flow = linear_flow(values, x0, 0.0, span, columns=columns, save_at=save_at, **how)
            return flow.x if flow.xs is None else torch.cat([flow.x[:, None], flow.xs], 1)

        return forward

    largest = float(values.detach().abs().sum(2).max()) * span
    ways: dict[str, Callable[[], Tensor]] = {
        "auto": ours(),
        "matrix": ours(formulation="matrix"),
        "matrix, norm bounded beforehand": ours(formulation="matrix", bound=largest),
        "action": ours(formulation="action"),
        "action, norm bounded beforehand": ours(formulation="action", bound=largest),
    }
    if not saved:
        ways["torch.linalg.matrix_exp, float32"] = lambda: by_torch(values, columns, x0, span)
        ways["torch.linalg.matrix_exp, float64"] = lambda: by_torch(values.double(), columns, x0.double(), span).float()

    expected = None
    if batch * m**2 <= 2**24 and not saved:
        exact = [values.detach().double().requires_grad_(), x0.detach().double().requires_grad_()]
        y = by_torch(exact[0], columns, exact[1], span)
        expected = [y.detach(), *torch.autograd.grad(y.square().sum().log(), exact)]

    rows = []
    for name, forward in ways.items():

        def run(forward: Callable[[], Tensor] = forward) -> list[Tensor]:
            y = forward()
            return [y, *torch.autograd.grad(y.square().sum().log(), [values, x0])]

        facts = {"batch": batch, "m": m, "k": k, "norm": norm, "saved": saved}
        rows.append(probe(name, forward, run, expected, options, capture="bounded" in name, **facts))
    return rows


def main() -> None:
    """The workload, then sizes around it, which say where one formulation overtakes the other."""
    options = arguments(__doc__ or "")
    torch.backends.cuda.matmul.allow_tf32 = False
    if options.quick:
        write([*measure(4, 8, 2, 1.0, options), *measure(4, 8, 2, 1.0, options, saved=5)], options)
        return
    rows = [
        *measure(64, 128, 2, 1.0, options),
        *measure(64, 128, 2, 10.0, options),
        *measure(64, 128, 10, 10.0, options),
        *measure(64, 128, 2, 10.0, options, saved=50),
    ]
    sizes = [(64, 16), (64, 32), (64, 64), (1, 128), (256, 64)]
    sizes += [(64, 256), (64, 512), (16, 1024), (1, 1024), (256, 128)] if options.device == "cuda" else []
    for batch, m in sizes:
        rows += measure(batch, m, 2, 10.0, options)
    write(rows, options)


if __name__ == "__main__":
    main()
