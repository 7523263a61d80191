"""Explicit Runge-Kutta methods as data.

One step of a method with s stages evaluates slopes k_0 ... k_{s-1}, advances by h * sum_i b_i k_i, and may then
evaluate two further kinds of slope: the *end* slope k_s = f(t + h, x_1), which is the next step's k_0, and *extra* ones
that only dense output needs. `error` and `dense` weight all of these in that order:

    error of the step    h * sum_i error_i k_i
    dense output         x(t + sigma h) = x + h * sum_i sum_q dense[i][q] sigma^(q+1) k_i,    0 <= sigma <= 1

A dense output of local order p (error h^p) next to a method of order p keeps the order of the whole solution.
Coefficients: Dormand and Prince (1980) with Shampine's (1986) interpolant; Bogacki and Shampine (1989); Tsitouras
(2011); Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I" (DOP853).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..errors import InputError, check_count

Row = tuple[float, ...]
Tree = tuple["Tree", ...]  # a rooted tree: the sorted trees that hang from its root
CHECKED_ORDER = 8


@dataclass(frozen=True, repr=False)
class Tableau:
    """An explicit Runge-Kutta method, for `solve(..., method=...)`. The module's docstring explains the rows.

    Args:
        name: For messages.
        order: Order of convergence. It is checked, by the conditions of all rooted trees up to order 8.
        c: Nodes of the s stages.
        a: a[i] weights k_0 ... k_{i-1}; a[0] is empty.
        b: Weights of the s slopes that advance the state.
        error: Weights of the error estimate, s of them, or s + 1 with the end slope. Default: none, so that the method
            needs a fixed step size.
        error_order: The error shrinks as h^(error_order + 1). Default: order - 1.
        dense: Weights of dense output. Default: the cubic through both ends and both slopes.
        error_low: A second estimate that corrects the first (dopri8).
        extra_c, extra_a: Further stages, for dense output alone.

    >>> import torch, ncode
    >>> ralston = ncode.Tableau("ralston", order=2, c=(0.0, 2 / 3), a=((), (2 / 3,)), b=(1 / 4, 3 / 4))
    >>> sol = ncode.solve(lambda t, x, theta: -x, torch.ones(1, 1), 0.0, 1.0, method=ralston, dt=0.01)
    >>> round(sol.x.item(), 3)
    0.368
    """

    name: str
    order: int
    c: Row
    a: tuple[Row, ...]
    b: Row
    error: Row = ()
    error_order: int = 0
    dense: tuple[Row, ...] = ()
    error_low: Row = ()
    extra_c: Row = ()
    extra_a: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        check_count("order of a Tableau", self.order)
        for name in ("c", "b", "error", "error_low", "extra_c"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        for name in ("a", "dense", "extra_a"):
            object.__setattr__(self, name, tuple(tuple(map(float, row)) for row in getattr(self, name)))
        self._check()
        self._check_order()
        if self.error and not self.error_order:
            object.__setattr__(self, "error_order", max(self.order - 1, 1))
        if not self.dense:
            object.__setattr__(self, "dense", _hermite(self.b))

    def _check(self) -> None:
        stages, name = len(self.b), self.name
        if not stages or len(self.c) != stages or [len(row) for row in self.a] != list(range(stages)):
            raise InputError(
                f"Tableau {name!r} with {stages} weights b needs {stages} nodes c and rows a of 0 to {stages - 1}"
                f" weights (explicit); given {len(self.c)} nodes and rows of {[len(row) for row in self.a]}"
            )
        for i, row in enumerate(self.a):
            if not math.isclose(sum(row), self.c[i], abs_tol=1e-9):
                raise InputError(
                    f"Tableau {name!r}: row a[{i}] sums to {sum(row):g}; expected its node c, {self.c[i]:g} (difference"
                    f" {sum(row) - self.c[i]:.2g}): write all digits of double precision, or fractions such as 2 / 3"
                )
        if not math.isclose(sum(self.b), 1.0, abs_tol=1e-9):
            raise InputError(f"Tableau {name!r}: the weights b sum to {sum(self.b):g}; expected 1")
        if self.error and not any(self.error):
            raise InputError(
                f"Tableau {name!r}: all weights of error are 0, so that every step would be accepted: give the"
                " difference of two methods, or leave out error and use a fixed dt"
            )
        if self.error and (len(self.error) not in (stages, stages + 1) or abs(sum(self.error)) > 1e-9):
            raise InputError(
                f"Tableau {name!r}: error needs {stages} or {stages + 1} weights that sum to 0, since it is the"
                f" difference of two methods; given {len(self.error)} with the sum {sum(self.error):g}"
            )

    def __repr__(self) -> str:
        return f"Tableau({self.name!r}, order={self.order}, stages={self.stages})"

    def _check_order(self) -> None:
        """Check Butcher's conditions of all orders up to the stated one, at most 8: one for each rooted tree."""
        at_stages: dict[Tree, list[float]] = {(): [1.0] * self.stages}  # elementary weights
        sums: dict[Tree, list[float]] = {}  # a times them
        for order in range(2, min(self.order, CHECKED_ORDER) + 1):
            for tree in _trees(order):
                for child in tree:
                    if child not in sums:
                        values = at_stages[child]
                        sums[child] = [sum(w * x for w, x in zip(row, values, strict=False)) for row in self.a]
                at_stages[tree] = [math.prod(each) for each in zip(*(sums[child] for child in tree), strict=True)]
                found = sum(w * x for w, x in zip(self.b, at_stages[tree], strict=True))
                if not math.isclose(found, 1 / _density(tree), abs_tol=1e-9):
                    raise InputError(
                        f"Tableau {self.name!r} has order={self.order}, but it is not of order {order}: a sum of"
                        f" products of its weights is {found:.10g}; expected {1 / _density(tree):.10g}. Write"
                        f" order={order - 1}, or look for a mistake in c, a or b"
                    )

    @property
    def stages(self) -> int:
        """Evaluations that advance the state."""
        return len(self.b)

    @property
    def adaptive(self) -> bool:
        """Whether the method estimates its own error."""
        return bool(self.error)

    @property
    def error_needs_end(self) -> bool:
        """Whether the error uses the end slope ("first same as last")."""
        return len(self.error) > self.stages

    @property
    def dense_needs_end(self) -> bool:
        """Whether dense output uses the end slope."""
        return len(self.dense) > self.stages


