"""Triton kernels for the whole convolution block, y = W3 relu(W2 * relu(W1 x + b1) + b2) + b3, and for its gradients.

The block costs as much as moving the layers in between to memory and back. Here each is written once, and a 1x1 layer
is part of the pass that writes or reads its 3x3 neighbour:

    arrange   the 3x3 kernels as (tap, out, in), in the dtype of products; or rotated by 180 degrees, (tap, in, out).
    first     H1 = relu(W1 x + b1), with its border of zeros and the channels of a pixel contiguous.
    second    h2 = relu(W2 * H1 + b2), and y = W3 h2 + b3 from the same registers. h2 is written if it is to be kept.
    back      DH2, the gradient before the second relu, in the layout of H1; also the gradients of W3, b3 and b2.
    front     the gradient of x by the rotated 3x3; those of W1 and b1, one part per program, are summed by `join`.
    taps      the gradient of W2, one row of the 3x3 per program.

The number of channels between the layers is a power of two, C >= f, with zeros beyond f: only pixels can be outside. A
channel that is t everywhere is never written: in a 1x1 layer it is a bias, and in the 3x3 nine more terms (`rim`), one
for each tap that is inside the image.

x, y, weights, all gradients and sums are in single precision. H1, h2, DH2 and the factors of products are in the
requested dtype; see `_convolution_kernels.py` for TF32. Tensor cores take 16-bit factors in either order, but in single
precision need the summed dimension to be contiguous. So there `front` reads rotated kernels, and `first` and `back`
write H1 and DH2 a second time, as (batch, f, H + 2, W + 2), for `taps`, which sums over pixels.

A factor of a product of more than one step is at least 128 bytes wide in its contiguous dimension. The assembler for
Hopper (ptxas of CUDA 12.8, in Triton 3.6) may leave the address of a narrower one undefined if another has been in the
same part of shared memory before: an illegal memory access. Hence C >= 64 in 16 bits, kernels of the first layer as
(c, f), `_seen` with pixels last, and the gradient that `back` reads with pixels first, for any width of the image.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._convolution_kernels import Blocks, _launch, _pieces, _precision, jit, tl
from ._fused_block import channels_between, empty_back, empty_forward, empty_front, empty_kernels, padded_channels

BLOCKS = {
    "half": {
        "first": Blocks(128, 0, 4, 1),
        "second": Blocks(128, 64, 4, 3),
        "back": Blocks(64, 0, 8, 3),
        "front": Blocks(128, 64, 4, 3),
        "taps": Blocks(0, 64, 4, 3),
    },
    "tf32": {
        "first": Blocks(128, 0, 4, 1),
        "second": Blocks(128, 32, 8, 3),
        "back": Blocks(32, 0, 8, 2),
        "front": Blocks(128, 32, 8, 3),
        "taps": Blocks(0, 32, 4, 3),
    },
    "tf32x3": {
        "first": Blocks(64, 0, 4, 1),
        "second": Blocks(128, 32, 8, 2),
        "back": Blocks(32, 0, 8, 1),
        "front": Blocks(128, 32, 8, 2),
        "taps": Blocks(0, 32, 8, 2),
    },
}
_SUMS = {"half": 128, "tf32": 128, "tf32x3": 64}  # the most that a thread may hold: it has 255 registers for everything
_ARRANGE, _JOIN = Blocks(1024, 0, 4, 1), Blocks(0, 0, 4, 1)
_GROUPS = 32  # number of partial sums of the gradients of shared kernels


def arrange(w2: Tensor, dtype: torch.dtype, turned: bool = False) -> Tensor:
    """Return kernels (n, f, f, 3, 3) as (n, 9, C, C), zeros beyond f: (tap, out, in).

    With `turned` they are rotated by 180 degrees: (last tap first, in, out).
    """
    found = empty_kernels(w2, dtype, turned)
    f, channels = w2.shape[1], found.shape[-1]
    if w2.stride()[2:] != (9, 3, 1):
        w2 = w2.contiguous()
    grid = (len(w2) * _pieces(9 * channels**2, _ARRANGE.rows),)
    sizes = (w2.stride(0), w2.stride(1), f, channels, _ARRANGE.rows, turned)
    _launch(_arrange, grid, (w2, found), sizes, _ARRANGE)
    return found


def forward(*inputs: Any) -> tuple[Tensor, ...]:
    """Return y (batch, o, H, W), H1 (batch, H + 2, W + 2, C), h2 (batch, H W, C) and H1 for `taps`.

    The last two are empty unless `keep`, and the last one is empty in 16 bits.
    """
    y, laid, h2, planes = empty_forward(*inputs)
    x, w1, b1, kernels, b2, w3, b3, rim, keep = inputs
    (batch, c, height, wide), f, channels = x.shape, w1.shape[2], kernels.shape[-1]
    dtype, blocks, precision = _setting(kernels.dtype, channels)
    x, kernels = x.contiguous(), kernels.contiguous()
    w1, b1, b2, w3, b3 = map(_rows, (w1, b1, b2, w3, b3))
    again, how = keep and dtype == torch.float32, blocks["first"]
    grid = (batch * _pieces((height + 2) * (wide + 2), how.rows),)
    ins = padded_channels(c, _terms(dtype))
    sizes = (w1.stride(0), b1.stride(0), c, f, height, wide, channels, ins, how.rows, again, precision)
    _launch(_first, grid, (x, w1, b1, laid, planes), sizes, how)

    border = b2 if rim is None else _rows(rim)
    strides = (_step(kernels), b2.stride(0), w3.stride(0), b3.stride(0), border.stride(0))
    how = blocks["second"]
    grid = (batch * _pieces(height * wide, how.rows),)
    shape = (f, w3.shape[1], height, wide, channels, padded_channels(w3.shape[1]), _terms(dtype))
    sizes = (*strides, *shape, how.rows, min(how.inner, channels), keep, rim is not None, precision)
    _launch(_second, grid, (laid, kernels, b2, w3, b3, border, h2, y), sizes, how)
    return y, laid, h2, planes


def back(grad: Tensor, w3: Tensor, h2: Tensor, height: int, wide: int, time: bool) -> tuple[Tensor, ...]:
    """Return DH2, in single precision also for `taps`, and the gradients of w3, b3, b2 and, with time, of the rim."""
    found = empty_back(grad, w3, h2, height, wide, time)
    (batch, o, f), channels = w3.shape, h2.shape[-1]
    dtype, blocks, precision = _setting(h2.dtype, channels)
    grad, h2, w3 = grad.float().contiguous(), h2.contiguous(), _rows(w3)
    how, outs = blocks["back"], padded_channels(o, _terms(dtype))
    sizes = (w3.stride(0), f, o, height, wide, channels, outs, how.rows, time, dtype == torch.float32, precision)
    _launch(_back, (batch,), (grad, w3, h2, *found), sizes, how)
    return found


def front(slope: Tensor, laid: Tensor, kernels: Tensor, w1: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of x, w1 and b1; kernels are rotated in single precision."""
    x_grad, w1_grad, b1_grad = empty_front(slope, laid, kernels, w1, x)
    (batch, c, height, wide), f, channels = x.shape, w1.shape[2], laid.shape[-1]
    dtype, blocks, precision = _setting(laid.dtype, channels)
    slope, laid, kernels, x = (tensor.contiguous() for tensor in (slope, laid, kernels, x))
    w1, ins, how = _rows(w1), padded_channels(c + 1), blocks["front"]
    tiles = _pieces(height * wide, how.rows)
    parts = x.new_empty(batch, tiles, channels, ins)
    sizes = (_step(kernels), w1.stride(0), c, f, height, wide, channels, ins)
    sizes = (*sizes, how.rows, min(how.inner, channels), dtype == torch.float32, precision)
    _launch(_front, (batch * tiles,), (slope, laid, kernels, w1, x, x_grad, parts), sizes, how)
    _launch(_join, (batch,), (parts, w1_grad, b1_grad), (tiles, c, f, channels, ins), _JOIN)
    return x_grad, w1_grad, b1_grad


