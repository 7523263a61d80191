"""Per-sample convolutions: 1x1, 3x3, 1x1 on images, every sample with kernels and biases of its own.

Our rows take `ConvBlock` as it is; peers take what their users can write, and `torchdiffeq + ncode` shows what is left
of the difference when torchdiffeq is given our `ConvBlock`.

**The floor.** For x (batch, c, H, W) and k filters, one evaluation has

    N = batch H W (c k + 9 k^2 + k c)   multiply-adds, so 2 N operations forward and 4 N backward,
    K = 4 batch (c k + 9 k^2 + k c)     bytes of kernels, read forward, read again and their gradient written backward,
    A = 4 batch H W (2 c + 2 k)         bytes of x, both hidden layers and the result: each touched once forward, and
                                        each with its gradient once backward.

An evaluation with its backward takes at least max(6 N / flops, 3 (K + A) / bandwidth), with both rates measured on the
same machine (`roofline.py`), and a training step as many of those as the solve has evaluations. Nothing is counted for
the solver's own sums, nor for evaluations that are made again during backward. The remark below the table gives the
floor at float32's rate and, on CUDA, at TF32's, which says what tensor cores would allow.

**TF32.** On CUDA two more rows let convolutions use TF32, which is torch's default
(`torch.backends.cudnn.allow_tf32`); products of matrices stay in float32 for both. They are compared with each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ncode.dynamics import ConvBlock

from ..contest import Aim, Contest, Entry, Runner, Settings
from ..flow import Flow, compete, enter
from ..measure import Row
from ..roofline import machine

TITLE = "Per-sample convolutions: x (128, 13, 32, 32), 50 filters, 1x1, 3x3, 1x1 (a CPU: batch 4)"
TF32 = "TF32 convolutions"
AIMS = (
    *(Aim("", "torchdiffeq", 0.25, device) for device in ("cpu", "cuda")),
    *(Aim("", "torchdiffeq", 0.1, device, row="as the paper writes it") for device in ("cpu", "cuda")),
    *(Aim("", "diffrax", 1.0, device) for device in ("cpu", "cuda")),
    Aim("", "torchdiffeq", 0.25, "cuda", apart=TF32),
)
NAMES = tuple(f"{kernel}{part}" for kernel in ("conv_in", "conv_3x3", "conv_out") for part in ("", "_bias"))
CHANNELS = 13


def contest(settings: Settings) -> Contest:
    """Everyone on the same problem."""
    side, filters = (8, 10) if settings.quick else (32, 50)
    batch = 2 if settings.quick else 128 if settings.device == "cuda" else 4
    x0, theta = draw(batch, side, filters, settings.seed)
    flow = Flow(
        x0,
        theta,
        TORCH,
        JAX,
        generic=("eager", "eager, one step size", "compiled, one step size"),  # samples are alike here
        our_fields={"ConvBlock": our_field(filters)},
        adjoints=("checkpointed",),
        # relu has kinks, at which no method keeps its order: tighter would only be slower.
        tight={"rtol": 1e-6, "atol": 1e-8},
        reference_device=settings.device,
    )
    flops = 2 * batch * side**2 * filters * (2 * CHANNELS + 9 * filters)
    moved = 4 * batch * (filters * (2 * CHANNELS + 9 * filters) + side**2 * 2 * (CHANNELS + filters))
    remark = functools.partial(distance, settings=settings, flops=3 * flops, moved=3 * moved)
    found = compete(flow, settings, AIMS, remark=remark)
    if settings.device != "cuda":
        return found
    # A field of its own: a compiled graph keeps the precision that it was recorded with.
    coarse = dataclasses.replace(
        flow, our_fields={"ConvBlock": our_field(filters)}, torch_fields=dict(reversed(TORCH.items()))
    )
    return dataclasses.replace(found, entries=[*found.entries, *with_tf32(coarse, settings)])


def with_tf32(flow: Flow, settings: Settings) -> list[Entry]:
    """The fastest of our rows and of torchdiffeq's once more, with TF32 for convolutions."""
    peers = [peer for peer in ("torchdiffeq",) if settings.peers is None or peer in settings.peers]
    ours = ("ncode", f"{'compiled' if settings.compile else 'eager'}, one step size")
    return [
        Entry(entry.library, f"{entry.label}, {TF32}", {name: _coarse(it) for name, it in entry.variants.items()}, TF32)
        for entry in enter(flow, dataclasses.replace(settings, peers=peers))[0]
        if (entry.library, entry.label) in (ours, ("torchdiffeq", "backprop"))
    ]