@cache
def _trees(order: int) -> list[Tree]:
    """All rooted trees with so many nodes: a leaf is added to each node of the smaller ones."""
    return sorted({grown for tree in _trees(order - 1) for grown in _grow(tree)}) if order > 1 else [()]


def _grow(tree: Tree) -> Iterator[Tree]:
    yield tuple(sorted((*tree, ())))
    for i, child in enumerate(tree):
        for grown in _grow(child):
            yield tuple(sorted((*tree[:i], grown, *tree[i + 1 :])))


def _nodes(tree: Tree) -> int:
    return 1 + sum(map(_nodes, tree))


def _density(tree: Tree) -> int:
    return _nodes(tree) * math.prod(map(_density, tree))


def _hermite(b: Row) -> tuple[Row, ...]:
    """Cubic through both ends and both slopes, as weights of the slopes: local order 4."""
    rows = [(0.0, 3 * w, -2 * w) for w in b] + [(0.0, -1.0, 1.0)]
    rows[0] = (1.0, 3 * b[0] - 2, 1 - 2 * b[0])
    return tuple(rows)


def _quadratic(b: Row) -> tuple[Row, ...]:
    """Parabola through both ends and the first slope: local order 3."""
    return ((1.0, b[0] - 1.0), *((0.0, w) for w in b[1:]))


def _dop853_dense(b: Row, d: tuple[Row, ...]) -> tuple[Row, ...]:
    """The nested form of DOP853's interpolant, u F0 + u v F1 + u^2 v F2 + ... with v = 1 - u, as monomials of u."""
    slopes = len(d[0])
    advance = [*b, *([0.0] * (slopes - len(b)))]
    first = [1.0] + [0.0] * (slopes - 1)
    end = [1.0 if i == len(b) else 0.0 for i in range(slopes)]
    parts = [
        advance,
        [f - w for f, w in zip(first, advance, strict=True)],
        [2 * w - f - e for w, f, e in zip(advance, first, end, strict=True)],
        *d,
    ]
    rows = [[0.0] * len(parts) for _ in range(slopes)]
    basis = [1.0]  # the polynomial u, as coefficients of u^1, u^2, ...
    for index, part in enumerate(parts):
        for row, weight in zip(rows, part, strict=True):
            for power, coefficient in enumerate(basis):
                row[power] += weight * coefficient
        shifted = [0.0, *basis]
        basis = shifted if index % 2 else [p - q for p, q in zip([*basis, 0.0], shifted, strict=True)]
    return tuple(tuple(row) for row in rows)


