"""Errors, and the checks of arguments that raise them; constructors of your own can use those too."""

from __future__ import annotations

import difflib
import enum
import inspect
import math
import numbers
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from .ode.solution import Solution

__all__ = [
    "InputError",
    "SolveError",
    "Status",
    "check_choice",
    "check_count",
    "check_flag",
    "check_fraction",
    "check_function",
    "check_number",
    "check_tensor",
]


THROW = "solve(..., throw=False) returns the others, with nan for these"


class Status(enum.IntEnum):
    """How the solve of one sample ended; `sentence` is what a user reads.

    >>> Status.MAX_STEPS.sentence
    'needed more than max_steps steps; raise max_steps, loosen rtol and atol, or enlarge dt or max_dt if one is set'
    """

    OK = 0
    MAX_STEPS = 1
    STEP_TOO_SMALL = 2
    NOT_FINITE = 3
    MIN_DT = 4
    MAX_EVENTS = 5
    SINGULAR_MATRIX = 6
    NEWTON_FAILED = 7
    STIFF = 8

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = (
    "reached t1",
    "needed more than max_steps steps; raise max_steps, loosen rtol and atol, or enlarge dt or max_dt if one is set",
    "needed a step smaller than time can resolve; the solution may blow up or be stiff there, or rtol and atol are too"
    " tight for this precision",
    "met a value that is not finite; the dynamics returned nan or inf, an event function returned nan, or the solution"
    " overflowed",
    "needed a step smaller than min_dt; lower min_dt, or loosen rtol and atol",
    "met an event more often than its max_count; raise max_count, or make the event terminal",
    "met a matrix I - h gamma J that is singular; use a smaller dt, or an adaptive method",
    "Newton's method did not converge; the solution may blow up there, or dt, if one is set, is too large; use a"
    " smaller dt, or rodas5p, which needs no iterations",
    "needed more than max_steps steps because the problem is stiff: an explicit method must follow its fastest decay;"
    ' use method="rodas5p"',
)


class InputError(ValueError):
    """An argument that cannot be used: the message says what was given, what was expected, and what to do.

    >>> import torch, ncode
    >>> try:
    ...     ncode.solve(lambda t, x, theta: -x, torch.ones(2, 1), 0.0, 1.0, method="tsit")
    ... except ncode.InputError as error:
    ...     print(str(error).partition(" (")[0])
    unknown method 'tsit'; did you mean "tsit5"?
    """


class SolveError(RuntimeError):
    """Some samples did not reach t1.

    `samples`, `times` and `statuses` name them; `solution` holds what was reached, with nan for those samples.

    >>> import torch, ncode
    >>> try:
    ...     ncode.solve(lambda t, x, theta: x * x, torch.tensor([[0.1], [9.0]]), 0.0, 1.0)  # blows up at t = 1 / x0
    ... except ncode.SolveError as error:
    ...     print(error.samples, error.solution.x.isnan().tolist())
    [1] [[False], [True]]
    """

    def __init__(
        self,
        samples: list[int],
        times: list[float],
        statuses: list[Status],
        solution: Solution | None,
        batch: int,
        where: str = THROW,
    ):
        super().__init__(samples, times, statuses, solution, batch, where)
        self.samples, self.times, self.statuses, self.solution = samples, times, statuses, solution

    def __str__(self) -> str:
        samples, times, statuses, _, batch, where = self.args
        shown = [
            f"  sample {i} at t = {t:.6g}: {status.name}: {status.sentence}"
            for i, t, status in zip(samples[:8], times, statuses, strict=False)
        ]
        if len(samples) > len(shown):
            shown.append(f"  and {len(samples) - len(shown)} more (see .samples, .times and .statuses)")
        return "\n".join([f"{len(samples)} of {batch} samples did not reach t1 ({where}):", *shown])


def format_value(value: Any) -> str:
    """Return a value as short text for a message.

    >>> import torch
    >>> format_value([1, 2]), format_value(torch.zeros(3, 2)), len(format_value(10**4000))
    ('[1, 2]', 'a tensor of shape (3, 2)', 80)
    """
    try:
        text = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    except Exception:  # a number with too many digits, a nested tensor, a broken __repr__
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def format_type(value: Any, hint: str = "") -> str:
    """Return the type of a value for a message, and a hint; of a class, how to make an object of it instead.

    >>> format_type(3, ": use a float"), format_type(int)
    ('int: use a float', 'the class int: write int(...)')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}: write {value.__name__}(...)"
    return f"{type(value).__name__}{hint}"


def check_choice(kind: str, given: Any, known: Iterable[str]) -> str:
    """Return `given` if it is one of the known names; otherwise raise with the nearest one.

    >>> check_choice("norm", "sphere", ["none", "sphere"])
    'sphere'
    """
    known = list(known)
    if isinstance(given, str) and given in known:
        return given
    hint = nearest(given, known) if isinstance(given, str) else ""
    raise InputError(f"unknown {kind} {format_value(given)}{hint} (known: {', '.join(known)})")


def nearest(given: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the known names, or "" if none is near.

    >>> nearest("gaol", ["goal", "rate"])
    '; did you mean "goal"?'
    """
    known = list(known)
    alike = [name for name in known if name.lower() == given.lower()]
    near = alike or difflib.get_close_matches(given, known, n=1, cutoff=0.4)
    return f'; did you mean "{near[0]}"?' if near else ""


