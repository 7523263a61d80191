"""What a dynamics tells about its form, so that a solver may use it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Product:
    """f(t, x, theta) = rho(W x), where W is the control of this name.

    W is dense, (m, m), or, where `columns` (m, k) is given, sparse: theta (m, k) holds the k values of each row and
    `columns` where they stand.

    >>> import ncode
    >>> ncode.dynamics.Recurrent(8).structure.rho
    'tanh'
    """

    control: str
    rho: str = "identity"
    columns: Tensor | None = None


Structure = Product | None
