"""Methods for stiff problems as data: Rosenbrock methods and diagonally implicit Runge-Kutta methods.

Both advance the increments u_i = h k_i of their stages, which are of the size of z and so need no division by h.

A Rosenbrock method solves one linear system per stage, all with the same matrix W = I - h gamma J, where J = df/dz and
f_t = df/dt are taken at the start of the step:

    W u_i = h gamma (f(t + c_i h, z + sum_j a_ij u_j) + h d_i f_t) + gamma sum_j coupling_ij u_j

A diagonally implicit method solves, by Newton's method with the same matrix W for all stages,

    Y_i = z + sum_j a_ij u_j + gamma u_i,    u_i = h f(t + c_i h, Y_i)

where the first stage may be explicit (gamma = 0 there: ESDIRK). In both cases `b`, `error` and `dense` weight the
increments: the step is sum_i b_i u_i, its error sum_i error_i u_i, and

    dense output         z(t + sigma h) = z + sum_i sum_q dense[i][q] sigma^(q+1) u_i,    0 <= sigma <= 1

Coefficients: Shampine and Reichelt (1997), "The MATLAB ODE suite" (rosenbrock23); Steinebach (2023), "Construction of
Rosenbrock-Wanner method Rodas5P ..." (rodas5p); Kvaerno (2004), "Singly diagonally implicit Runge-Kutta methods with an
explicit first stage" (kvaerno5). The numbers of the last two, and the predictors of kvaerno5, are those of
OrdinaryDiffEq.jl and diffrax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InputError, check_count
from .tableau import Row


class _StiffTableau:
    """What both kinds of methods share."""

    name: str
    order: int
    c: Row
    error: Row
    error_order: int

    def _check(self, full: tuple[str, ...], triangular: tuple[str, ...], below: int) -> None:
        """Check the lengths of rows, and fill in the order of the error."""
        kind, stages = type(self).__name__, self.stages
        check_count(f"order of a {kind}", self.order)
        for name in (*full, *(["error"] if self.error else [])):
            found = len(getattr(self, name))
            if found != stages:
                nodes = f"{kind} {self.name!r} with {stages} nodes c"
                raise InputError(f"{nodes} needs {stages} rows {name}; given {found}")
        for name in triangular:
            lengths = [len(row) for row in getattr(self, name)]
            if lengths != list(range(below, stages + below)):
                raise InputError(
                    f"{kind} {self.name!r}: rows {name} must have {below} to {stages + below - 1} weights;"
                    f" given {lengths}"
                )
        if self.error and not self.error_order:
            object.__setattr__(self, "error_order", max(self.order - 1, 1))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, order={self.order}, stages={self.stages})"

    @property
    def stages(self) -> int:
        return len(self.c)

    @property
    def adaptive(self) -> bool:
        """Whether the method estimates its own error."""
        return bool(self.error)


@dataclass(frozen=True, repr=False)
class RosenbrockTableau(_StiffTableau):
    """A Rosenbrock method; the module's docstring explains the rows.

    Args:
        name: For messages.
        order: Order of convergence.
        gamma: The factor of h J in the matrix W.
        c: Nodes of the stages.
        a: a[i] weights u_0 ... u_{i-1} in the argument of stage i.
        coupling: coupling[i] weights u_0 ... u_{i-1} on the right-hand side of stage i.
        d: Weights of df/dt.
        b: Weights of the increments that advance the state.
        dense: Weights of dense output.
        error: Weights of the error estimate. Default: none, so that the method needs a fixed step size.
        error_order: The error shrinks as h^(error_order + 1). Default: order - 1.
    """

    name: str
    order: int
    gamma: float
    c: Row
    a: tuple[Row, ...]
    coupling: tuple[Row, ...]
    d: Row
    b: Row
    dense: tuple[Row, ...]
    error: Row = ()
    error_order: int = 0

    def __post_init__(self) -> None:
        self._check(("c", "d", "b", "dense"), ("a", "coupling"), below=0)

    @property
    def advancing(self) -> int:
        """Number of stages without those that only the error needs."""
        used = [bool(w) or any(row) for w, row in zip(self.b, self.dense, strict=True)]
        return max(i for i, use in enumerate(used) if use) + 1


@dataclass(frozen=True, repr=False)
class DirkTableau(_StiffTableau):
    """A diagonally implicit Runge-Kutta method; the module's docstring explains the rows.

    Args:
        name: For messages.
        order: Order of convergence.
        c: Nodes of the stages.
        a: a[i] weights u_0 ... u_i. Its last number is gamma in every row, or 0 in the first.
        b: Weights of the increments that advance the state. A method whose `b` is the last row of `a` (stiffly
            accurate) advances to its last stage.
        dense: Weights of dense output.
        error: Weights of the error estimate. Default: none, so that the method needs a fixed step size.
        error_order: The error shrinks as h^(error_order + 1). Default: order - 1.
        predictor: predictor[i] weights u_0 ... u_{i-1} in the first guess of u_i. Default: the increment before.
    """

    name: str
    order: int
    c: Row
    a: tuple[Row, ...]
    b: Row
    dense: tuple[Row, ...]
    error: Row = ()
    error_order: int = 0
    predictor: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        self._check(("c", "b", "dense"), ("a",), below=1)
        diagonal = [row[-1] for row in self.a]
        if diagonal[0] not in (0.0, self.gamma) or any(value != self.gamma for value in diagonal[1:]) or not self.gamma:
            raise InputError(
                f"DirkTableau {self.name!r}: the rows of a end in {diagonal}; expected one number gamma for all, which"
                " may be 0 in the first row alone: all stages share one matrix"
            )
        for i, row in enumerate(self.a):
            if not math.isclose(sum(row), self.c[i], abs_tol=1e-9):
                raise InputError(f"DirkTableau {self.name!r}: row a[{i}] sums to {sum(row):g}; expected {self.c[i]:g}")

    @property
    def gamma(self) -> float:
        return self.a[-1][-1]

    @property
    def ends_in_stage(self) -> bool:
        """Whether the step ends in its last stage (stiffly accurate)."""
        return self.b == self.a[-1]


def _rosenbrock23() -> RosenbrockTableau:
    """ode23s, with the increments of its stages combined such that all stages have one form."""
    gamma, e32 = 1 / (2 + math.sqrt(2)), 6 + math.sqrt(2)
    return RosenbrockTableau(
        "rosenbrock23",
        order=2,
        gamma=gamma,
        c=(0.0, 1 / 2, 1.0),
        a=((), (0.5 / gamma,), (1 / gamma, 1 / gamma)),
        coupling=((), (-1 / gamma,), (-2 / gamma, -e32 / gamma)),
        d=(gamma, 0.0, -gamma),
        b=(1 / gamma, 1 / gamma, 0.0),
        dense=((1 / gamma, 0.0), (-2 / (1 - 2 * gamma), 1 / (gamma * (1 - 2 * gamma))), (0.0, 0.0)),
        error=(-1 / (6 * gamma), (2 - e32) / (6 * gamma), -1 / (6 * gamma)),
        error_order=2,
    )


def _rodas_dense(b: Row, h: tuple[Row, ...]) -> tuple[Row, ...]:
    """The interpolant (1 - s) z + s (z_1 + (1 - s) (h_0 + s (h_1 + s h_2))) as powers of s, where z_1 = z + b u."""
    return tuple((w + h0, h1 - h0, h2 - h1, -h2) for w, h0, h1, h2 in zip(b, *h, strict=True))


# fmt: off
_RODAS5P_A6 = (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946)
_RODAS5P_B = (*_RODAS5P_A6, 1.0, 1.0, 1.0)
_RODAS5P = RosenbrockTableau(
    "rodas5p",
    order=5,
    gamma=0.21193756319429014,
    c=(0.0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664, 1.0, 1.0, 1.0),
    a=(
        (),
        (3.0,),
        (2.849394379747939, 0.45842242204463923),
        (-6.954028509809101, 2.489845061869568, -10.358996098473584),
        (2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641),
        _RODAS5P_A6,
        (*_RODAS5P_A6, 1.0),
        (*_RODAS5P_A6, 1.0, 1.0),
    ),
    coupling=(
        (),
        (-14.155112264123755,),
        (-17.97296035885952, -2.859693295451294),
        (147.12150275711716, -1.41221402718213, 71.68940251302358),
        (165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306),
        (24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125, -0.6610691825249471),
        (30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783, -19.097331116725623,
         -28.087943162872662),
        (37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047, -40.06618937091002,
         -54.66780262877968, -9.48861652309627),
    ),
    d=(0.21193756319429014, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734, 2.325825639765069, 0.0, 0.0,
     0.0),
    b=_RODAS5P_B,
    dense=_rodas_dense(
        _RODAS5P_B,
        (
            (25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204, 0.524948541321073,
             1.1241088310450404, 0.4272876194431874, -0.17202221070155493),
            (-9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796, 20.176138334709044,
             15.98066361424651, -6.789040303419874, -6.710236069923372),
            (11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643, -52.072871366152654,
             -59.78993625266729, -0.15582684282751913, 4.883087185713722),
        ),
    ),
    error=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
    error_order=4,
)

_KVAERNO5_A6 = (0.13855640231268224, 0.0, -0.04245337201752043, 0.02446657898003141, 0.61943039072480676, 0.26)
_KVAERNO5_B = (0.13659751177640291, 0.0, -0.05496908796538376, -0.04118626728321046, 0.62993304899016403,
 0.06962479448202728, 0.26)
_KVAERNO5 = DirkTableau(
    "kvaerno5",
    order=5,
    c=(0.0, 0.52, 1.230333209967908, 0.8957659843500759, 0.43639360985864756, 1.0, 1.0),
    a=(
        (0.0,),
        (0.26, 0.26),
        (0.13, 0.84033320996790809, 0.26),
        (0.22371961478320505, 0.47675532319799699, -0.06470895363112615, 0.26),
        (0.16648564323248321, 0.10450018841591720, 0.03631482272098715, -0.13090704451073998, 0.26),
        _KVAERNO5_A6,
        _KVAERNO5_B,
    ),
    b=_KVAERNO5_B,
    # The one quartic that has order 4, stays bounded for stiff components (where u_0 is large) and damps them by
    # (1 - sigma)^4; a cubic through the ends and their slopes would multiply their errors by h |J|.
    dense=(
        (0.9531757578437672, -1.959396828123152, 1.6226817505188877, -0.47986316846310006),
        (0.0, 0.0, 0.0, 0.0),
        (-0.29916879143971187, 1.5624070877610983, -2.3384062127792755, 1.0201988284925054),
        (-1.5693295336016628, 3.1086056033031744, -1.1033585767304812, -0.477103760254241),
        (0.2510497676073935, 2.653001543230592, -3.6307020295664585, 1.3565837677186374),
        (-3.2142584647599017, 10.706432639150755, -9.836981187636626, 2.414431807727801),
        (4.878531264350117, -16.07105004532247, 15.286766256193955, -3.8342474752216034),
    ),
    error=tuple(p - q for p, q in zip(_KVAERNO5_B, (*_KVAERNO5_A6, 0.0), strict=True)),
    error_order=4,
    predictor=(
        (),
        (1.0,),
        (-1.366025403784441, 2.3660254037844357),
        (-0.19650552613122207, 0.8113579546496623, 0.38514757148155954),
        (0.10375304369958693, 0.937994698066431, -0.04174774176601781),
        (-0.17281112873898072, 0.6235784481025847, 0.5492326806363959),
        _KVAERNO5_A6,
    ),
)
# fmt: on

_IMPLICIT_EULER = DirkTableau("implicit_euler", order=1, c=(1.0,), a=((1.0,),), b=(1.0,), dense=((1.0,),))

_TRAPEZOID = DirkTableau(
    "trapezoid",
    order=2,
    c=(0.0, 1.0),
    a=((0.0,), (1 / 2, 1 / 2)),
    b=(1 / 2, 1 / 2),
    dense=((1 / 2,), (1 / 2,)),
)

STIFF_METHODS: dict[str, RosenbrockTableau | DirkTableau] = {
    it.name: it for it in (_rosenbrock23(), _RODAS5P, _KVAERNO5, _IMPLICIT_EULER, _TRAPEZOID)
}
