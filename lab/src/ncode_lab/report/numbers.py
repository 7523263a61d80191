"""Numbers as tables print them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ..training.result import Column

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# From here on, digits before the point hide the size of a number rather than show it.
LARGE = 1e6


class Measured(NamedTuple):
    """A metric over seeds.

    Attributes:
        mean: Its mean.
        spread: Its standard deviation (that of a sample); None for one seed.
        seeds: How many there are.
    """

    mean: float
    spread: float | None
    seeds: int


def measure(values: Sequence[float]) -> Measured:
    """Mean and spread.

    >>> measure([1.0, 2.0, 3.0])
    Measured(mean=2.0, spread=1.0, seeds=3)
    >>> measure([1.0]).spread is None
    True
    """
    if not all(map(math.isfinite, values)):
        return Measured(math.nan, None, len(values))
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Measured(statistics.fmean(values), spread, len(values))


def write_number(value: float, digits: int = 2) -> str:
    """A number with so many digits after the point; with its power of ten where that would show nothing.

    >>> write_number(0.5), write_number(3.14e-6), write_number(1.2e9), write_number(float("nan"))
    ('0.50', '3.1×10⁻⁶', '1.2×10⁹', 'not finite')
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0 or _plain(value, digits):
        return f"{value:.{digits}f}"
    mantissa, _, power = f"{value:.1e}".partition("e")
    return f"{mantissa}×10{str(int(power)).translate(RAISED)}"


def write_measured(measured: Measured, column: Column, seeds: int) -> str:
    """Mean ± spread in the column's unit. How many seeds it is of is said where it is not all of them.

    >>> column = Column("error", "error, %", digits=1, scale=100.0)
    >>> write_measured(Measured(0.25, 0.015, 3), column, 3)
    '25.0 ± 1.5'
    >>> write_measured(Measured(0.25, 0.015, 2), column, 3)
    '25.0 ± 1.5 (2 of 3)'
    """
    mean = measured.mean * column.scale
    text = write_number(mean, column.digits)
    if measured.spread is not None:
        spread = abs(measured.spread * column.scale)
        # Beside a mean that is printed in full, a spread of 0.00 says enough.
        full = mean == 0 or _plain(mean, column.digits)
        same = full and spread < LARGE
        text += f" ± {spread:.{column.digits}f}" if same else f" ± {write_number(spread, column.digits)}"
    return text if measured.seeds == seeds else f"{text} ({measured.seeds} of {seeds})"


def write_seconds(seconds: float) -> str:
    """A length of time.

    >>> write_seconds(4.21), write_seconds(200), write_seconds(7300)
    ('4.2 s', '3 min 20 s', '2 h 1 min')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


def _plain(value: float, digits: int) -> bool:
    return 0.5 * 10.0**-digits <= abs(value) < LARGE
