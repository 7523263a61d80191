"""Which formulation of per-sample convolutions is fastest here? The workload: 1x1, relu, 3x3, relu, 1x1 on images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ncode.dynamics._convolution import FORMULATIONS, sample_conv2d

from .probe import arguments, headline, probe, write

Convolution = Callable[[Tensor, Tensor], Tensor]


def padded(x: Tensor, w: Tensor, multiple: int) -> Tensor:
    """Grouped, with channels filled up to a multiple, for kernels that like round numbers."""
    _, o, c = w.shape[:3]
    filled = F.pad(w, (0, 0, 0, 0, 0, -c % multiple, 0, -o % multiple))
    return sample_conv2d(F.pad(x, (0, 0, 0, 0, 0, -c % multiple)), filled, "grouped")[:, :o]


def channels_last(x: Tensor, w: Tensor) -> Tensor:
    """Grouped, with the image in channels_last."""
    image = x.flatten(0, 1)[None].contiguous(memory_format=torch.channels_last)
    kernels = w.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return F.conv2d(image, kernels, padding=w.shape[-1] // 2, groups=len(x))[0].unflatten(0, (len(x), -1))


def pixels_first(x: Tensor, w: Tensor) -> Tensor:
    """Unfolded, with a pixel's channels side by side: (H W, k k c) (k k c, o), for x (batch, H, W, c)."""
    k = w.shape[-1]
    r = k // 2
    windows = F.pad(x, (0, 0, r, r, r, r)).unfold(1, k, 1).unfold(2, k, 1)
    flat = windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)
    return torch.bmm(flat, w.permute(0, 3, 4, 2, 1).flatten(1, 3)).unflatten(1, x.shape[1:3])


def torch_unfold(x: Tensor, w: Tensor) -> Tensor:
    """Unfolded by torch's own function."""
    k = w.shape[-1]
    return torch.bmm(w.flatten(2), F.unfold(x, k, padding=k // 2)).unflatten(2, x.shape[2:])


def block(convolve: Convolution, x: Tensor, kernels: list[Tensor]) -> Tensor:
    """One evaluation of the dynamics."""
    return convolve(F.relu(convolve(F.relu(convolve(x, kernels[0])), kernels[1])), kernels[2])


def candidates() -> dict[str, Convolution]:
    """All formulations, ours and others."""
    ours = {name: lambda x, w, name=name: sample_conv2d(x, w, name) for name in FORMULATIONS[1:]}
    small = {
        f"{name}, 1x1 grouped": lambda x, w, name=name: sample_conv2d(x, w, "grouped" if w.shape[-1] == 1 else name)
        for name in FORMULATIONS[2:]
    }
    others = {
        "grouped, 1x1 as products": lambda x, w: sample_conv2d(x, w, "grouped" if w.shape[-1] > 1 else "unfolded"),
        "grouped, channels in multiples of 8": lambda x, w: padded(x, w, 8),
        "grouped, channels in multiples of 16": lambda x, w: padded(x, w, 16),
        "grouped, channels_last": channels_last,
        "torch's unfold": torch_unfold,
        "pixels first": pixels_first,
    }
    return {**ours, **small, **others}


def measure(
    name: str, convolve: Convolution, x: Tensor, kernels: list[Tensor], expected: Any, options: Any
) -> dict[str, Any]:
    """One evaluation with its backward, to x and to all kernels."""
    if convolve is pixels_first:
        x = x.detach().permute(0, 2, 3, 1).contiguous().requires_grad_()

    def forward() -> Tensor:
        return block(convolve, x, kernels)

    def run() -> list[Tensor]:
        y = forward()
        y_first = y.permute(0, 3, 1, 2) if convolve is pixels_first else y
        grads = torch.autograd.grad(y_first.float().square().mean(), [x, *kernels])
        x_grad = grads[0].permute(0, 3, 1, 2) if convolve is pixels_first else grads[0]
        return [y_first, x_grad, *grads[1:]]

    return probe(name, forward, run, expected, options)


def main() -> None:
    """Float32, then TF32 and bfloat16 where the device has them."""
    options = arguments(__doc__ or "")
    batch, filters = (4, 10) if options.quick else (128, 50) if options.device == "cuda" else (16, 50)
    torch.manual_seed(0)
    shapes = [(filters, 13, 1, 1), (filters, filters, 3, 3), (13, filters, 1, 1)]
    x = torch.randn(batch, 13, 32, 32, device=options.device, requires_grad=True)
    kernels = [
        (torch.randn(batch, *shape, device=options.device) / (shape[1] * shape[2] ** 2) ** 0.5).requires_grad_()
        for shape in shapes
    ]
    precise = [tensor.detach().double().requires_grad_() for tensor in (x, *kernels)]
    y = block(lambda x, w: sample_conv2d(x, w, "unfolded"), precise[0], precise[1:])
    expected = [y.detach(), *torch.autograd.grad(y.square().mean(), precise)]

    rows = []
    settings = ["float32"] + (["tf32", "cudnn.benchmark", "tf32 + cudnn.benchmark"] if options.device == "cuda" else [])
    for setting in settings:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in setting
        torch.backends.cudnn.benchmark = "benchmark" in setting
        headline(f"one evaluation, batch {batch}, 13 x 32 x 32, k = {filters}, {setting}: milliseconds")
        for name, convolve in candidates().items():
            row = measure(name, convolve, x, kernels, expected, options)
            rows.append({**row, "setting": setting})
    torch.backends.cudnn.benchmark = False
    headline(f"the same in bfloat16 autocast, batch {batch}")
    for name, convolve in candidates().items():

        def cast(x: Tensor, w: Tensor, convolve: Convolution = convolve) -> Tensor:
            with torch.autocast(options.device, dtype=torch.bfloat16):
                return convolve(x, w)

        if convolve is not pixels_first:
            rows.append({**measure(name, cast, x, kernels, expected, options), "setting": "bfloat16"})
    write(rows, options)


if __name__ == "__main__":
    main()
