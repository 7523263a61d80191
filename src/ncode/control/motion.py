"""How a control moves: what a controller tells, so that a solver may use it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Still:
    """The control is a constant of the flow.

    >>> import ncode
    >>> ncode.Static().motion
    Still()
    """


@dataclass(frozen=True)
class Free:
    """The control moves, and nothing more is told.

    >>> import ncode
    >>> ncode.ClosedLoop(lambda t, x, theta: theta).motion
    Free()
    """


@dataclass(frozen=True, eq=False)
class Outer:
    """dtheta/dt = mu * x x^T - decay * theta, for the control of this name, from theta_0 (n, n) for all samples.

    >>> import ncode
    >>> rule = ncode.NCODE(ncode.dynamics.Recurrent(4), ncode.Hebbian()).controller.motion
    >>> rule.control, rule.mu.shape
    ('weight', torch.Size([4, 4]))
    """

    control: str
    mu: Tensor
    theta_0: Tensor
    decay: Tensor | None = None


Motion = Still | Free | Outer
