"""Triton kernels for the whole convolution block, y = W3 relu(W2 * relu(W1 x + b1) + b2) + b3, and for its gradients.

What lies between the layers is several times as large as the image, and its way to memory and back is what the block
costs. Here each layer is written once, and a 1x1 layer is part of the pass that makes or reads its 3x3 neighbour:

    arrange   the 3x3 kernels as (tap, out, in), of the dtype of products.
    first     H1 = relu(W1 x + b1), with its border of zeros and a pixel's channels side by side.
    second    h2 = relu(W2 * H1 + b2), and y = W3 h2 + b3 from the same registers. h2 is written where it is kept.
    back      the gradient of what enters the second relu, DH2, laid out as H1 is; of W3, b3 and b2 on the way.
    front     the gradient of x by the turned 3x3; those of W1 and b1, a piece a program, are added up by `join`.
    taps      the gradient of W2, a row of the 3x3 a program.

Channels between the layers are a power of two, C >= f, with zeros beyond f: only pixels are ever outside. A channel
that is t everywhere is never written: for the 1x1 layers it is a bias, and for the 3x3 nine further terms (`rim`), one
for each tap that is inside of the image.

x, y, weights and all gradients are single precision. H1, h2, DH2 and the factors of products are of the dtype asked
for; sums are in single precision. See `_implicit_kernels.py` for TF32.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._implicit_kernels import _pieces, _precision

_found = find_spec("triton") is not None
tl: Any = import_module("triton.language") if _found else None
jit: Any = import_module("triton").jit if _found else (lambda kernel: kernel)


class Blocks(NamedTuple):
    """What one program computes: `rows` pixels, summed up in pieces of `inner`.

    Neighbouring taps read nearly the same pixels. Copies of 16 bytes that are under way while a program computes
    (`stages` > 1) come from the cache that all share; those of 8 bytes (`near`) stay in the one next to the program.
    """

    rows: int
    inner: int
    warps: int
    stages: int
    near: bool = False


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
        "taps": Blocks(0, 32, 4, 1),
    },
    "tf32x3": {
        "first": Blocks(64, 0, 4, 1),
        "second": Blocks(128, 32, 8, 2),
        "back": Blocks(32, 0, 8, 1),
        "front": Blocks(128, 32, 8, 2),
        "taps": Blocks(0, 32, 8, 2),
    },
}
_ARRANGE, _JOIN = Blocks(1024, 0, 4, 1), Blocks(0, 0, 4, 1)
_GROUPS = 32  # into how many sums the gradients of kernels that all samples share are gathered first


def width(size: int) -> int:
    """Channels as programs see them: a power of two."""
    return max(1 << (size - 1).bit_length(), 16)


def arrange(w2: Tensor, dtype: torch.dtype) -> Tensor:
    """Kernels (n, f, f, 3, 3) as (n, 9, C, C): tap, out, in, with zeros beyond f."""
    f, channels = w2.shape[1], width(w2.shape[1])
    if w2.stride()[2:] != (9, 3, 1):
        w2 = w2.contiguous()
    found = w2.new_empty(len(w2), 9, channels, channels, dtype=dtype)
    grid = (len(w2) * _pieces(9 * channels**2, _ARRANGE.rows),)
    _launch(_arrange, grid, (w2, found), (w2.stride(0), w2.stride(1), f, channels, _ARRANGE.rows), _ARRANGE)
    return found


def forward(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    kernels: Tensor,
    b2: Tensor,
    w3: Tensor,
    b3: Tensor,
    rim: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (batch, o, H, W), H1 (batch, H + 2, W + 2, C) and h2 (batch, H W, C), or nothing where it is not kept."""
    dtype, blocks, precision = _setting(kernels.dtype)
    (batch, c, height, wide), f, channels = x.shape, w1.shape[1], kernels.shape[-1]
    x, kernels = x.contiguous(), kernels.contiguous()
    w1, b1, b2, w3, b3 = map(_rows, (w1, b1, b2, w3, b3))
    laid = x.new_empty(batch, height + 2, wide + 2, channels, dtype=dtype)
    how = blocks["first"]
    grid = (batch * _pieces((height + 2) * (wide + 2), how.rows),)
    sizes = (w1.stride(0), b1.stride(0), c, f, height, wide, channels, width(c), how.rows, precision)
    _launch(_first, grid, (x, w1, b1, laid), sizes, how)

    y = x.new_empty(batch, w3.shape[1], height, wide)
    h2 = x.new_empty(batch if keep else 0, height * wide, channels, dtype=dtype)
    border = b2 if rim is None else _rows(rim)
    strides = (_step(kernels), b2.stride(0), w3.stride(0), b3.stride(0), border.stride(0))
    how = blocks["second"]
    grid = (batch * _pieces(height * wide, how.rows),)
    shape = (f, w3.shape[1], height, wide, channels, width(w3.shape[1]))
    sizes = (*strides, *shape, how.rows, min(how.inner, channels), _near(laid, how), keep, rim is not None, precision)
    _launch(_second, grid, (laid, kernels, b2, w3, b3, border, h2, y), sizes, how)
    return y, laid, h2


