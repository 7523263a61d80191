"""Input paths u(t): piecewise polynomials through data, one per sample, with gradients to the data and the knots.

A sample has values v_0, ..., v_n at knots s_0 < ... < s_n. With d_i = (v_{i+1} - v_i) / (s_{i+1} - s_i) and the offset
o = t - s_i, its path is, for s_i <= t < s_{i+1},

    constant       v_i
    linear         v_i + d_i o
    hermite        v_i + d_{i-1} o + 2 (d_i - d_{i-1}) o^2 / h - (d_i - d_{i-1}) o^3 / h^2,    h = s_{i+1} - s_i:
                   the cubic with the slopes d_{i-1} and d_i at its ends (at first, d_0 twice), so u' is continuous and
                   depends on no later value than v_{i+1} (Morrill et al., 2022)
    rectilinear    linear in (time, value) through (s_0, v_0), (s_1, v_0), (s_1, v_1), (s_2, v_1), ...

Before the first and after the last knot a path keeps its value there, and its derivative is 0. At a knot the derivative
is that of the piece that begins there; at the last, of the piece that ends there.

A `Path` is a tuple of tensors with one row per sample. So it can be the `theta` of `ncode.solve`, and this is the best
way to use it in dynamics: rows are then selected together with the state when finished samples leave the batch, and
gradients are computed per sample. A path that the dynamics capture instead gives the same result, but keeps all samples
in the batch until the last is finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ._torch_private import is_symbolic
from .errors import InputError, check_flag, check_tensor

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Real

__all__ = ["Path", "constant", "hermite", "linear", "rectilinear"]

_FAR = 1e30  # further away than any time; sums of many still fit into single precision


class Path(NamedTuple):
    """Paths u(t) of a batch, as made by `constant`, `linear`, `hermite` or `rectilinear`.

    Piece i begins at edges[:, i]; the first and the last are the constants before and after the knots.

    >>> import torch, ncode
    >>> path = ncode.paths.linear(torch.tensor([[[0.0], [2.0], [2.0]]]))
    >>> path.evaluate(0.5), path.derivative(0.5)
    (tensor([[1.]]), tensor([[2.]]))
    >>> f = lambda t, x, path: path.evaluate(t) - x  # a path can be the control of a solve
    >>> ncode.solve(f, torch.zeros(1, 1), 0.0, 2.0, theta=path).x.shape
    torch.Size([1, 1])
    """

    edges: Float[Tensor, "batch pieces"]
    end: Float[Tensor, "batch"]  # the last knot
    coefficients: Float[Tensor, "batch pieces terms channels"]

    def evaluate(self, t: Any) -> Tensor:
        """Return u(t), (batch, channels), at a number or times (batch,); at times (batch, T), (batch, T, channels)."""
        offset, c = self._piece(t)
        value = c[..., -1, :]
        for power in range(c.shape[-2] - 2, -1, -1):
            value = value * offset + c[..., power, :]
        return value

    def derivative(self, t: Any) -> Tensor:
        """Return du/dt at times as for `evaluate`."""
        offset, c = self._piece(t)
        last = c.shape[-2] - 1
        slope = last * c[..., -1, :]
        for power in range(last - 1, 0, -1):
            slope = slope * offset + power * c[..., power, :]
        return slope

    @property
    def knots(self) -> Tensor:
        """The knots (batch, n); shorter samples repeat their last one.

        The dynamics jump there (u of `constant`, du/dt of `linear` and `rectilinear`) or bend, and adaptive steps
        should end there: `ncode.solve(..., jump_ts=path.knots)`. Otherwise errors can be a thousand times the
        tolerance. Blocks do so by themselves.
        """
        return torch.minimum(self.edges[:, 1:], self.end[:, None])

    @property
    def start(self) -> Tensor:
        """The first knot, (batch,)."""
        return self.knots[:, 0]

    @property
    def batch(self) -> int:
        return self.edges.shape[0]

    @property
    def channels(self) -> int:
        return self.coefficients.shape[-1]

    @property
    def degree(self) -> int:
        """The degree of the polynomials."""
        return self.coefficients.shape[-2] - 1

    def check_moves(self) -> None:
        """Refuse a path that holds its values, where its derivative drives what is solved."""
        if self.degree == 0:
            raise InputError(
                "du/dt of ncode.paths.constant is 0, so that nothing would move: use ncode.paths.rectilinear, linear or"
                " hermite of the same values"
            )

    def rows(self, index: Tensor) -> Path:
        """Return the paths of some samples: `index` holds their numbers, or is a mask (batch,)."""
        return Path(*(leaf[index] for leaf in self))

    def expand(self, batch: int) -> Path:
        """Return one path for each sample of a batch that shares it."""
        if self.batch not in (1, batch):
            raise InputError(f"a path of {self.batch} samples cannot be that of {batch}: make one row per sample")
        # Searches need the edges of each sample in memory of its own.
        return Path(*(leaf.expand(batch, *leaf.shape[1:]).contiguous() for leaf in self))

    def to(self, *args: Any, **kwargs: Any) -> Path:
        """Return the paths on another device or in another floating dtype, as `torch.Tensor.to` does."""
        return Path(*(leaf.to(*args, **kwargs) for leaf in self))

    def __repr__(self) -> str:
        knots = self.edges.shape[1] - 1
        return f"Path(batch={self.batch}, knots={knots}, channels={self.channels}, degree={self.degree})"

    def _piece(self, t: Any) -> tuple[Tensor, Tensor]:
        """The offsets from where the pieces begin, (..., 1), and their coefficients (..., terms, channels)."""
        times = torch.as_tensor(t, dtype=self.edges.dtype, device=self.edges.device)
        if times.dim() > 2 or (times.dim() and times.shape[0] != self.batch):
            raise InputError(
                f"t must be a number or of shape ({self.batch},) or ({self.batch}, T), for {self.batch} paths; given"
                f" {tuple(times.shape)}"
            )
        columns = times.expand(self.batch)[:, None] if times.dim() < 2 else times
        # Contiguous, since torch warns of others: edges may be a view that broadcasts over the batch.
        index = torch.searchsorted(self.edges.detach().contiguous(), columns.detach().contiguous(), right=True) - 1
        offset = (columns - self.edges.gather(1, index))[..., None]
        whole = index[..., None, None].expand(-1, -1, *self.coefficients.shape[2:])
        pieces = self.coefficients.gather(1, whole)
        return (offset[:, 0], pieces[:, 0]) if times.dim() < 2 else (offset, pieces)


def constant(
    values: Float[Tensor, "batch length channels"],
    knots: Real[Tensor, "knots"] | Real[Tensor, "batch knots"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
) -> Path:
    """Piecewise constant paths: each value holds from its knot to the next, and the last one for ever.

    Args:
        values: (batch, length, channels). A missing value, nan, is that before it; at first, the first that there is.
        knots: Shared or per sample, (length,) or (batch, length), increasing. With one more than there are values, the
            last is the end. Default: 0, 1, 2, ...
        lengths: The number of values of each sample; what follows is ignored. Default: rows of values or knots that
            are all nan at the end are padding.

    >>> import torch, ncode
    >>> ncode.paths.constant(torch.tensor([[[1.0], [3.0]]])).evaluate(torch.tensor([[0.0, 0.9, 1.0, 5.0]])).squeeze()
    tensor([1., 1., 3., 3.])
    """
    data = read_data(values, knots, lengths, more_knots=1)
    filled, count = data.fill_forward(), data.values.shape[1]
    if data.knots.shape[1] > count:
        filled = torch.cat([filled, filled[:, -1:]], 1)
        data = data._replace(lengths=data.lengths + 1)
    return _make(data, filled, [], closed=False)


def linear(
    values: Float[Tensor, "batch length channels"],
    knots: Real[Tensor, "length"] | Real[Tensor, "batch length"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
    *,
    time: bool = False,
) -> Path:
    """Piecewise linear paths through values at knots.

    Args:
        values: (batch, length, channels). Missing values, nan, lie on the line between those around them; before the
            first and after the last observation of a channel they equal it, and a channel without any is 0.
        knots: Shared (length,) or per sample (batch, length), increasing. Default: 0, 1, 2, ...
        lengths: The number of values of each sample; what follows is ignored. Default: rows of values or knots that
            are all nan at the end are padding.
        time: Add the time as the first channel.

    >>> import torch, ncode
    >>> nan = float("nan")
    >>> path = ncode.paths.linear(torch.tensor([[[1.0], [nan], [3.0], [nan]]]), time=True)
    >>> path.evaluate(1.0), path.end
    (tensor([[1., 2.]]), tensor([2.]))
    """
    data = read_data(values, knots, lengths)
    filled = data.with_time(data.fill_linear(), time)
    return _make(data, filled, [data.slopes(filled)])


def hermite(
    values: Float[Tensor, "batch length channels"],
    knots: Real[Tensor, "length"] | Real[Tensor, "batch length"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
    *,
    time: bool = False,
) -> Path:
    """Cubic Hermite paths with backward differences: smooth, and as causal as linear ones. Arguments as for `linear`.

    >>> import torch, ncode
    >>> path = ncode.paths.hermite(torch.tensor([[[0.0], [1.0], [0.0]]]))
    >>> path.derivative(torch.tensor([[0.0, 1.0, 2.0]])).squeeze()
    tensor([ 1.,  1., -1.])
    """
    data = read_data(values, knots, lengths)
    filled = data.with_time(data.fill_linear(), time)
    slopes = data.slopes(filled)
    before = torch.cat([slopes[:, :1], slopes[:, :-1]], 1)
    # Padded pieces stay constant.
    before = torch.where(data.inner[..., None], before, 0.0)
    bend = (slopes - before) / data.steps[..., None]
    return _make(data, filled, [before, 2 * bend, -bend / data.steps[..., None]])


def rectilinear(
    values: Float[Tensor, "batch length channels"],
    knots: Real[Tensor, "length"] | Real[Tensor, "batch length"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
) -> Path:
    """Paths whose first channel is the time: first the time moves to the next knot, then the values follow.

    They depend on no later value, and are meant for controlled differential equations, where the parameter of a path
    does not matter: it is 2 i at the i-th value, and the last knot is 2 (length - 1).

    Args:
        values: (batch, length, channels). A missing value, nan, is that before it; at first, the first that there is.
        knots, lengths: As for `linear`.

    >>> import torch, ncode
    >>> path = ncode.paths.rectilinear(torch.tensor([[[5.0], [7.0]]]), torch.tensor([0.0, 0.3]))
    >>> path.evaluate(torch.tensor([[0.0, 1.0, 2.0]]))
    tensor([[[0.0000, 5.0000],
             [0.3000, 5.0000],
             [0.3000, 7.0000]]])
    """
    data = read_data(values, knots, lengths)
    points = data.with_time(data.fill_forward(), True).repeat_interleave(2, 1)
    points = torch.cat([points[:, 1:, :1], points[:, :-1, 1:]], 2)
    return linear(points, lengths=2 * data.lengths - 1)


class Data(NamedTuple):
    """Checked values and knots; both are padded by their last one, values also by nan before they are filled."""

    values: Tensor  # (batch, length, channels)
    knots: Tensor  # (batch, length), or one more
    lengths: Tensor  # (batch,)

    @property
    def inner(self) -> Tensor:
        """Whether a piece lies between two knots, (batch, length - 1)."""
        number = torch.arange(1, self.knots.shape[1], device=self.knots.device)
        return number < self.lengths[:, None]

    @property
    def steps(self) -> Tensor:
        """The lengths of the pieces, 1 for padding."""
        return torch.where(self.inner, self.knots.diff(dim=1), 1.0)

    def slopes(self, filled: Tensor) -> Tensor:
        return filled.diff(dim=1) / self.steps[..., None]

    def with_time(self, filled: Tensor, time: bool) -> Tensor:
        return torch.cat([self.knots[..., None], filled], 2) if check_flag("time", time) else filled

    def fill_forward(self) -> Tensor:
        """Missing values by those before them; at first, by the first that there is."""
        left, right, _, _ = self.neighbours()
        return torch.where(left < 0, self._at(right), self._at(left))

    def fill_linear(self) -> Tensor:
        """Missing values by the line between their neighbours, at the ends by the one neighbour."""
        left, right, known, missing = self.neighbours()
        if not missing:
            return known
        time = self.knots[..., None].expand_as(known)
        a, b = (time.gather(1, index.clamp(0, known.shape[1] - 1)) for index in (left, right))
        between = (left >= 0) & (right < known.shape[1])
        ratio = torch.where(between & (b > a), (time - a) / torch.where(b > a, b - a, 1.0), 0.0)
        first, second = self._at(left), self._at(right)
        filled = torch.where(left < 0, second, torch.where(between, first + ratio * (second - first), first))
        return torch.where(self.values.isnan(), filled, known)

    def _at(self, index: Tensor) -> Tensor:
        known = self.values.nan_to_num(0.0)
        return known.gather(1, index.clamp(0, known.shape[1] - 1))

    def neighbours(self) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Of each value the last one that is observed, -1 without, the next, length without; known values; any not."""
        observed, count = ~self.values.isnan(), self.values.shape[1]
        number = torch.arange(count, device=self.values.device)[:, None].expand_as(observed)
        left = torch.where(observed, number, -1).cummax(1).values
        right = torch.where(observed, number, count).flip(1).cummin(1).values.flip(1)
        return left, right, self.values.nan_to_num(0.0), is_symbolic() or not bool(observed.all())


