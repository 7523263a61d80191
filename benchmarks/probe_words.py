"""Words of letters that turn a state: a step at a time, by a loop or scan with one backward, and by an LSTM.

Each letter of an alphabet of two has a skew matrix, and a word is the product of their exponentials, as in the lab's
experiment `tracking`. Forward and backward, for words of several lengths; m elements, in blocks of b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ncode.closed_forms import linear_recurrence, piecewise_linear_flow
from ncode.dynamics import Skew

from .probe import arguments, headline, probe, write


def measure(batch: int, count: int, m: int, b: int, options: Any) -> list[dict]:
    """All ways for one size."""
    g = torch.Generator().manual_seed(0)
    skew, letters = Skew(m, b).to(options.device), torch.randint(2, (batch, count), generator=g).to(options.device)
    control = 0.3 * torch.randn(2, m // b, b * (b - 1) // 2, generator=g, dtype=torch.float64)
    x0 = torch.randn(batch, m, generator=g, dtype=torch.float64)
    control, x0 = (leaf.to(options.device).requires_grad_() for leaf in (control, x0))
    knots = torch.arange(count + 1.0, device=options.device)

    def maps() -> Tensor:
        """The map of each letter at each place of each block, (batch n, count, b, b)."""
        return _by_block(torch.linalg.matrix_exp(skew.blocks(control))[letters])

    def stepwise() -> Tensor:
        e, x, states = torch.linalg.matrix_exp(skew.blocks(control)), x0.reshape(batch, -1, b), []
        for letter in letters.unbind(1):
            x = (e[letter] * x[:, :, None]).sum(-1)
            states.append(x)
        return torch.stack(states, 1).flatten(2)

    def recurrent(recurrence: str) -> Callable[[], Tensor]:
        return lambda: _by_sample(linear_recurrence(maps(), x0.reshape(-1, b), recurrence=recurrence)[:, 1:], batch)

    def per_token() -> Tensor:
        theta = _by_block(skew.blocks(control)[letters])
        return _by_sample(piecewise_linear_flow(theta, x0.reshape(-1, b), knots)[:, 1:], batch)

    ways = {
        "a step at a time, plain autograd": stepwise,
        "linear_recurrence, loop": recurrent("loop"),
        "linear_recurrence, scan": recurrent("scan"),
        "piecewise_linear_flow: an exponential per token": per_token,
    }
    headline(f"batch {batch}, {count} letters, m = {m} in blocks of {b}: milliseconds")
    size: dict[str, Any] = {"batch": batch, "count": count, "m": m, "block": b}
    rows, expected = [], None
    for name, forward in ways.items():
        run = _with_gradients(forward, [control, x0])
        expected = expected or run()
        rows.append(probe(name, forward, run, expected, options, **size))
    lstm = nn.LSTM(2, m, batch_first=True).to(options.device)
    inputs = nn.functional.one_hot(letters, 2).float()
    forward = lambda: lstm(inputs)[0]  # noqa: E731
    rows.append(
        probe("LSTM, float32", forward, _with_gradients(forward, list(lstm.parameters())), None, options, **size)
    )
    return rows


def _with_gradients(forward: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        y = forward()
        return [y.detach(), *torch.autograd.grad(y.sin().sum(), leaves)]

    return run


def _by_block(a: Tensor) -> Tensor:
    """(batch, count, n, ...) as (batch n, count, ...)."""
    return a.transpose(1, 2).flatten(0, 1)


def _by_sample(xs: Tensor, batch: int) -> Tensor:
    """(batch n, count, b) as (batch, count, m)."""
    return xs.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2)


def main() -> None:
    options = arguments(__doc__ or "")
    if options.quick:
        write(measure(2, 8, 4, 2, options), options)
        return
    sizes = [(*size, 24, b) for b in (24, 6) for size in ((1, 256), (1, 4096), (64, 16), (64, 256))]
    write([row for size in sizes for row in measure(*size, options)], options)


if __name__ == "__main__":
    main()