def check_number(name: str, value: Any, *, low: float, strict: bool = False) -> float:
    """Return a finite number that is at least `low` (above `low` if `strict`).

    >>> check_number("rtol", 1e-3, low=0.0)
    0.001
    """
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an int that no float can hold
            number = float(value)
    if not math.isfinite(number):
        hint = ": leave out the quotes" if isinstance(value, str) and value.replace(".", "", 1).isdigit() else ""
        if isinstance(value, Tensor) and value.numel() == 1:
            hint = ": use .item()"
        raise InputError(f"{name} must be a finite number; given {format_value(value)}{hint}")
    if number < low or (strict and number == low):
        raise InputError(f"{name} must be {'above' if strict else 'at least'} {low:g}; given {value}")
    return number


def check_count(name: str, value: Any, *, low: int = 1) -> int:
    """Return a whole number that is at least `low`.

    >>> check_count("hidden", 16)
    16
    """
    number = check_number(name, value, low=low)
    if number != int(number):
        raise InputError(f"{name} must be a whole number; given {value}")
    if int(value) >= 2**64:
        raise InputError(f"{name} must be below 2**64; given {number:g}")
    return int(value)


def check_fraction(name: str, value: Any) -> float:
    """Return a number that is at least 0 and below 1.

    >>> check_fraction("dropout", 0.5)
    0.5
    """
    number = check_number(name, value, low=0.0)
    if number >= 1.0:
        raise InputError(f"{name} must be at least 0 and below 1; given {value}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a value that is True or False.

    >>> check_flag("time", True)
    True
    """
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False; given {format_value(value)}")
    return value


def check_tensor(name: str, value: Any) -> Tensor:
    """Return a tensor whose values are stored one by one: not sparse, nested, quantised, or on the meta device.

    >>> import torch
    >>> check_tensor("x", torch.ones(2))
    tensor([1., 1.])
    """
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a tensor; given {format_value(value)}")
    if value.is_nested:
        raise InputError(f"{name} is a nested tensor: pad its samples to one shape, or solve those of each shape alone")
    if value.is_quantized:
        raise InputError(f"{name} is quantised, {value.dtype}: use {name}.dequantize()")
    if value.layout != torch.strided:
        raise InputError(f"{name} is stored as {value.layout}: use {name}.to_dense()")
    if value.dtype == torch.complex32 or (value.is_floating_point() and value.dtype.itemsize < 2):
        wide = "torch.complex64" if value.is_complex() else "torch.float32"
        raise InputError(f"{name} is {value.dtype}, which torch stores but hardly computes with: use {name}.to({wide})")
    if value.device.type == "meta":
        raise InputError(f"{name} is on the meta device and has no values: make it on another device")
    return value


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Turn errors about sizes that no memory can hold into `InputError`.

    >>> import torch
    >>> with allocating("the weights"):
    ...     torch.empty(2**62, 2**62)
    Traceback (most recent call last):
    ncode.errors.InputError: the weights are too large: ...
    """
    try:
        yield
    except torch.OutOfMemoryError:  # of a GPU: a smaller batch elsewhere may help
        raise
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in ("allocate", "verflow")):
            raise
        raise InputError(f"{what} are too large: {error}".splitlines()[0]) from error


def optional_import(module: str, task: str, extra: str) -> Any:
    """Return a module of a package that only some tasks need, and that an extra of torch-ncode installs.

    >>> optional_import("math", "rounding", "numbers").floor(2.5)
    2
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(f"{task} needs the package {package}: pip install torch-ncode[{extra}]") from error


def check_function(
    name: str, value: Any, arguments: Sequence[str], hint: str = "", adapt: bool = False
) -> Callable[..., Any]:
    """Return a function or module that can be called with these arguments, in this order.

    The error ends with `hint` or, if `adapt`, with how to write a function of fewer arguments.

    >>> check_function("feedback", lambda t, x, theta: theta, ("t", "x", "theta"))(0, 1, 2)
    2
    """
    wanted = f"{name} must be a function of ({', '.join(arguments)})"
    if not callable(value):
        raise InputError(f"{wanted}; given {type(value).__name__}{hint}")
    function = value.forward if isinstance(value, nn.Module) else value
    if _surely_takes(function, len(arguments)):
        return value
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions written in C need not have one
        return value
    if _binds(signature, *arguments):
        return value
    shown = type(value).__name__ if isinstance(value, nn.Module) else getattr(value, "__name__", repr(value))
    fewer = next((some for some in (("t", "x"), ("x",)) if adapt and _binds(signature, *some)), ())
    if fewer:
        inner = "net" if isinstance(value, nn.Module) else "f"
        hint = f": write lambda {', '.join(arguments)}: {inner}({', '.join(fewer)}){hint}"
    if len(fewer) == 2:
        hint += "; ncode.compat.torchdiffeq.odeint takes f(t, x) as it is"
    raise InputError(f"{wanted}; {shown} takes {signature}{hint}")


def _surely_takes(function: Any, count: int) -> bool:
    """Whether a plain function or method takes so many positional arguments; found faster than by its signature."""
    bound = isinstance(function, types.MethodType)
    plain = function.__func__ if bound else function
    if not isinstance(plain, types.FunctionType) or plain.__dict__ or plain.__code__.co_kwonlyargcount:
        return False
    most = plain.__code__.co_argcount - bound
    return most - len(plain.__defaults__ or ()) <= count <= most


def _binds(signature: inspect.Signature, *arguments: str) -> bool:
    with suppress(TypeError):
        signature.bind(*arguments)
        return True
    return False