def _make(data: Data, filled: Tensor, higher: list[Tensor], *, closed: bool = True) -> Path:
    """A path of values (batch, n, channels) at knots, and of the higher coefficients (batch, n - 1, channels) between.

    Where `closed`, the last knot belongs to the piece before it, since its derivative there is needed by solves that
    end at it: the constant after it begins at the next number.
    """
    batch, count, channels = filled.shape
    end = data.knots.gather(1, data.lengths[:, None] - 1)
    after = torch.nextafter(end.detach(), torch.full_like(end, _FAR)) - end.detach() if closed else 0.0
    number = torch.arange(count, device=filled.device)
    far = torch.full_like(end, _FAR)
    edges = torch.where(number < data.lengths[:, None] - 1, data.knots, far)
    edges = torch.cat([-far, torch.where(number == data.lengths[:, None] - 1, end + after, edges)], 1)
    zeros = filled.new_zeros(batch, 1, channels)
    terms = [torch.cat([filled[:, :1], filled], 1), *(torch.cat([zeros, term, zeros], 1) for term in higher)]
    return Path(edges, end[:, 0], torch.stack(terms, 2))


def read_data(values: Any, knots: Any, lengths: Any, more_knots: int = 0) -> Data:
    """Check the data of a path and pad it."""
    if check_tensor("values", values).dim() != 3 or not values.is_floating_point():
        hint = "for one channel use values[..., None]" if values.is_floating_point() else "use values.float()"
        raise InputError(
            f"values must be a floating tensor (batch, length, channels); given {values.dtype} {tuple(values.shape)}:"
            f" {hint}"
        )
    batch, count, channels = values.shape
    if batch == 0 or count == 0 or channels == 0:
        raise InputError(
            f"values of shape {tuple(values.shape)} hold nothing: (batch, length, channels) must be positive"
        )
    times = _read_knots(values, knots, more_knots)
    size = _read_lengths(values, times, lengths)
    number = torch.arange(times.shape[1], device=values.device)
    extra = times.shape[1] - count
    inside = number < size[:, None] + extra
    _check_values(values, times, size, inside, extra)
    last = times.gather(1, size[:, None] - 1 + extra)
    values = torch.where(inside[:, extra:, None], values, torch.nan)
    return Data(values, torch.where(inside, times, last), size)