def back(
    grad: Tensor, w3: Tensor, h2: Tensor, height: int, wide: int, time: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """DH2, and the gradients of w3, b3, b2 and, with time, of the rim."""
    _, blocks, precision = _setting(h2.dtype)
    (batch, o, f), channels = w3.shape, h2.shape[-1]
    grad, h2, w3 = grad.float().contiguous(), h2.contiguous(), _rows(w3)
    slope = h2.new_empty(batch, height + 2, wide + 2, channels)
    w3_grad, b3_grad, b2_grad = grad.new_empty(batch, o, f), grad.new_empty(batch, o), grad.new_empty(batch, f)
    rim_grad = grad.new_empty(batch if time else 0, f, 9)
    how = blocks["back"]
    sizes = (w3.stride(0), f, o, height, wide, channels, width(o), how.rows, time, precision)
    _launch(_back, (batch,), (grad, w3, h2, slope, w3_grad, b3_grad, b2_grad, rim_grad), sizes, how)
    return slope, w3_grad, b3_grad, b2_grad, rim_grad


def front(slope: Tensor, laid: Tensor, kernels: Tensor, w1: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, w1 and b1."""
    _, blocks, precision = _setting(laid.dtype)
    (batch, c, height, wide), f, channels = x.shape, w1.shape[1], laid.shape[-1]
    slope, laid, kernels, x = (tensor.contiguous() for tensor in (slope, laid, kernels, x))
    w1, ins = _rows(w1), width(c + 1)
    how = blocks["front"]
    tiles = _pieces(height * wide, how.rows)
    x_grad, parts = x.new_empty(batch, c, height, wide), x.new_empty(batch, tiles, channels, ins)
    sizes = (_step(kernels), w1.stride(0), c, f, height, wide, channels, ins)
    sizes = (*sizes, how.rows, min(how.inner, channels), _near(laid, how), precision)
    _launch(_front, (batch * tiles,), (slope, laid, kernels, w1, x, x_grad, parts), sizes, how)
    w1_grad, b1_grad = x.new_empty(batch, f, c), x.new_empty(batch, f)
    _launch(_join, (batch,), (parts, w1_grad, b1_grad), (tiles, c, f, channels, ins), _JOIN)
    return x_grad, w1_grad, b1_grad


def taps(slope: Tensor, laid: Tensor, f: int, shared: bool) -> Tensor:
    """The gradient of w2, (batch, f, f, 3, 3), or (1, f, f, 3, 3) where all samples share it."""
    _, blocks, precision = _setting(laid.dtype)
    slope, laid, how = slope.contiguous(), laid.contiguous(), blocks["taps"]
    batch, height, wide, channels = laid.shape[0], laid.shape[1] - 2, laid.shape[2] - 2, laid.shape[-1]
    group, rows = _pieces(batch, _GROUPS) if shared else 1, min(channels, 64)
    groups = _pieces(batch, group)
    w2_grad = laid.new_empty(groups, f, f, 3, 3, dtype=torch.float32)
    grid = (groups * 3 * (channels // rows) ** 2,)
    sizes = (batch, group, f, height, wide, channels, rows, how.inner, _near(laid, how), precision)
    _launch(_taps, grid, (slope, laid, w2_grad), sizes, how)
    return w2_grad.sum(0, keepdim=True) if shared and groups > 1 else w2_grad


def _setting(dtype: torch.dtype) -> tuple[torch.dtype, dict[str, Blocks], str]:
    precision = _precision()
    return dtype, BLOCKS[precision if dtype == torch.float32 else "half"], precision


def _launch(
    kernel: Any, grid: tuple[int, ...], tensors: Sequence[Tensor], sizes: Sequence[Any], blocks: Blocks
) -> None:
    with torch.cuda.device_of(tensors[0]):
        kernel[grid](*tensors, *sizes, num_warps=blocks.warps, num_stages=blocks.stages)


def _rows(tensor: Tensor) -> Tensor:
    """Samples one after the other, or all in the same place; each without gaps."""
    return tensor if tensor[:1].is_contiguous() else tensor.contiguous()


def _near(tensor: Tensor, blocks: Blocks) -> int:
    """How many numbers are read at once, where that is not for the compiler to choose."""
    return 8 // tensor.element_size() if blocks.near else 0


def _step(tensor: Tensor) -> int:
    """From one sample to the next; 0 where all share the first."""
    return tensor.stride(0) if len(tensor) > 1 else 0


@jit
def _relu(x):
    """max(x, 0), where nan stays nan."""
    return tl.where(x <= 0.0, 0.0, x)


@jit
def _seen(i, j, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Which of the nine neighbours of pixels (i, j) are inside of the image: [pixels, 16]."""
    tap = tl.arange(0, 16)
    row = i[:, None] + (tap // 3 - 1)[None, :]
    column = j[:, None] + (tap % 3 - 1)[None, :]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & (tap < 9)[None, :]
    return tl.where(inside, 1.0, 0.0)


@jit
def _nine(
    laid,
    kernels,
    pixel,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    INNER: tl.constexpr,
    NEAR: tl.constexpr,
    TURNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The 3x3 convolution at some pixels, or the one that takes gradients back: [PIXELS, CHANNELS]."""
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
        if NEAR:
            moved = tl.max_contiguous(moved, NEAR)
        image = tl.load(laid + (place[:, None] + moved[None, :]), mask=live[:, None], other=0.0)
        if TURNED:
            kernel = tl.load(kernels + (s[:, None] * CHANNELS + ((8 - tap) * (CHANNELS * CHANNELS) + out)[None, :]))
        else:
            kernel = tl.load(kernels + (out[None, :] * CHANNELS + (tap * (CHANNELS * CHANNELS) + s)[:, None]))
        total = tl.dot(image, kernel, total, input_precision=PRECISION)
    return total


@jit
def _arrange(
    w2,
    found,
    SAMPLE: tl.constexpr,
    ROW: tl.constexpr,
    FILTERS: tl.constexpr,
    CHANNELS: tl.constexpr,
    NUMBERS: tl.constexpr,
) -> None:
    WHOLE: tl.constexpr = 9 * CHANNELS * CHANNELS
    BLOCKS: tl.constexpr = (WHOLE + NUMBERS - 1) // NUMBERS
    program = tl.program_id(0)
    sample = (program // BLOCKS).to(tl.int64)
    # One dimension, as the kernels lie in memory: read side by side, and written to nine places.
    number = (program % BLOCKS) * NUMBERS + tl.arange(0, NUMBERS)
    out, rest = number // (9 * CHANNELS), number % (9 * CHANNELS)
    known = (out < FILTERS) & (rest < 9 * FILTERS)
    value = tl.load(w2 + sample * SAMPLE + (out * ROW + rest), mask=known, other=0.0)
    target = found + sample * WHOLE + (rest % 9 * (CHANNELS * CHANNELS) + out * CHANNELS + rest // 9)
    tl.store(target, value.to(found.dtype.element_ty), mask=number < WHOLE)


@jit
def _first(
    x,
    w1,
    b1,
    laid,
    W1: tl.constexpr,
    B1: tl.constexpr,
    IN: tl.constexpr,
    FILTERS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    INS: tl.constexpr,
    PLACES: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
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
    # Pixels last, as they are in memory: the compiler cannot tell that these lie side by side.
    seen = (c < IN)[:, None] & inside[None, :]
    image = tl.load(x + (c[:, None] * (HEIGHT * WIDTH) + (i * WIDTH + j)[None, :]), mask=seen, other=0.0)
    known = (c < IN)[:, None] & (out < FILTERS)[None, :]
    kernel = tl.load(w1 + sample * W1 + (out[None, :] * IN + c[:, None]), mask=known, other=0.0)
    bias = tl.load(b1 + sample * B1 + out, mask=out < FILTERS, other=0.0)
    total = tl.zeros((PLACES, CHANNELS), dtype=tl.float32)
    dtype = laid.dtype.element_ty
    total = tl.dot(tl.trans(image.to(dtype)), kernel.to(dtype), total, input_precision=PRECISION)
    value = tl.where(inside[:, None], _relu(total + bias[None, :]), 0.0)
    tl.store(laid + (place[:, None] * CHANNELS + out[None, :]), value.to(dtype), mask=(place < PLANE)[:, None])


@jit
def _second(
    laid,
    kernels,
    b2,
    w3,
    b3,
    rim,
    h2,
    y,
    W2: tl.constexpr,
    B2: tl.constexpr,
    W3: tl.constexpr,
    B3: tl.constexpr,
    RIM: tl.constexpr,
    FILTERS: tl.constexpr,
    OUT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTS: tl.constexpr,
    PIXELS: tl.constexpr,
    INNER: tl.constexpr,
    NEAR: tl.constexpr,
    KEEP: tl.constexpr,
    TIME: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    PLANE: tl.constexpr = HEIGHT * WIDTH
    TILES: tl.constexpr = (PLANE + PIXELS - 1) // PIXELS
    program = tl.program_id(0)
    sample = (program // TILES).to(tl.int64)
    pixel = (program % TILES) * PIXELS + tl.arange(0, PIXELS)
    channel, o = tl.arange(0, CHANNELS), tl.arange(0, OUTS)
    dtype = laid.dtype.element_ty
    laid += sample * ((HEIGHT + 2) * (WIDTH + 2) * CHANNELS)
    total = _nine(laid, kernels + sample * W2, pixel, HEIGHT, WIDTH, CHANNELS, PIXELS, INNER, NEAR, False, PRECISION)
    if TIME:
        tap = tl.arange(0, 16)
        known = (tap < 9)[:, None] & (channel < FILTERS)[None, :]
        more = tl.load(rim + sample * RIM + (channel[None, :] * 9 + tap[:, None]), mask=known, other=0.0)
        seen = _seen(pixel // WIDTH, pixel % WIDTH, HEIGHT, WIDTH)
        total = tl.dot(seen.to(dtype), more.to(dtype), total, input_precision=PRECISION)
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
    grad,
    w3,
    h2,
    slope,
    w3_grad,
    b3_grad,
    b2_grad,
    rim_grad,
    W3: tl.constexpr,
    FILTERS: tl.constexpr,
    OUT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTS: tl.constexpr,
    PLACES: tl.constexpr,
    TIME: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    WIDE: tl.constexpr = WIDTH + 2
    PLANE: tl.constexpr = (HEIGHT + 2) * WIDE
    sample = tl.program_id(0).to(tl.int64)
    channel, o, tap = tl.arange(0, CHANNELS), tl.arange(0, OUTS), tl.arange(0, 16)
    dtype = h2.dtype.element_ty
    grad += sample * (OUT * HEIGHT * WIDTH)
    h2 += sample * (HEIGHT * WIDTH * CHANNELS)
    slope += sample * (PLANE * CHANNELS)
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
        some = (o < OUT)[:, None] & inside[None, :]
        above = tl.load(grad + (o[:, None] * (HEIGHT * WIDTH) + pixel[None, :]), mask=some, other=0.0)
        hidden = tl.load(h2 + (pixel[:, None] * CHANNELS + channel[None, :]), mask=inside[:, None], other=0.0)
        short = tl.trans(above.to(dtype))
        value = tl.zeros((PLACES, CHANNELS), dtype=tl.float32)
        value = tl.dot(short, kernel, value, input_precision=PRECISION)
        value = tl.where(hidden <= 0.0, 0.0, value).to(dtype)
        tl.store(slope + (place[:, None] * CHANNELS + channel[None, :]), value, mask=(place < PLANE)[:, None])
        of_w3 = tl.dot(tl.trans(hidden), short, of_w3, input_precision=PRECISION)
        seen = _seen(i, j, HEIGHT, WIDTH).to(dtype)
        of_taps = tl.dot(tl.trans(value), seen, of_taps, input_precision=PRECISION)
        of_b3 += tl.sum(above, axis=1)
    fits = (channel < FILTERS)[:, None]
    target = w3_grad + sample * (OUT * FILTERS) + (o[None, :] * FILTERS + channel[:, None])
    tl.store(target, of_w3, mask=fits & (o < OUT)[None, :])
    tl.store(b3_grad + sample * OUT + o, of_b3, mask=o < OUT)
    # A pixel inside of the image is its own neighbour in the middle.
    middle = tl.sum(tl.where((tap == 4)[None, :], of_taps, 0.0), axis=1)
    tl.store(b2_grad + sample * FILTERS + channel, middle, mask=channel < FILTERS)
    if TIME:
        target = rim_grad + sample * (FILTERS * 9) + (channel[:, None] * 9 + tap[None, :])
        tl.store(target, of_taps, mask=fits & (tap < 9)[None, :])


@jit
def _front(
    slope,
    laid,
    kernels,
    w1,
    x,
    x_grad,
    parts,
    W2: tl.constexpr,
    W1: tl.constexpr,
    IN: tl.constexpr,
    FILTERS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    INS: tl.constexpr,
    PIXELS: tl.constexpr,
    INNER: tl.constexpr,
    NEAR: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
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
    total = _nine(slope, kernels + sample * W2, pixel, HEIGHT, WIDTH, CHANNELS, PIXELS, INNER, NEAR, True, PRECISION)
    live = (pixel < PLANE)[:, None]
    place = (pixel // WIDTH + 1) * WIDE + pixel % WIDTH + 1
    hidden = tl.load(laid + (place[:, None] * CHANNELS + channel[None, :]), mask=live, other=0.0)
    value = tl.where(hidden <= 0.0, 0.0, total).to(dtype)

    known = (channel < FILTERS)[:, None] & (c < IN)[None, :]
    kernel = tl.load(w1 + sample * W1 + (channel[:, None] * IN + c[None, :]), mask=known, other=0.0)
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
    parts,
    w1_grad,
    b1_grad,
    TILES: tl.constexpr,
    IN: tl.constexpr,
    FILTERS: tl.constexpr,
    CHANNELS: tl.constexpr,
    INS: tl.constexpr,
) -> None:
    sample = tl.program_id(0).to(tl.int64)
    channel, c = tl.arange(0, CHANNELS), tl.arange(0, INS)
    parts += sample * (TILES * CHANNELS * INS)
    total = tl.zeros((CHANNELS, INS), dtype=tl.float32)
    for tile in range(0, TILES):
        total += tl.load(parts + (tile * (CHANNELS * INS) + channel[:, None] * INS + c[None, :]))
    fits = channel < FILTERS
    target = w1_grad + sample * (FILTERS * IN) + (channel[:, None] * IN + c[None, :])
    tl.store(target, total, mask=fits[:, None] & (c < IN)[None, :])
    bias = tl.sum(tl.where((c == IN)[None, :], total, 0.0), axis=1)
    tl.store(b1_grad + sample * FILTERS + channel, bias, mask=fits)


@jit
def _taps(
    slope,
    laid,
    w2_grad,
    batch,
    GROUP: tl.constexpr,
    FILTERS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    NEAR: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    WIDE: tl.constexpr = WIDTH + 2
    PLANE: tl.constexpr = (HEIGHT + 2) * WIDE * CHANNELS
    STEPS: tl.constexpr = (HEIGHT * WIDTH + INNER - 1) // INNER
    SIDE: tl.constexpr = CHANNELS // ROWS
    program = tl.program_id(0)
    group, block = program // (3 * SIDE * SIDE), program % (3 * SIDE * SIDE)
    down = block % 3
    out = (block // 3) % SIDE * ROWS + tl.arange(0, ROWS)
    term = (block // 3) // SIDE * ROWS + tl.arange(0, ROWS)
    if NEAR:
        term = tl.max_contiguous(term, NEAR)
    left = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    middle = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    right = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for step in range(0, GROUP * STEPS):
        sample = group * GROUP + step // STEPS
        pixel = (step % STEPS) * INNER + tl.arange(0, INNER)
        live = pixel < tl.where(sample < batch, HEIGHT * WIDTH, 0)
        place = (pixel // WIDTH * WIDE + pixel % WIDTH) * CHANNELS
        start = sample.to(tl.int64) * PLANE
        here = (place + (WIDE + 1) * CHANNELS)[None, :] + out[:, None]
        above = tl.load(slope + start + here, mask=live[None, :], other=0.0)
        there = (place + down * (WIDE * CHANNELS))[:, None] + term[None, :]
        first = tl.load(laid + start + there, mask=live[:, None], other=0.0)
        second = tl.load(laid + start + CHANNELS + there, mask=live[:, None], other=0.0)
        third = tl.load(laid + start + 2 * CHANNELS + there, mask=live[:, None], other=0.0)
        left = tl.dot(above, first, left, input_precision=PRECISION)
        middle = tl.dot(above, second, middle, input_precision=PRECISION)
        right = tl.dot(above, third, right, input_precision=PRECISION)
    kept = (out < FILTERS)[:, None] & (term < FILTERS)[None, :]
    target = w2_grad + group.to(tl.int64) * (FILTERS * FILTERS * 9)
    target += (out[:, None] * FILTERS + term[None, :]) * 9 + down * 3
    tl.store(target, left, mask=kept)
    tl.store(target + 1, middle, mask=kept)
    tl.store(target + 2, right, mask=kept)
