"""The operations of a traced graph that kernels know, by their ATen names.

`POINTWISE` gives for each the operation of a `Pointwise` statement and its operands, from the arguments. Masks are
numbers, 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .trace import Unsupported

Rule = Callable[[Any, Any], tuple[str, Any]]


def _words(*lines: str) -> tuple[str, ...]:
    return tuple(" ".join(lines).split())


VIEWS = _words(
    "view _unsafe_view reshape expand permute t transpose select slice unsqueeze squeeze alias detach split",
    "split_with_sizes unbind narrow movedim view_as expand_as diagonal",
)
IDENTITIES = _words("clone _to_copy lift_fresh_copy contiguous")
REDUCTIONS = _words("sum mean amax amin prod")
LINEAR = (*VIEWS, *IDENTITIES, *_words("neg sum select_backward slice_backward"))  # in their first argument
_COMPARISONS = _words("eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf")
_PLAIN = _words(
    "mul maximum minimum neg abs exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh",
    "cosh tanh asinh acosh atanh erf erfc sigmoid relu sign floor ceil trunc atan2 where",
)
MASKS = (*_COMPARISONS, *IDENTITIES, *_words("bitwise_and bitwise_or bitwise_not bitwise_xor where mul cat"))
"""Operations whose result may be a mask."""


def _plain(name: str, count: int | None = None) -> Rule:
    return lambda args, kwargs: (name, tuple(args[:count]))


def _sum_of(name: str) -> Rule:
    def rule(args: Any, kwargs: Any) -> tuple[str, Any]:
        alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        if alpha == 1:
            return name, (args[0], args[1])
        return name + "_scaled", (args[0], args[1], float(alpha))

    return rule


def _division(args: Any, kwargs: Any) -> tuple[str, Any]:
    if kwargs.get("rounding_mode") is not None or len(args) > 2:
        raise Unsupported("div with rounding")
    return "div", (args[0], args[1])


def _rounding(args: Any, kwargs: Any) -> tuple[str, Any]:
    if kwargs.get("decimals") or len(args) > 1:
        raise Unsupported("round to decimals")
    return "round", (args[0],)


_POWERS = {0: "one", 1: "copy", 2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


def _power(args: Any, kwargs: Any) -> tuple[str, Any]:
    base, exponent = args
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool) and exponent in _POWERS:
        return _POWERS[exponent], (base,)
    return "pow", (base, exponent)


def _clamp(args: Any, kwargs: Any) -> tuple[str, Any]:
    low = args[1] if len(args) > 1 else kwargs.get("min")
    high = args[2] if len(args) > 2 else kwargs.get("max")
    if low is None:
        return "minimum", (args[0], high)
    return ("maximum", (args[0], low)) if high is None else ("clamp", (args[0], low, high))


def _products(name: str) -> Rule:
    def rule(args: Any, kwargs: Any) -> tuple[str, Any]:
        return name, (*args, float(kwargs.get("value", 1)))

    return rule


POINTWISE: dict[str, Rule] = {
    **{name: _plain(name) for name in (*_PLAIN, *_COMPARISONS)},
    **{f"bitwise_{name}": _plain(f"logical_{name}") for name in ("and", "or", "not", "xor")},
    "add": _sum_of("add"),
    "sub": _sum_of("sub"),
    "rsub": lambda args, kwargs: _sum_of("sub")((args[1], args[0], *args[2:]), kwargs),
    "div": _division,
    "round": _rounding,
    "pow": _power,
    "square": _plain("square", 1),
    "clamp": _clamp,
    "clamp_min": _plain("maximum", 2),
    "clamp_max": _plain("minimum", 2),
    "copy": lambda args, kwargs: ("copy", args[1:2]),
    "addcmul": _products("addcmul"),
    "addcdiv": _products("addcdiv"),
    "masked_fill": lambda args, kwargs: ("where", (args[1], args[2], args[0])),
    "tanh_backward": _plain("tanh_backward", 2),
    "sigmoid_backward": _plain("sigmoid_backward", 2),
}
"""By name: the operation, and its operands, from positional and keyword arguments."""