def taps(slope: Tensor, laid: Tensor, f: int, shared: bool) -> Tensor:
    """Return the gradient of w2, (batch, f, f, 3, 3), or (1, f, f, 3, 3) if all samples share it.

    It is computed from H1 and DH2, in single precision as (batch, f, H + 2, W + 2).
    """
    channels = channels_between(f, laid.dtype)
    dtype, blocks, precision = _setting(laid.dtype, channels)
    slope, laid, how, last = slope.contiguous(), laid.contiguous(), blocks["taps"], dtype != torch.float32
    batch, (height, wide) = len(laid), laid.shape[1:3] if last else laid.shape[2:]
    group, rows = _pieces(batch, _GROUPS) if shared else 1, min(channels, 64)
    groups = _pieces(batch, group)
    w2_grad = laid.new_empty(groups, f, f, 3, 3, dtype=torch.float32)
    grid = (groups * 3 * (channels // rows) ** 2,)
    sizes = (batch, group, f, height - 2, wide - 2, channels, rows, how.inner, last, precision)
    _launch(_taps, grid, (slope, laid, w2_grad), sizes, how)
    return w2_grad.sum(0, keepdim=True) if shared and groups > 1 else w2_grad


def _setting(dtype: torch.dtype, channels: int) -> tuple[torch.dtype, dict[str, Blocks], str]:
    precision = _precision()
    key = precision if dtype == torch.float32 else "half"
    return dtype, {name: _fitting(how, channels, _SUMS[key]) for name, how in BLOCKS[key].items()}, precision


def _fitting(how: Blocks, channels: int, most: int) -> Blocks:
    """Return blocks with more warps, then fewer pixels, so that a thread holds at most `most` sums."""
    while how.rows * channels > 32 * how.warps * most:
        how = how._replace(warps=8) if how.warps < 8 else how._replace(rows=how.rows // 2)
    return how


def _rows(tensor: Tensor) -> Tensor:
    """Return a tensor whose samples are contiguous; their stride may be anything, also 0."""
    return tensor if tensor[:1].is_contiguous() else tensor.contiguous()


def _terms(dtype: torch.dtype) -> int:
    """Return the least number of terms of a product: one step in 16 bits, 128 bytes in single precision."""
    return 32 if dtype == torch.float32 else 16


def _step(tensor: Tensor) -> int:
    """Return the stride between samples; 0 if all share the first."""
    return tensor.stride(0) if len(tensor) > 1 else 0


@jit
def _relu(x):
    """Return max(x, 0), where nan stays nan."""
    return tl.where(x <= 0.0, 0.0, x)


@jit
def _seen(i, j, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr):
    """Return which of the nine neighbours of pixels (i, j) are inside the image: [TAPS, pixels]."""
    tap = tl.arange(0, TAPS)
    row = i[None, :] + (tap // 3 - 1)[:, None]
    column = j[None, :] + (tap % 3 - 1)[:, None]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & (tap < 9)[:, None]
    return tl.where(inside, 1.0, 0.0)


@jit
def _nine(
    laid, kernels, pixel,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr, INNER: tl.constexpr, BACK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the 3x3 convolution at some pixels, or with BACK its transpose, for gradients: [PIXELS, CHANNELS]."""
    WIDE: tl.constexpr = WIDTH + 2
    PIECES: tl.constexpr = CHANNELS // INNER
    out = tl.arange(0, CHANNELS)
    place = (pixel // WIDTH * WIDE + pixel % WIDTH) * CHANNELS
    live = pixel < HEIGHT * WIDTH
    total = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for step in range(0, 9 * PIECES):
        tap = step // PIECES
        s = (step % PIECES) * INNER + tl.arange(0, INNER)
        moved = (tap // 3 * WIDE + tap % 3) * CHANNELS + s
        image = tl.load(laid + (place[:, None] + moved[None, :]), mask=live[:, None], other=0.0)
        if BACK:
            kernel = tl.load(kernels + (s[:, None] * CHANNELS + ((8 - tap) * (CHANNELS * CHANNELS) + out)[None, :]))
        else:
            kernel = tl.load(kernels + (out[None, :] * CHANNELS + (tap * (CHANNELS * CHANNELS) + s)[:, None]))
        total = tl.dot(image, kernel, total, input_precision=PRECISION)
    return total


@jit
def _arrange(
    w2, found,
    SAMPLE: tl.constexpr, ROW: tl.constexpr,
    FILTERS: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr, TURNED: tl.constexpr,
) -> None:  # fmt: skip
    WHOLE: tl.constexpr = 9 * CHANNELS * CHANNELS
    BLOCKS: tl.constexpr = (WHOLE + NUMBERS - 1) // NUMBERS
    program = tl.program_id(0)
    sample = (program // BLOCKS).to(tl.int64)
    # One dimension, in the order of memory: reads are contiguous, and writes go to nine places.
    number = (program % BLOCKS) * NUMBERS + tl.arange(0, NUMBERS)
    out, rest = number // (9 * CHANNELS), number % (9 * CHANNELS)
    known = (out < FILTERS) & (rest < 9 * FILTERS)
    value = tl.load(w2 + sample * SAMPLE + (out * ROW + rest), mask=known, other=0.0)
    term, tap = rest // 9, rest % 9
    if TURNED:
        place = (8 - tap) * (CHANNELS * CHANNELS) + term * CHANNELS + out
    else:
        place = tap * (CHANNELS * CHANNELS) + out * CHANNELS + term
    tl.store(found + sample * WHOLE + place, value.to(found.dtype.element_ty), mask=number < WHOLE)


@jit
def _first(
    x, w1, b1, laid, planes,
    W1: tl.constexpr, B1: tl.constexpr,
    IN: tl.constexpr, FILTERS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    INS: tl.constexpr, PLACES: tl.constexpr, AGAIN: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    WIDE: tl.constexpr = WIDTH + 2
    PLANE: tl.constexpr = (HEIGHT + 2) * WIDE
    TILES: tl.constexpr = (PLANE + PLACES - 1) // PLACES
    program = tl.program_id(0)
    sample = (program // TILES).to(tl.int64)
    place = (program % TILES) * PLACES + tl.arange(0, PLACES)
    c, out = tl.arange(0, INS), tl.arange(0, CHANNELS)
    x += sample * (IN * HEIGHT * WIDTH)
    laid += sample * (PLANE * CHANNELS)
    i, j = place // WIDE - 1, place % WIDE - 1
    inside = (i >= 0) & (i < HEIGHT) & (j >= 0) & (j < WIDTH)
    # Pixels last, as they are in memory: the compiler cannot see that they are contiguous.
    seen = (c < IN)[:, None] & inside[None, :]
    image = tl.load(x + (c[:, None] * (HEIGHT * WIDTH) + (i * WIDTH + j)[None, :]), mask=seen, other=0.0)
    known = (c < IN)[:, None] & (out < FILTERS)[None, :]
    kernel = tl.load(w1 + sample * W1 + (c[:, None] * FILTERS + out[None, :]), mask=known, other=0.0)
    bias = tl.load(b1 + sample * B1 + out, mask=out < FILTERS, other=0.0)
    total = tl.zeros((PLACES, CHANNELS), dtype=tl.float32)
    dtype = laid.dtype.element_ty
    total = tl.dot(tl.trans(image.to(dtype)), kernel.to(dtype), total, input_precision=PRECISION)
    value = tl.where(inside[:, None], _relu(total + bias[None, :]), 0.0)
    live = (place < PLANE)[:, None]
    tl.store(laid + (place[:, None] * CHANNELS + out[None, :]), value.to(dtype), mask=live)
    if AGAIN:
        planes += sample * (FILTERS * PLANE)
        tl.store(planes + (out[None, :] * PLANE + place[:, None]), value, mask=live & (out < FILTERS)[None, :])


@jit
def _second(
    laid, kernels, b2, w3, b3, rim, h2, y,
    W2: tl.constexpr, B2: tl.constexpr, W3: tl.constexpr, B3: tl.constexpr, RIM: tl.constexpr,
    FILTERS: tl.constexpr, OUT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    OUTS: tl.constexpr, TAPS: tl.constexpr, PIXELS: tl.constexpr, INNER: tl.constexpr,
    KEEP: tl.constexpr, TIME: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    PLANE: tl.constexpr = HEIGHT * WIDTH
    TILES: tl.constexpr = (PLANE + PIXELS - 1) // PIXELS
    program = tl.program_id(0)
    sample = (program // TILES).to(tl.int64)
    pixel = (program % TILES) * PIXELS + tl.arange(0, PIXELS)
    channel, o = tl.arange(0, CHANNELS), tl.arange(0, OUTS)
    dtype = laid.dtype.element_ty
    laid += sample * ((HEIGHT + 2) * (WIDTH + 2) * CHANNELS)
    total = _nine(laid, kernels + sample * W2, pixel, HEIGHT, WIDTH, CHANNELS, PIXELS, INNER, False, PRECISION)
    if TIME:
        tap = tl.arange(0, TAPS)
        known = (tap < 9)[:, None] & (channel < FILTERS)[None, :]
        more = tl.load(rim + sample * RIM + (channel[None, :] * 9 + tap[:, None]), mask=known, other=0.0)
        seen = tl.trans(_seen(pixel // WIDTH, pixel % WIDTH, HEIGHT, WIDTH, TAPS).to(dtype))
        total = tl.dot(seen, more.to(dtype), total, input_precision=PRECISION)
    bias = tl.load(b2 + sample * B2 + channel, mask=channel < FILTERS, other=0.0)
    hidden = _relu(total + bias[None, :]).to(dtype)
    live = (pixel < PLANE)[:, None]
    if KEEP:
        h2 += sample * (PLANE * CHANNELS)
        tl.store(h2 + (pixel[:, None] * CHANNELS + channel[None, :]), hidden, mask=live)
    known = (channel < FILTERS)[:, None] & (o < OUT)[None, :]
    kernel = tl.load(w3 + sample * W3 + (o[None, :] * FILTERS + channel[:, None]), mask=known, other=0.0)
    result = tl.zeros((PIXELS, OUTS), dtype=tl.float32)
    result = tl.dot(hidden, kernel.to(dtype), result, input_precision=PRECISION)
    result += tl.load(b3 + sample * B3 + o, mask=o < OUT, other=0.0)[None, :]
    y += sample * (OUT * PLANE)
    tl.store(y + (o[None, :] * PLANE + pixel[:, None]), result, mask=live & (o < OUT)[None, :])


@jit
def _back(
    grad, w3, h2, slope, planes, w3_grad, b3_grad, b2_grad, rim_grad,
    W3: tl.constexpr,
    FILTERS: tl.constexpr, OUT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    OUTS: tl.constexpr, PLACES: tl.constexpr,
    TIME: tl.constexpr, AGAIN: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    WIDE: tl.constexpr = WIDTH + 2
    PLANE: tl.constexpr = (HEIGHT + 2) * WIDE
    sample = tl.program_id(0).to(tl.int64)
    channel, o, tap = tl.arange(0, CHANNELS), tl.arange(0, OUTS), tl.arange(0, 16)
    dtype = h2.dtype.element_ty
    grad += sample * (OUT * HEIGHT * WIDTH)
    h2 += sample * (HEIGHT * WIDTH * CHANNELS)
    slope += sample * (PLANE * CHANNELS)
    planes += sample * (FILTERS * PLANE)
    known = (o < OUT)[:, None] & (channel < FILTERS)[None, :]
    kernel = tl.load(w3 + sample * W3 + (o[:, None] * FILTERS + channel[None, :]), mask=known, other=0.0).to(dtype)
    of_w3 = tl.zeros((CHANNELS, OUTS), dtype=tl.float32)
    of_taps = tl.zeros((CHANNELS, 16), dtype=tl.float32)
    of_b3 = tl.zeros((OUTS,), dtype=tl.float32)
    for first in range(0, PLANE, PLACES):
        place = first + tl.arange(0, PLACES)
        i, j = place // WIDE - 1, place % WIDE - 1
        inside = (i >= 0) & (i < HEIGHT) & (j >= 0) & (j < WIDTH)
        pixel = i * WIDTH + j
        # Pixels first: where the compiler cannot see which of two dimensions is contiguous, it assumes the first.
        some = inside[:, None] & (o < OUT)[None, :]
        above = tl.load(grad + (pixel[:, None] + o[None, :] * (HEIGHT * WIDTH)), mask=some, other=0.0)
        hidden = tl.load(h2 + (pixel[:, None] * CHANNELS + channel[None, :]), mask=inside[:, None], other=0.0)
        short = above.to(dtype)
        value = tl.zeros((PLACES, CHANNELS), dtype=tl.float32)
        value = tl.dot(short, kernel, value, input_precision=PRECISION)
        value = tl.where(hidden <= 0.0, 0.0, value).to(dtype)
        live = (place < PLANE)[:, None]
        tl.store(slope + (place[:, None] * CHANNELS + channel[None, :]), value, mask=live)
        if AGAIN:
            kept = live & (channel < FILTERS)[None, :]
            tl.store(planes + (channel[None, :] * PLANE + place[:, None]), value, mask=kept)
        of_w3 = tl.dot(tl.trans(hidden), short, of_w3, input_precision=PRECISION)
        seen = tl.trans(_seen(i, j, HEIGHT, WIDTH, 16).to(dtype))
        of_taps = tl.dot(tl.trans(value), seen, of_taps, input_precision=PRECISION)
        of_b3 += tl.sum(above, axis=0)
    fits = (channel < FILTERS)[:, None]
    target = w3_grad + sample * (OUT * FILTERS) + (o[None, :] * FILTERS + channel[:, None])
    tl.store(target, of_w3, mask=fits & (o < OUT)[None, :])
    tl.store(b3_grad + sample * OUT + o, of_b3, mask=o < OUT)
    # A pixel inside the image is its own neighbour in the middle.
    middle = tl.sum(tl.where((tap == 4)[None, :], of_taps, 0.0), axis=1)
    tl.store(b2_grad + sample * FILTERS + channel, middle, mask=channel < FILTERS)
    if TIME:
        target = rim_grad + sample * (FILTERS * 9) + (channel[:, None] * 9 + tap[None, :])
        tl.store(target, of_taps, mask=fits & (tap < 9)[None, :])


@jit
def _front(
    slope, laid, kernels, w1, x, x_grad, parts,
    W2: tl.constexpr, W1: tl.constexpr,
    IN: tl.constexpr, FILTERS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    INS: tl.constexpr, PIXELS: tl.constexpr, INNER: tl.constexpr,
    TURNED: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    WIDE: tl.constexpr = WIDTH + 2
    PLANE: tl.constexpr = HEIGHT * WIDTH
    TILES: tl.constexpr = (PLANE + PIXELS - 1) // PIXELS
    program = tl.program_id(0)
    sample = (program // TILES).to(tl.int64)
    pixel = (program % TILES) * PIXELS + tl.arange(0, PIXELS)
    channel, c = tl.arange(0, CHANNELS), tl.arange(0, INS)
    dtype = laid.dtype.element_ty
    laid += sample * ((HEIGHT + 2) * WIDE * CHANNELS)
    slope += sample * ((HEIGHT + 2) * WIDE * CHANNELS)
    total = _nine(slope, kernels + sample * W2, pixel, HEIGHT, WIDTH, CHANNELS, PIXELS, INNER, not TURNED, PRECISION)
    live = (pixel < PLANE)[:, None]
    place = (pixel // WIDTH + 1) * WIDE + pixel % WIDTH + 1
    hidden = tl.load(laid + (place[:, None] * CHANNELS + channel[None, :]), mask=live, other=0.0)
    value = tl.where(hidden <= 0.0, 0.0, total).to(dtype)

    known = (channel < FILTERS)[:, None] & (c < IN)[None, :]
    kernel = tl.load(w1 + sample * W1 + (c[None, :] * FILTERS + channel[:, None]), mask=known, other=0.0)
    result = tl.zeros((PIXELS, INS), dtype=tl.float32)
    result = tl.dot(value, kernel.to(dtype), result, input_precision=PRECISION)
    image = sample * (IN * PLANE) + (c[None, :] * PLANE + pixel[:, None])
    some = live & (c < IN)[None, :]
    tl.store(x_grad + image, result, mask=some)

    # The bias is the kernel of one more channel, which is 1 everywhere.
    whole = tl.where((c == IN)[None, :], 1.0, tl.load(x + image, mask=some, other=0.0)).to(dtype)
    part = tl.zeros((CHANNELS, INS), dtype=tl.float32)
    part = tl.dot(tl.trans(value), whole, part, input_precision=PRECISION)
    parts += program.to(tl.int64) * (CHANNELS * INS)
    tl.store(parts + (channel[:, None] * INS + c[None, :]), part)


@jit
def _join(
    parts, w1_grad, b1_grad,
    TILES: tl.constexpr, IN: tl.constexpr, FILTERS: tl.constexpr, CHANNELS: tl.constexpr, INS: tl.constexpr,
) -> None:  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    channel, c = tl.arange(0, CHANNELS), tl.arange(0, INS)
    parts += sample * (TILES * CHANNELS * INS)
    total = tl.zeros((CHANNELS, INS), dtype=tl.float32)
    for tile in range(0, TILES):
        total += tl.load(parts + (tile * (CHANNELS * INS) + channel[:, None] * INS + c[None, :]))
    fits = channel < FILTERS
    target = w1_grad + sample * (IN * FILTERS) + (c[None, :] * FILTERS + channel[:, None])
    tl.store(target, total, mask=fits[:, None] & (c < IN)[None, :])
    bias = tl.sum(tl.where((c == IN)[None, :], total, 0.0), axis=1)
    tl.store(b1_grad + sample * FILTERS + channel, bias, mask=fits)


@jit
def _taps(
    slope, laid, w2_grad, batch,
    GROUP: tl.constexpr, FILTERS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    WIDE: tl.constexpr = WIDTH + 2
    PLANE: tl.constexpr = (HEIGHT + 2) * WIDE
    WHOLE: tl.constexpr = PLANE * (CHANNELS if LAST else FILTERS)
    STEPS: tl.constexpr = (HEIGHT * WIDTH + INNER - 1) // INNER
    SIDE: tl.constexpr = CHANNELS // ROWS
    program = tl.program_id(0)
    group, block = program // (3 * SIDE * SIDE), program % (3 * SIDE * SIDE)
    down = block % 3
    out = (block // 3) % SIDE * ROWS + tl.arange(0, ROWS)
    term = (block // 3) // SIDE * ROWS + tl.arange(0, ROWS)
    left = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    middle = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    right = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for step in range(0, GROUP * STEPS):
        sample = group * GROUP + step // STEPS
        pixel = (step % STEPS) * INNER + tl.arange(0, INNER)
        live = pixel < tl.where(sample < batch, HEIGHT * WIDTH, 0)
        place = pixel // WIDTH * WIDE + pixel % WIDTH
        start = sample.to(tl.int64) * WHOLE
        here, there = place + (WIDE + 1), place + down * WIDE
        above = _tile(slope + start, here, live, out, PLANE, FILTERS, CHANNELS, False, LAST)
        first = _tile(laid + start, there, live, term, PLANE, FILTERS, CHANNELS, True, LAST)
        second = _tile(laid + start, there + 1, live, term, PLANE, FILTERS, CHANNELS, True, LAST)
        third = _tile(laid + start, there + 2, live, term, PLANE, FILTERS, CHANNELS, True, LAST)
        left = tl.dot(above, first, left, input_precision=PRECISION)
        middle = tl.dot(above, second, middle, input_precision=PRECISION)
        right = tl.dot(above, third, right, input_precision=PRECISION)
    kept = (out < FILTERS)[:, None] & (term < FILTERS)[None, :]
    target = w2_grad + group.to(tl.int64) * (FILTERS * FILTERS * 9)
    target += (out[:, None] * FILTERS + term[None, :]) * 9 + down * 3
    tl.store(target, left, mask=kept)
    tl.store(target + 1, middle, mask=kept)
    tl.store(target + 2, right, mask=kept)


@jit
def _tile(
    image, place, live, channel,
    PLANE: tl.constexpr, FILTERS: tl.constexpr, CHANNELS: tl.constexpr,
    DOWN: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Load places by channels of an image whose channels are LAST or first. With DOWN, rows of the tile are places."""
    if LAST:
        if DOWN:
            tile = tl.load(image + (place[:, None] * CHANNELS + channel[None, :]), mask=live[:, None], other=0.0)
        else:
            tile = tl.load(image + (place[None, :] * CHANNELS + channel[:, None]), mask=live[None, :], other=0.0)
    else:
        seen = (channel < FILTERS)[:, None] & live[None, :]
        tile = tl.load(image + (channel[:, None] * PLANE + place[None, :]), mask=seen, other=0.0)
        if DOWN:
            tile = tl.trans(tile)
    return tile
