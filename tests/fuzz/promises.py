"""What every call promises: it ends, it leaves its inputs as they were, and it returns numbers that agree."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from hypothesis import HealthCheck, assume, settings
from torch import Tensor
from torch.utils import _pytree as pytree

import ncode

from .cases import unnested
from .grammar import leaves_of

SECONDS = 30.0  # of processor time; a call that takes longer hangs
calls = 0  # counted for the summary


def examples(few: int, share: int) -> int:
    """Examples of a test whose examples take long: a few in `make test`, and one in `share` of the fuzz profile's."""
    return few if settings().derandomize else max(settings().max_examples // share, 1)


# A test here makes several calls per example, so it takes fewer examples than others.
some = settings(max_examples=examples(4, share=4), suppress_health_check=[HealthCheck.filter_too_much])


@contextmanager
def keeps_its_promises(*inputs: Any) -> Iterator[None]:
    """Check that the block ends, and that the tensors among its inputs are the same afterwards."""
    global calls
    calls += 1
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    before = [(t, t.detach().clone(), t._version, t.requires_grad, t.grad) for t in tensors]
    handler = signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, handler)
    for tensor, value, version, requires_grad, grad in before:
        same = torch.equal(tensor.detach().nan_to_num(), value.nan_to_num())
        unchanged = same and (tensor._version, tensor.requires_grad) == (version, requires_grad)
        assert unchanged and tensor.grad is grad, "an input was changed"  # noqa: PT018


@contextmanager
def drops_coarse_times() -> Iterator[None]:
    """Drop a case whose times are too coarse for its tolerance: dynamics that use them are refused, as documented."""
    try:
        yield
    except ncode.InputError as error:
        assume("are rounded by about" not in str(error))
        raise


def _hang(number: int, frame: Any) -> None:
    raise AssertionError(f"a call took more than {SECONDS:g} s")


def solve(arguments: Any, **changes: Any) -> ncode.Solution:
    """`ncode.solve` of a case, with its promises checked."""
    given = {**arguments.solve, **changes}
    with keeps_its_promises(given, arguments.leaves), drops_coarse_times():
        try:
            return ncode.solve(**given)
        except ncode.SolveError as error:
            # With a fixed step, Newton's method may meet a kink of a field from the grammar, and says so.
            assume(set(error.statuses) != {ncode.Status.NEWTON_FAILED})
            raise


def outputs(solution: Any) -> dict[str, Tensor]:
    """The tensors of a solution or of a reference, by name."""
    xs = None if solution.xs is None else unnested(solution.xs)
    found = {"x": unnested(solution.x), "cost": solution.cost, "xs": xs}
    found |= {f"theta {i}": leaf for i, leaf in enumerate(leaves_of(solution.theta))}
    return {name: value for name, value in found.items() if value is not None}


def assert_agree(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float, what: str = "") -> None:
    """Check that tensors of the same names agree, relative to the largest number among those expected (at least 1)."""
    assert got.keys() == expected.keys()
    scale = max([1.0, *(float(value.detach().abs().max()) for value in expected.values() if value.numel())])
    for name, value in expected.items():
        mine = got[name].detach()
        assert mine.shape == value.shape, f"{what}{name} has shape {tuple(mine.shape)}, not {tuple(value.shape)}"
        if value.numel():
            error = float((mine.to(value.dtype) - value.detach()).abs().max())
            assert error <= tolerance * scale, f"{what}{name} differs by {error:.3g}, more than {tolerance * scale:.3g}"


def loss(solution: Any) -> Tensor:
    """A number that depends on all outputs, each with a weight of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for i, (_, value) in enumerate(sorted(outputs(solution).items())):
        weights = torch.linspace(0.5, 1.5, max(value.numel(), 1), dtype=torch.float64)[: value.numel()]
        real = value.real + value.imag if value.is_complex() else value
        total = total + ((0.5 + 0.1 * i) * weights * real.reshape(-1).double().sin()).sum()
    return total


def gradients(value: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by the names of their tensors; zero where a tensor has none."""
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    with keeps_its_promises(leaves):
        got = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, got, strict=True))