_EULER = Tableau("euler", order=1, c=(0.0,), a=((),), b=(1.0,), dense=((1.0,),))

_MIDPOINT = Tableau(
    "midpoint",
    order=2,
    c=(0.0, 1 / 2),
    a=((), (1 / 2,)),
    b=(0.0, 1.0),
    dense=_quadratic((0.0, 1.0)),
    error=(-1.0, 1.0),
    error_order=1,
)

_HEUN = Tableau(
    "heun",
    order=2,
    c=(0.0, 1.0),
    a=((), (1.0,)),
    b=(1 / 2, 1 / 2),
    dense=_quadratic((1 / 2, 1 / 2)),
    error=(-1 / 2, 1 / 2),
    error_order=1,
)

_RK4_B = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
_RK4 = Tableau(
    "rk4",
    order=4,
    c=(0.0, 1 / 2, 1 / 2, 1.0),
    a=((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
    b=_RK4_B,
    dense=_hermite(_RK4_B),
)

_BOSH3_B = (2 / 9, 1 / 3, 4 / 9)
_BOSH3 = Tableau(
    "bosh3",
    order=3,
    c=(0.0, 1 / 2, 3 / 4),
    a=((), (1 / 2,), (0.0, 3 / 4)),
    b=_BOSH3_B,
    dense=_hermite(_BOSH3_B),
    error=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
    error_order=2,
)

_DOPRI5 = Tableau(
    "dopri5",
    order=5,
    c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0),
    a=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    ),
    b=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    dense=(
        (1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
        (0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
        (0.0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632),
        (0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
        (0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
    ),
    error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    error_order=4,
)


def _tsit5_dense() -> tuple[Row, ...]:
    """Tsitouras prints each weight as a product of factors; here it is multiplied out."""

    def quartic(scale: float, p: float, q: float) -> Row:
        """scale * u^2 (u^2 + p u + q)."""
        return (0.0, scale * q, scale * p, scale)

    def factored(scale: float, r: float, s: float) -> Row:
        """scale * u^2 (u - r) (u - s)."""
        return quartic(scale, -(r + s), r * s)

    scale, r, p, q = -1.0530884977290216, 1.3299890189751412, -1.4364028541716351, 0.7139816917074209
    first = (-scale * r * q, scale * (q - r * p), scale * (p - r), scale)
    return (
        first,
        quartic(0.1017, -2.1966568338249754, 1.2949852507374631),
        quartic(2.490627285651252793, -2.38535645472061657, 1.57803468208092486),
        factored(-16.54810288924490272, 1.21712927295533244, 0.61620406037800089),
        factored(47.37952196281928122, 1.203071208372362603, 0.658047292653547382),
        factored(-34.87065786149660974, 1.2, 0.666666666666666667),
        factored(2.5, 1.0, 0.6),
    )


_TSIT5 = Tableau(
    "tsit5",
    order=5,
    c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0),
    a=(
        (),
        (0.161,),
        (-0.008480655492356989, 0.335480655492357),
        (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
    ),
    b=(
        0.09646076681806523,
        0.01,
        0.4798896504144996,
        1.379008574103742,
        -3.290069515436081,
        2.324710524099774,
    ),
    dense=_tsit5_dense(),
    error=(
        -0.00178001105222577714,
        -0.0008164344596567469,
        0.007880878010261995,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918697,
        1 / 66,
    ),
    error_order=4,
)

# fmt: off
_DOP853_B = (0.054293734116568765, 0.0, 0.0, 0.0, 0.0, 4.450312892752409, 1.8915178993145003, -5.801203960010585,
 0.3111643669578199, -0.1521609496625161, 0.20136540080403034, 0.04471061572777259)
_DOPRI8 = Tableau(
    "dopri8",
    order=8,
    c=(0.0, 0.05260015195876773, 0.0789002279381516, 0.1183503419072274, 0.2816496580927726, 0.3333333333333333,
     0.25, 0.3076923076923077, 0.6512820512820513, 0.6, 0.8571428571428571, 1.0),
    a=(
        (),
        (0.05260015195876773,),
        (0.0197250569845379, 0.0591751709536137),
        (0.02958758547680685, 0.0, 0.08876275643042054),
        (0.2413651341592667, 0.0, -0.8845494793282861, 0.924834003261792),
        (0.037037037037037035, 0.0, 0.0, 0.17082860872947386, 0.12546768756682242),
        (0.037109375, 0.0, 0.0, 0.17025221101954405, 0.06021653898045596, -0.017578125),
        (0.03709200011850479, 0.0, 0.0, 0.17038392571223998, 0.10726203044637328, -0.015319437748624402,
         0.008273789163814023),
        (0.6241109587160757, 0.0, 0.0, -3.3608926294469414, -0.868219346841726, 27.59209969944671,
         20.154067550477894, -43.48988418106996),
        (0.47766253643826434, 0.0, 0.0, -2.4881146199716677, -0.590290826836843, 21.230051448181193,
         15.279233632882423, -33.28821096898486, -0.020331201708508627),
        (-0.9371424300859873, 0.0, 0.0, 5.186372428844064, 1.0914373489967295, -8.149787010746927,
         -18.52006565999696, 22.739487099350505, 2.4936055526796523, -3.0467644718982196),
        (2.273310147516538, 0.0, 0.0, -10.53449546673725, -2.0008720582248625, -17.9589318631188, 27.94888452941996,
         -2.8589982771350235, -8.87285693353063, 12.360567175794303, 0.6433927460157636),
    ),
    b=_DOP853_B,
    dense=_dop853_dense(
        _DOP853_B,
        (
            (-8.428938276109013, 0.0, 0.0, 0.0, 0.0, 0.5667149535193777, -3.0689499459498917, 2.38466765651207,
             2.117034582445028, -0.871391583777973, 2.2404374302607883, 0.6315787787694688, -0.08899033645133331,
             18.148505520854727, -9.194632392478356, -4.436036387594894),
            (10.427508642579134, 0.0, 0.0, 0.0, 0.0, 242.28349177525817, 165.20045171727028, -374.5467547226902,
             -22.113666853125306, 7.733432668472264, -30.674084731089398, -9.332130526430229, 15.697238121770845,
             -31.139403219565178, -9.35292435884448, 35.81684148639408),
            (19.985053242002433, 0.0, 0.0, 0.0, 0.0, -387.0373087493518, -189.17813819516758, 527.8081592054236,
             -11.57390253995963, 6.8812326946963, -1.0006050966910838, 0.7777137798053443, -2.778205752353508,
             -60.19669523126412, 84.32040550667716, 11.99229113618279),
            (-25.69393346270375, 0.0, 0.0, 0.0, 0.0, -154.18974869023643, -231.5293791760455, 357.6391179106141,
             93.40532418362432, -37.45832313645163, 104.0996495089623, 29.8402934266605, -43.53345659001114,
             96.32455395918828, -39.17726167561544, -149.72683625798564),
        ),
    ),
    error=(0.01312004499419488, 0.0, 0.0, 0.0, 0.0, -1.2251564463762044, -0.4957589496572502, 1.6643771824549864,
     -0.35032884874997366, 0.3341791187130175, 0.08192320648511571, -0.022355307863886294),
    error_low=(-0.18980075407240762, 0.0, 0.0, 0.0, 0.0, 4.450312892752409, 1.8915178993145003, -5.801203960010585,
     -0.4226823213237919, -0.1521609496625161, 0.20136540080403034, 0.02265179219836082),
    error_order=7,
    extra_c=(0.1, 0.2, 7 / 9),
    extra_a=(
        (0.056167502283047954, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25350021021662483, -0.2462390374708025,
         -0.12419142326381637, 0.15329179827876568, 0.00820105229563469, 0.007567897660545699, -0.008298),
        (0.03183464816350214, 0.0, 0.0, 0.0, 0.0, 0.028300909672366776, 0.053541988307438566, -0.05492374857139099,
         0.0, 0.0, -0.00010834732869724932, 0.0003825710908356584, -0.00034046500868740456, 0.1413124436746325),
        (-0.42889630158379194, 0.0, 0.0, 0.0, 0.0, -4.697621415361164, 7.683421196062599, 4.06898981839711,
         0.3567271874552811, 0.0, 0.0, 0.0, -0.0013990241651590145, 2.9475147891527724, -9.15095847217987),
    ),
)
# fmt: on

METHODS: dict[str, Tableau] = {
    tableau.name: tableau for tableau in (_EULER, _MIDPOINT, _HEUN, _RK4, _BOSH3, _DOPRI5, _TSIT5, _DOPRI8)
}
