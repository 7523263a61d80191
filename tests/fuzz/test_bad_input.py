"""Whatever is given to `solve`: a solution, or an error of the library with a sentence."""

from __future__ import annotations

import decimal
import fractions
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ncode
from ncode import InputError, SolveError

from .cases import Case, Times, cases
from .promises import keeps_its_promises, loss

HUGE = 10**400


def _nested(depth: int) -> Any:
    tree: Any = torch.ones(2, 1)
    for _ in range(depth):
        tree = [tree]
    return tree


def _nested_tensor() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])


def _quantised() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2, 1), 0.1, 0, torch.quint8)


def _sparse_rows() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(2).to_sparse_csr()


def _inference() -> Any:
    with torch.inference_mode():
        return torch.ones(2, 1)


# Functions that make them, so that each call has its own.
_NUMBERS = [None, True, 0, -1, 0.0, -0.0, 1.5, 1e-320, 1e300, 2**63, 10**30, math.nan, math.inf, -math.inf, 1j]
_NUMBERS += ["0", b"1", [], [1.0], (0.5,), {}, object, np.float32(0.5), np.int64(3), np.array(0.5), np.array([0.5])]
_NUMBERS += [fractions.Fraction(1, 3), decimal.Decimal("0.5")]
ODD_NUMBERS: dict[str, Any] = {repr(value): lambda value=value: value for value in _NUMBERS}
ODD_NUMBERS |= {"10**400": lambda: HUGE, "-10**400": lambda: -HUGE, "a fraction": lambda: fractions.Fraction(HUGE)}
ODD_TENSORS: dict[str, Any] = {
    "0-dimensional": lambda: torch.tensor(0.5),
    "nan": lambda: torch.full((2, 1), math.nan),
    "inf": lambda: torch.full((2,), math.inf),
    "int": lambda: torch.ones(2, 1, dtype=torch.int64),
    "int of one dimension": lambda: torch.arange(2),
    "bool": lambda: torch.ones(2, 1, dtype=torch.bool),
    "half": lambda: torch.ones(2, 1, dtype=torch.float16),
    "bfloat16": lambda: torch.ones(2, 1, dtype=torch.bfloat16),
    "float8": lambda: torch.ones(2, 1).to(torch.float8_e4m3fn),
    "complex": lambda: torch.ones(2, 1, dtype=torch.complex64),
    "complex, conjugated": lambda: torch.ones(2, 1, dtype=torch.complex64).conj(),
    "empty": lambda: torch.ones(0),
    "empty samples": lambda: torch.ones(2, 0),
    "no samples": lambda: torch.ones(0, 3),
    "wide": lambda: torch.ones(7, 1),
    "deep": lambda: torch.ones(2, 1, 1, 1, 1, 1, 1, 1, 1),
    "expanded": lambda: torch.ones(1, 1).expand(2, 3),
    "transposed": lambda: torch.ones(3, 2).t(),
    "tiny": lambda: torch.full((2, 1), 1e-42),
    "huge": lambda: torch.full((2, 1), 3e38),
    "parameter": lambda: nn.Parameter(torch.ones(2, 1)),
    "computed": lambda: torch.ones(2, 1, requires_grad=True) * 2,
    "meta": lambda: torch.ones(2, 1, device="meta"),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse rows": _sparse_rows,
    "nested": _nested_tensor,
    "quantised": _quantised,
    "inference": _inference,
}
ODD_TREES: dict[str, Any] = {
    "deep tree": lambda: _nested(3000),
    "tree": lambda: _nested(20),
    "list with None": lambda: [torch.ones(2, 1), None],
    "mixed": lambda: {"a": torch.ones(2, 1), 3: [torch.ones(2), 1.0]},
    "tree of ints": lambda: [torch.arange(2)],
    "ragged": lambda: [[0.0, 0.5], [0.5]],
    "nested lists": lambda: [[0.0, 0.5], [0.1, 0.2]],
    "range": lambda: range(2),
    "out of order": lambda: [0.5, 0.25],
    "numbers beyond": lambda: [-1e9, 1e9],
    "numbers beyond all": lambda: [HUGE, 0.0],
    "strings": lambda: ["0.1", "0.2"],
}
ODD_FUNCTIONS: dict[str, Any] = {
    "one argument": lambda: lambda t: t,
    "no arguments": lambda: lambda: None,
    "keywords only": lambda: lambda *, t, x, theta: x,
    "any arguments": lambda: lambda *arguments: -arguments[1],
    "None": lambda: lambda t, x, theta: None,
    "number": lambda: lambda t, x, theta: 0.0,
    "tuple": lambda: lambda t, x, theta: (x,),
    "time": lambda: lambda t, x, theta: t,
    "one row": lambda: lambda t, x, theta: x[:1],
    "flat": lambda: lambda t, x, theta: x.reshape(-1),
    "double": lambda: lambda t, x, theta: x.double(),
    "half": lambda: lambda t, x, theta: x.real.half(),
    "int": lambda: lambda t, x, theta: x.real.int(),
    "complex": lambda: lambda t, x, theta: x + 0j,
    "nan": lambda: lambda t, x, theta: x * math.nan,
    "numpy": lambda: lambda t, x, theta: np.ones(x.shape),
    "meta": lambda: lambda t, x, theta: x.to("meta"),
    "sparse": lambda: lambda t, x, theta: x.real.to_sparse(),
    "module": lambda: nn.Linear(1, 1),
    "string": lambda: "tanh",
}
_WORDS = ("", "Dopri5", "rk45", "samples", "auto", "inductor2", "eager", " euler")
WORDS: dict[str, Any] = {repr(word): lambda word=word: word for word in _WORDS}
OBJECTS: dict[str, Any] = {
    "PID, the class": lambda: ncode.PID,
    "PID(largest=1e300)": lambda: ncode.PID(largest=1e300),
    "PID(0, 0, 0)": lambda: ncode.PID(0.0, 0.0, 0.0),
    "object": object,
}
ANYTHING = ODD_NUMBERS | ODD_TENSORS | ODD_TREES | WORDS | OBJECTS
PLACES = ("dynamics", "x0", "t0", "t1", "theta", "feedback", "cost", "save_at", "dense", "method", "rtol", "atol", "dt")
PLACES += ("step", "gradient", "compile", "max_steps", "checkpoint_every", "keep", "step_rule", "throw")
PLACES += ("min_dt", "max_dt", "keep_last", "save_steps")


