"""torchdiffeq's methods by name, as data; implicit_methods.py has the implicit ones.

The core's tableaus serve where they are the same method. Others mean something else there: "rk4" is the 3/8 rule,
"dopri5" has Shampine's (1986) error weights, and "dopri8" is Prince and Dormand's (1981) pair 8(7). "adaptive_heun" and
"fehlberg2" evaluate no slope at the end of a step: the next one begins with the slope of their last stage.

Dense output is that of torchdiffeq too, but for "dopri8" and "bosh3": values between two steps of theirs may be off by
much more than the tolerance; those here are more accurate, at no further evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import InputError, check_choice
from ...ode.tableau import METHODS, Row, Tableau
from .implicit_methods import IMPLICIT
from .runge_kutta import HALF, Method


def _quartic(b: Row, middle: Row) -> tuple[Row, ...]:
    """Dense output: the quartic through both ends and h * sum(middle k) at h / 2, with the first and the last slope."""
    rows = []
    for i, (end, mid) in enumerate(zip(b, middle, strict=True)):
        first, last = float(i == 0), float(i == len(b) - 1)
        square = last - 4 * first - 5 * end + 16 * mid
        cube = 5 * first - 3 * last + 14 * end - 32 * mid
        fourth = 2 * last - 2 * first - 8 * end + 16 * mid
        rows.append((first, square, cube, fourth))
    return tuple(rows)


def _difference(b: Sequence[float], other: Sequence[float]) -> Row:
    return tuple(x - y for x, y in zip(b, other, strict=True))


_HEUN3 = Tableau("heun3", order=3, c=(0.0, 1 / 3, 2 / 3), a=((), (1 / 3,), (0.0, 2 / 3)), b=(1 / 4, 0.0, 3 / 4))

_RK4 = Tableau(
    "rk4",
    order=4,
    c=(0.0, 1 / 3, 2 / 3, 1.0),
    a=((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)),
    b=(1 / 8, 3 / 8, 3 / 8, 1 / 8),
)

_ADAPTIVE_HEUN = Tableau(
    "adaptive_heun",
    order=2,
    c=(0.0, 1.0),
    a=((), (1.0,)),
    b=(1 / 2, 1 / 2),
    error=(1 / 2, -1 / 2),
    dense=_quartic((1 / 2, 1 / 2), (1 / 2, 0.0)),
)

_FEHLBERG2_B = (1 / 512, 255 / 256, 1 / 512)
_FEHLBERG2 = Tableau(
    "fehlberg2",
    order=2,
    c=(0.0, 1 / 2, 1.0),
    a=((), (1 / 2,), (1 / 256, 255 / 256)),
    b=_FEHLBERG2_B,
    error=(-1 / 512, 0.0, 1 / 512),
    dense=_quartic(_FEHLBERG2_B, (0.0, 1 / 2, 0.0)),
)

_DOPRI5 = Tableau(
    "dopri5",
    order=5,
    c=METHODS["dopri5"].c,
    a=METHODS["dopri5"].a,
    b=METHODS["dopri5"].b,
    error=_difference(
        (*METHODS["dopri5"].b, 0.0),
        (1951 / 21600, 0.0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60),
    ),
    dense=METHODS["dopri5"].dense,
)

# fmt: off
_DOPRI8_B = (14005451 / 335480064, 0.0, 0.0, 0.0, 0.0, -59238493 / 1068277825, 181606767 / 758867731,
 561292985 / 797845732, -1041891430 / 1371343529, 760417239 / 1151165299, 118820643 / 751138087,
 -528747749 / 2220607170, 1 / 4)
_DOPRI8_LOWER = (13451932 / 455176623, 0.0, 0.0, 0.0, 0.0, -808719846 / 976000145, 1757004468 / 5645159321,
 656045339 / 265891186, -3867574721 / 1518517206, 465885868 / 322736535, 53011238 / 667516719, 2 / 45, 0.0)
_DOPRI8_DENSE = (
    (1.0, -6.6910181737837595697, 19.9990069333683970610, -30.0610568289666450593, 22.1396504998094068976,
     -6.3448349392860401388),
    *((0.0,) * 6,) * 4,
    (0.0, -7.6142658045872677172, 52.2273532792945524050, -121.4999627731334642623, 116.4422149550342161651,
     -39.6107919852202505218),
    (0.0, 10.7281392630428866124, -46.8919164181093621583, 83.1721004639847717481, -67.1451318825957197185,
     20.3761213808791436958),
    (0.0, 0.5526637063753648783, -0.1890893225010595467, 9.5724507555993664382, -16.5672243527496524646,
     7.3347098826795362023),
    (0.0, 4.2186562625665153803, -35.7075975946222072821, 87.8406057677205645007, -89.9916014847245016028,
     32.8801774352459155182),
    (0.0, -0.6627209125361597559, 6.2736448083240352160, -17.4152107770762969005, 22.6237489648532849093,
     -10.1588990526426760954),
    (0.0, -1.2636789001135462218, 10.3160881272450748458, -28.5903289514790976966, 32.2362340167355370113,
     -12.5401268098782561200),
    (0.0, 5.4106037898590422230, -34.7650769866611817349, 81.6630950584341412934, -82.1020315488359848644,
     29.5553001484516038033),
    (0.0, -7.0321379067945741781, 47.7457971078225540396, -114.9375291377009418170, 116.2662185791119533462,
     -41.7923486424390588923),
    (0.0, 2.3537586759714983486, -19.0082099341608028453, 50.2558364226176017553, -53.9020777466385396792,
     20.3006925822100825485),
)
_DOPRI8 = Tableau(
    "dopri8",
    order=8,
    c=(0.0, 1 / 18, 1 / 12, 1 / 8, 5 / 16, 3 / 8, 59 / 400, 93 / 200, 5490023248 / 9719169821, 13 / 20,
     1201146811 / 1299019798, 1.0, 1.0),
    a=(
        (),
        (1 / 18,),
        (1 / 48, 1 / 16),
        (1 / 32, 0.0, 3 / 32),
        (5 / 16, 0.0, -75 / 64, 75 / 64),
        (3 / 80, 0.0, 0.0, 3 / 16, 3 / 20),
        (29443841 / 614563906, 0.0, 0.0, 77736538 / 692538347, -28693883 / 1125000000, 23124283 / 1800000000),
        (16016141 / 946692911, 0.0, 0.0, 61564180 / 158732637, 22789713 / 633445777, 545815736 / 2771057229,
         -180193667 / 1043307555),
        (39632708 / 573591083, 0.0, 0.0, -433636366 / 683701615, -421739975 / 2616292301, 100302831 / 723423059,
         790204164 / 839813087, 800635310 / 3783071287),
        (246121993 / 1340847787, 0.0, 0.0, -37695042795 / 15268766246, -309121744 / 1061227803,
         -12992083 / 490766935, 6005943493 / 2108947869, 393006217 / 1396673457, 123872331 / 1001029789),
        (-1028468189 / 846180014, 0.0, 0.0, 8478235783 / 508512852, 1311729495 / 1432422823,
         -10304129995 / 1701304382, -48777925059 / 3047939560, 15336726248 / 1032824649,
         -45442868181 / 3398467696, 3065993473 / 597172653),
        (185892177 / 718116043, 0.0, 0.0, -3185094517 / 667107341, -477755414 / 1098053517, -703635378 / 230739211,
         5731566787 / 1027545527, 5232866602 / 850066563, -4093664535 / 808688257, 3962137247 / 1805957418,
         65686358 / 487910083),
        (403863854 / 491063109, 0.0, 0.0, -5068492393 / 434740067, -411421997 / 543043805, 652783627 / 914296604,
         11173962825 / 925320556, -13158990841 / 6184727034, 3936647629 / 1978049680, -160528059 / 685178525,
         248638103 / 1413531060, 0.0),
    ),
    b=_DOPRI8_B,
    error=_difference(_DOPRI8_B, _DOPRI8_LOWER),
    dense=_DOPRI8_DENSE,
)
# fmt: on

EXPLICIT = {
    "euler": Method(METHODS["euler"]),
    "midpoint": Method(METHODS["midpoint"]),
    "heun2": Method(METHODS["heun"]),
    "heun3": Method(_HEUN3),
    "rk4": Method(_RK4),
}
FIXED = EXPLICIT | IMPLICIT
ADAPTIVE = {
    "dopri5": Method(_DOPRI5),
    "dopri8": Method(_DOPRI8),
    "tsit5": Method(METHODS["tsit5"]),
    "bosh3": Method(METHODS["bosh3"]),
    "fehlberg2": Method(_FEHLBERG2),
    "adaptive_heun": Method(_ADAPTIVE_HEUN),
}

_MULTISTEP = (
    'there are one-step methods only: use "dopri5", "rk4" with a step_size, or "radauIIA5" if the system is stiff'
)
NOT_AVAILABLE = {
    "scipy_solver": 'use "dopri5", "dopri8" or "bosh3", which are like SciPy\'s RK45, DOP853 and RK23',
    **dict.fromkeys(("explicit_adams", "implicit_adams", "fixed_adams"), _MULTISTEP),
}


def check_method(name: object) -> str:
    """Return the name of a method, "dopri5" for None; raise for names that are unknown or not available."""
    name = "dopri5" if name is None else name
    if isinstance(name, str) and name in NOT_AVAILABLE:
        raise InputError(f'method "{name}" is not available: {NOT_AVAILABLE[name]}')
    return check_choice("method", name, (*ADAPTIVE, *FIXED))


def check_precision(method: str, dtype: torch.dtype) -> None:
    """Raise if a method cannot solve states of this precision."""
    if method in IMPLICIT and dtype in HALF:
        raise InputError(
            f'method "{method}" solves linear systems, which torch has in 32 and 64 bits only; given y0 of {dtype}:'
            " use y0.float(), or an explicit method"
        )


def kind_of(method: str) -> str:
    """Return "adaptive", "fixed" or "implicit"; the last ones have fixed steps too."""
    return "implicit" if method in IMPLICIT else "fixed" if method in FIXED else "adaptive"