def _read_knots(values: Tensor, knots: Any, more_knots: int) -> Tensor:
    """The knots as (batch, length), or one more."""
    batch, count, _ = values.shape
    if knots is None:
        return torch.arange(count, dtype=values.dtype, device=values.device).repeat(batch, 1)
    if check_tensor("knots", knots).is_complex() or knots.dtype == torch.bool:
        raise InputError(f"knots must be real; given {knots.dtype}")
    if knots.device != values.device:
        raise InputError(f"knots are on {knots.device} and values on {values.device}: move one of them")
    sizes = [count + extra for extra in range(more_knots + 1)]
    if knots.dim() not in (1, 2) or knots.shape[-1] not in sizes or (knots.dim() == 2 and len(knots) != batch):
        lengths = " or ".join(f"({size},), ({batch}, {size})" for size in sizes)
        raise InputError(
            f"knots must be {lengths} for values {tuple(values.shape)}, shared or per sample; given"
            f" {tuple(knots.shape)}"
        )
    return knots.to(values.dtype).expand(batch, knots.shape[-1])


def _read_lengths(values: Tensor, knots: Tensor, lengths: Any) -> Tensor:
    """The number of values of each sample: as given, or up to the last row that is not padding."""
    batch, count, _ = values.shape
    if lengths is None:
        extra = knots.shape[1] - count
        there = ~values.isnan().all(2) & ~knots[:, extra:].isnan()
        number = torch.arange(1, count + 1, device=values.device)
        return torch.where(there, number, 0).amax(1)
    given = torch.as_tensor(lengths, device=values.device)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool or given.shape != (batch,):
        raise InputError(
            f"lengths must be {batch} whole numbers, one per sample; given {given.dtype} {tuple(given.shape)}"
        )
    if not is_symbolic() and not bool(((given >= 1) & (given <= count)).all()):
        raise InputError(f"lengths must be between 1 and {count}, the length of values; given {given.tolist()}"[:300])
    return given.long()


def _check_values(values: Tensor, knots: Tensor, lengths: Tensor, inside: Tensor, extra: int) -> None:
    if is_symbolic():
        return
    empty = lengths == 0
    if bool(empty.any()):
        raise InputError(f"sample {int(empty.nonzero()[0])} has no values: leave it out of the batch")
    infinite = (values.isinf() & inside[:, extra:, None]).flatten(1).any(1)
    if bool(infinite.any()):
        raise InputError(f"values are infinite in sample {int(infinite.nonzero()[0])}; a missing value is nan")
    ordered = (knots.diff(dim=1) > 0) | ~inside[:, 1:]
    good = ordered.all(1) & (knots.isfinite() | ~inside).all(1)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        raise InputError(
            f"knots must be finite and increase from each to the next; those of sample {row} are {knots[row].tolist()}"[
                :300
            ]
        )
