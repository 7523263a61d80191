"""Fields that break the rules: refused, or solved as if they did not; never a wrong number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

import ncode
from ncode import InputError, SolveError

from .cases import Case, cases
from .promises import assert_agree, gradients, keeps_its_promises, loss, outputs, solve, some
from .test_solve import rounding

Field = Callable[[Tensor, Tensor, Any], Any]

OTHER_PRECISION = {
    torch.float32: torch.float64,
    torch.float64: torch.float32,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex64,
}

# What a field returns instead of its slope k, from some evaluation on.
WRONG_SLOPES: dict[str, Callable[[Tensor], Any]] = {
    "one row": lambda k: k[:1],
    "no rows": lambda k: k[:0],
    "a number": lambda k: 0.5,
    "a tensor without dimensions": lambda k: k.real.mean(),
    "a flat tensor": lambda k: k.reshape(-1),
    "one more dimension": lambda k: k[..., None],
    "another precision": lambda k: k.to(OTHER_PRECISION[k.dtype]),
    "complex numbers": lambda k: k + 1j * k.real if not k.is_complex() else k.real,
    "half precision": lambda k: k.real.half(),
    "whole numbers": lambda k: k.real.int(),
    "None": lambda k: None,
    "a tuple": lambda k: (k,),
    "a meta tensor": lambda k: k.to("meta"),
    "nan": lambda k: k * float("nan"),
    "inf": lambda k: k * 0 + float("inf"),
}

# A right field that works in place, or writes its slope into memory that it uses again.
IN_PLACE: dict[str, Callable[[Field], Field]] = {
    "x is doubled and halved": lambda f: lambda t, x, theta: f(t, x.mul_(2).mul_(0.5), theta),
    "x is set to zero": lambda f: lambda t, x, theta: _after(f(t, x, theta), x.zero_),
    "the slope is x itself": lambda f: lambda t, x, theta: x.copy_(f(t, x, theta)),
    "time is moved": lambda f: lambda t, x, theta: f(t.add_(0.5).sub_(0.5), x, theta),
    "a view of x is written": lambda f: lambda t, x, theta: _after(f(t, x, theta), lambda: x[:1].mul_(3)),
}


def _after(value: Any, action: Callable[[], Any]) -> Any:
    action()
    return value


class _Reused:
    """A field that writes every slope into the same memory."""

    def __init__(self, f: Field):
        self.f, self.slopes = f, {}

    def __call__(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
        slope = self.f(t, x, theta)
        with torch.no_grad():
            memory = self.slopes.setdefault((slope.shape, slope.dtype), torch.empty_like(slope))
            return memory.copy_(slope)


def wrong_from(f: Field, number: int, wrong: Callable[[Tensor], Any]) -> Field:
    """The field f, wrong from some evaluation on."""
    calls = [0]

    def field(t: Tensor, x: Tensor, theta: Any) -> Any:
        calls[0] += 1
        slope = f(t, x, theta)
        return wrong(slope) if calls[0] > number else slope

    return field


def agree_or_refuse(case: Case, change: Callable[[Field], Field], trained: bool, **options: Any) -> None:
    """Solve with a changed field: an error of the library, or the values and gradients of the field itself."""
    expected, changed = case.build(trained=trained), case.build(trained=trained)
    truth = solve(expected, **options)
    changed.f = change(changed.f)
    try:
        solution = solve(changed, **options)
        mine = gradients(loss(solution), changed.leaves) if trained else {}
    except (InputError, SolveError):
        return
    assert_agree(outputs(solution), outputs(truth), 1e3 * rounding(case))
    if trained:
        assert_agree(mine, gradients(loss(truth), expected.leaves), 1e4 * rounding(case), "gradient of ")


@some
@given(cases(empty=False), st.sampled_from(sorted(WRONG_SLOPES)), st.integers(0, 12), st.booleans())
def test_a_wrong_slope_is_refused_whenever_it_comes(case, name, number, trained):
    arguments = case.build(trained=trained)
    correct = WRONG_SLOPES[name]
    # Samples that are done are left out of the batch, so that a slope may be wrong for many and right for a few.
    ones = [torch.ones(rows, *case.shape, dtype=case.dtype) for rows in range(1, case.batch + 1)]
    given = [(correct(right), right) for right in ones]
    right = [isinstance(k, Tensor) and (k.shape, k.dtype) == (it.shape, it.dtype) for k, it in given]
    assume(not any(right) or name in ("nan", "inf", "a meta tensor"))
    arguments.f = wrong_from(arguments.f, number, correct)
    needed = [0]
    counted = case.build(trained=trained)
    inner = counted.f
    counted.f = lambda t, x, theta: _after(inner(t, x, theta), lambda: needed.__setitem__(0, needed[0] + 1))
    solve(counted)
    if needed[0] <= number or not bool((arguments.t0 != arguments.t1).any()):
        return
    with pytest.raises((InputError, SolveError)):
        solve(arguments)


@some
@given(cases(empty=False), st.sampled_from(sorted(IN_PLACE)), st.booleans())
def test_fields_that_work_in_place_are_right_or_refused(case, name, trained):
    agree_or_refuse(case, IN_PLACE[name], trained)


@some
@given(cases(empty=False))
def test_fields_that_reuse_their_memory_are_right_or_refused(case):
    with torch.no_grad():
        agree_or_refuse(case, _Reused, trained=False)


@some
@given(cases(empty=False, jumps=False), st.booleans())
def test_fields_that_know_samples_by_position_are_right_or_refused(case, trained):
    rates = torch.linspace(0.0, 5.0, 100, dtype=torch.float64)

    def by_position(f: Field) -> Field:
        def field(t: Tensor, x: Tensor, theta: Any) -> Tensor:
            rows = rates[: len(x)].to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
            return f(t, x, theta) - rows * x

        return field

    together = case.build(trained=trained)
    together.f = by_position(together.f)
    try:
        solution = outputs(solve(together, step="sample"))
    except (InputError, SolveError):
        return
    for row in range(case.batch):
        alone = case.build(rows=[row], trained=trained)
        inner, rate = alone.f, float(rates[row])
        alone.f = lambda t, x, theta, inner=inner, rate=rate: inner(t, x, theta) - rate * x
        mine = {name: value[row : row + 1] for name, value in solution.items()}
        tolerance = 1e3 * rounding(case) if "dt" in case.options else 100 * case.options["rtol"]
        assert_agree(mine, outputs(solve(alone, step="sample")), tolerance, f"sample {row}: ")


class _Late(nn.Module):
    """A field that uses its second layer only after some time."""

    def __init__(self, width: int, dtype: torch.dtype):
        super().__init__()
        self.early, self.late = (nn.Linear(width, width, dtype=dtype) for _ in range(2))


HOLDERS: dict[str, Callable[[_Late], Any]] = {
    "module": lambda net: net,
    "object": lambda net: SimpleNamespace(early=net.early, late=net.late),
    "class": lambda net: type("Place", (), {"early": net.early, "late": net.late}),
}


@some
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(sorted(HOLDERS)),
    st.sampled_from(["discrete", "adjoint"]),
    st.sampled_from(["euler", "rk4", "dopri5"]),
    st.integers(0, 100),
)
def test_parameters_first_used_late_have_their_gradients(batch, width, holder, gradient, method, seed):
    torch.manual_seed(seed)
    net = _Late(width, torch.float64)
    held, x0 = HOLDERS[holder](net), torch.randn(batch, width, dtype=torch.float64)

    def field(t: Tensor, x: Tensor, theta: Any) -> Tensor:
        return torch.tanh(held.early(x) if float(t.detach().max()) < 0.51 else held.late(x))

    def gradient_of(kind: str, dt: float) -> dict[str, Tensor]:
        leaves = dict(net.named_parameters())
        with keeps_its_promises(leaves):
            solution = ncode.solve(field, x0, 0.0, 1.0, method=method, dt=dt, gradient=kind)
        return gradients(loss(solution), leaves)

    # The adjoint is an approximation, of the order of the method.
    dt, tolerance = (0.25, 1e-9) if gradient == "discrete" else (0.01, 0.2)
    assert_agree(gradient_of(gradient, dt), gradient_of("autograd", dt), tolerance)


CHANGES = ("buffer", "parameter", "x0", "control", "number", "nothing")


@some
@given(st.sampled_from(CHANGES), st.sampled_from(["discrete", "adjoint", "autograd"]), st.integers(0, 50))
def test_changes_between_forward_and_backward_are_noticed(what, gradient, seed):
    torch.manual_seed(seed)
    weight = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    buffer = torch.randn(2, dtype=torch.float64)
    x0 = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    theta = torch.randn(3, 2, dtype=torch.float64)
    settings = {"scale": 0.5}
    leaves = {"weight": weight, "x0": x0}

    def field(t: Tensor, x: Tensor, control: Tensor) -> Tensor:
        return torch.tanh(x @ weight) * buffer + settings["scale"] * control * x

    def run(change: bool) -> dict[str, Tensor]:
        solution = ncode.solve(field, x0, 0.0, 1.0, theta=theta, gradient=gradient, rtol=1e-6, atol=1e-8)
        value = loss(solution)
        if change and what == "number":
            settings["scale"] = 3.0
        elif change and what != "nothing":
            tensor = {"buffer": buffer, "parameter": weight, "x0": x0, "control": theta}[what]
            with torch.no_grad():
                tensor.add_(1.0)
        return gradients(value, leaves)

    expected = run(change=False)
    try:
        mine = run(change=True)
    except (InputError, SolveError):
        return
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):  # torch's own words for it
            raise
        return
    assert_agree(mine, expected, 1e-6)


@some
@given(cases(empty=False, far=False, stiff=False), st.sampled_from(["no_grad", "inference_mode", "nothing"]))
def test_a_solve_leaves_nothing_behind_for_the_next(case, mode):
    """A first solve without gradients must not spoil a later one with them."""
    case = replace(case, times=replace(case.times, kind="tensors"))
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "nothing": torch.enable_grad}
    arguments = case.build(trained=True)
    with modes[mode]():
        ncode.solve(**arguments.solve)
    first = gradients(loss(solve(arguments)), arguments.leaves)
    again = case.build(trained=True)
    assert_agree(first, gradients(loss(solve(again)), again.leaves), 1e4 * rounding(case))