def _coarse(build: Callable[[], Runner]) -> Callable[[], Runner]:
    def built() -> Runner:
        runner = build()
        run, nfe, memory = (tf32()(work) for work in (runner.run, runner.nfe, runner.memory))
        return Runner(run, runner.read, nfe, memory)

    return built


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Lets cuDNN, and whoever follows its switch, use TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def distance(row: Row, settings: Settings, flops: float, moved: float) -> str:
    """How far a row is from the floor."""
    if row.nfe is None:
        return ""
    roof = machine(settings.device, settings.quick)
    rates = {"float32": False} | ({"TF32": True} if roof.tf32 is not None else {})
    parts = []
    for name, tf32 in rates.items():
        floor = row.nfe.forward * roof.seconds(moved, flops, tf32=tf32)
        parts.append(f"{floor * 1e3:.2f} ms in {name} (we take {row.seconds / floor:.1f} times that)")
    return (
        f"the floor for {row.nfe.forward:.1f} evaluations is {', '.join(parts)};"
        f" measured {roof.bytes / 1e9:.0f} GB/s, {roof.flops / 1e12:.2f} TFLOP/s"
        + ("" if roof.tf32 is None else f", {roof.tf32 / 1e12:.0f} with TF32")
    )


def draw(batch: int, side: int, filters: int, seed: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Images of white noise; kernels as an open loop sets them at first: the usual size, a tenth a sample's own."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def kernel(o: int, c: int, k: int) -> list[Tensor]:
        both = normal(1, o, c, k, k) + 0.1 * normal(batch, o, c, k, k)
        return [both / (3 * c * k * k) ** 0.5, 0.1 * normal(batch, o)]

    x0 = normal(batch, CHANNELS, side, side)
    return x0, (*kernel(filters, CHANNELS, 1), *kernel(filters, filters, 3), *kernel(CHANNELS, filters, 1))


def our_field(filters: int) -> Any:
    """`ConvBlock`, all its tensors controlled."""
    block = ConvBlock(CHANNELS, filters, controlled=NAMES)

    def f(t: Tensor, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
        return block(t, x, dict(zip(NAMES, theta, strict=True)))

    return f


def _product(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    windows = x.flatten(2) if w.shape[-1] == 1 else F.unfold(x, w.shape[-1], padding=w.shape[-1] // 2)
    return torch.baddbmm(b[..., None], w.flatten(2), windows).unflatten(2, x.shape[2:])


def _grouped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    image, kernel = x.reshape(1, -1, *x.shape[2:]), w.flatten(0, 1)
    y = F.conv2d(image, kernel, b.flatten(), padding=w.shape[-1] // 2, groups=len(x))
    return y.view(len(x), -1, *x.shape[2:])


def _mixed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return _product(x, w, b) if w.shape[-1] == 1 else _grouped(x, w, b)


def _field(convolve: Any) -> Any:
    def f(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
        w1, b1, w2, b2, w3, b3 = theta
        return convolve(F.relu(convolve(F.relu(convolve(x, w1, b1)), w2, b2)), w3, b3)

    return f


def _product_jax(x: Any, w: Any, b: Any) -> Any:
    import jax.numpy as jnp

    k, (height, width) = w.shape[-1], x.shape[1:]
    padded = jnp.pad(x, ((0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    shifts = [padded[:, p : p + height, q : q + width] for p in range(k) for q in range(k)]
    return jnp.einsum("ocs,schw->ohw", w.reshape(*w.shape[:2], -1), jnp.stack(shifts)) + b[:, None, None]


def _conv_jax(x: Any, w: Any, b: Any) -> Any:
    from jax import lax

    return lax.conv_general_dilated(x[None], w, (1, 1), "SAME")[0] + b[:, None, None]


def _field_jax(convolve: Any) -> Any:
    def f(t: Any, x: Any, theta: Any) -> Any:
        import jax

        w1, b1, w2, b2, w3, b3 = theta
        return convolve(jax.nn.relu(convolve(jax.nn.relu(convolve(x, w1, b1)), w2, b2)), w3, b3)

    return f


TORCH = {"products": _field(_product), "grouped": _field(_grouped), "1x1 as products, 3x3 grouped": _field(_mixed)}
JAX = {"products": _field_jax(_product_jax), "conv": _field_jax(_conv_jax)}