def _pool(place: str) -> dict[str, Any]:
    if place in ("dynamics", "feedback", "cost"):
        return ODD_FUNCTIONS
    # A nest of tensors is a state like any other, but not one that the fields of these cases take.
    return {name: make for name, make in ANYTHING.items() if (place, name) != ("x0", "tree")}


changes = st.one_of([st.tuples(st.just(place), st.sampled_from(sorted(_pool(place)))) for place in PLACES])


def assert_solution_or_sentence(case: Case, changes: dict[str, str]) -> None:
    """Solve with odd values in some places: an error must be one of the library, and a solution must be sound."""
    # The functions of a nest, or of an event, would fail at another state themselves.
    arguments = replace(case, nest="tensor", event=None).build(trained=True)
    call = {**arguments.solve, "max_steps": 30}
    try:
        call |= {place: _pool(place)[name]() for place, name in changes.items()}
        if call.get("compile") is True:
            return  # takes seconds, and is tested elsewhere
        with keeps_its_promises(arguments.leaves):
            solution = ncode.solve(**call)
        repr(solution)
        assert solution.x.shape == call["x0"].shape
        assert solution.x.dtype == call["x0"].dtype
        assert solution.x[solution.ok].isfinite().all()
        value = loss(solution)
        if value.requires_grad:
            value.backward()
    except (InputError, SolveError):
        return


@pytest.mark.parametrize("place", PLACES)
def test_every_odd_value_gives_a_solution_or_a_sentence(place):
    plain = Case(2, (1,), 0, ("add", ("x",), ("control",)), Times("numbers", ((0.0, 1.0),)), dtype=torch.float32)
    driven = replace(plain, control=(1,), feedback=True, cost=True, saved=(0.0, 0.5), saved_kind="list")
    failures = []
    for case in (plain, driven):
        for name in _pool(place):
            try:
                assert_solution_or_sentence(case, {place: name})
            except Exception as error:
                failures.append(f"{name}: {type(error).__name__}: {str(error)[:100]}")
    assert not failures, "\n".join(failures)


@given(cases(empty=False, far=False), st.lists(changes, min_size=2, max_size=3, unique_by=lambda change: change[0]))
def test_odd_values_together_give_a_solution_or_a_sentence(case, given_changes):
    assert_solution_or_sentence(case, dict(given_changes))
