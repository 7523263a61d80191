"""Which formulation of per-sample convolutions is fastest here? The workload: 1x1, relu, 3x3, relu, 1x1 on images.

First one evaluation of the block, forward alone and with its backward, by every formulation; on CUDA in float32 and
with TF32, each also as a CUDA graph, which leaves out what launching costs. Then, on CUDA, the two kernels of
"implicit" alone, by the sizes of their blocks.

What lost clearly on an H200 and is no longer here, in milliseconds of the same evaluation as a CUDA graph in float32,
where "implicit" took 0.99: three products of copies shifted along rows 1.33, nine products of shifted slices 2.08,
torch's unfold 1.99, channels last 1.59, grouped with the gradient of w unfolded 1.96.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ncode.dynamics._convolution import FORMULATIONS, sample_conv2d, triton_available

from .probe import arguments, headline, probe, seconds, write

Convolution = Callable[[Tensor, Tensor], Tensor]
# Pixels (or channels), how many terms at once, warps and stages.
CONVOLVE = ((64, 32, 4, 3), (128, 32, 4, 3), (128, 32, 8, 3), (128, 32, 4, 4), (128, 16, 4, 4), (256, 32, 8, 3))
CORRELATE = ((64, 32, 4, 3), (64, 32, 4, 4), (64, 32, 8, 3), (64, 64, 4, 3), (64, 64, 8, 3), (64, 16, 4, 4))


def block(convolve: Convolution, x: Tensor, kernels: list[Tensor]) -> Tensor:
    """One evaluation of the dynamics."""
    return convolve(F.relu(convolve(F.relu(convolve(x, kernels[0])), kernels[1])), kernels[2])


def candidates(x: Tensor) -> dict[str, Convolution]:
    """All formulations."""
    names = [name for name in FORMULATIONS[1:] if name != "implicit" or triton_available(x)]
    ours = {name: lambda x, w, name=name: sample_conv2d(x, w, name) for name in names}
    products = "grouped, 1x1 as products"
    return {**ours, products: lambda x, w: sample_conv2d(x, w, "grouped" if w.shape[-1] > 1 else "unfolded")}


def measure(
    name: str, convolve: Convolution, x: Tensor, kernels: list[Tensor], expected: Any, options: Any
) -> dict[str, Any]:
    """One evaluation with its backward, to x and to all kernels."""

    def forward() -> Tensor:
        return block(convolve, x, kernels)

    def run() -> list[Tensor]:
        y = forward()
        return [y, *torch.autograd.grad(y.float().square().mean(), [x, *kernels])]

    return probe(name, forward, run, expected, options)


def kernel_blocks(x: Tensor, w: Tensor, options: Any) -> list[dict[str, Any]]:
    """The two kernels of "implicit" on the 3x3 alone, by the sizes of their blocks: milliseconds."""
    from ncode.dynamics._convolution_kernels import Blocks, convolve, correlate

    works = {
        "convolve": (CONVOLVE, lambda *how: convolve(x, w, *how)),
        "correlate": (CORRELATE, lambda *how: correlate(x, x, w.shape[-1], *how)),
    }
    rows = []
    print(f"\n3x3 alone, x {tuple(x.shape)}: milliseconds", flush=True)
    for name, (sizes, work) in works.items():
        for precision in ("tf32", "tf32x3"):
            for blocks in sizes:
                row = {"name": name, "precision": precision, "blocks": blocks}
                try:
                    row["ms"] = 1e3 * seconds(lambda: work(Blocks(*blocks), precision), options.device, 0.05)  # noqa: B023
                except Exception as error:  # too large for the device, say
                    row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                found = f"{row['ms']:9.3f}" if "ms" in row else row["failed"]
                print(f"{name:<10} {precision:<7} {blocks!s:<24} {found}", flush=True)
                rows.append(row)
    return rows


def draw(options: Any) -> tuple[Tensor, list[Tensor]]:
    """x and the three kernels."""
    batch, filters = (4, 10) if options.quick else (128, 50) if options.device == "cuda" else (8, 50)
    torch.manual_seed(0)
    shapes = [(filters, 13, 1, 1), (filters, filters, 3, 3), (13, filters, 1, 1)]
    x = torch.randn(batch, 13, 32, 32, device=options.device, requires_grad=True)
    kernels = [
        torch.randn(batch, *shape, device=options.device) / (shape[1] * shape[2] ** 2) ** 0.5 for shape in shapes
    ]
    return x, [kernel.requires_grad_() for kernel in kernels]


def evaluations(x: Tensor, kernels: list[Tensor], options: Any) -> list[dict[str, Any]]:
    """All formulations in float32, then with TF32 where the device has it."""
    precise = [tensor.detach().double().requires_grad_() for tensor in (x, *kernels)]
    y = block(lambda x, w: sample_conv2d(x, w, "unfolded"), precise[0], precise[1:])
    expected = [y.detach(), *torch.autograd.grad(y.square().mean(), precise)]
    rows = []
    torch.backends.cudnn.benchmark = True
    for setting in ["float32"] + (["tf32"] if options.device == "cuda" else []):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setting == "tf32"
        headline(f"one evaluation, batch {len(x)}, 13 x 32 x 32, k = {kernels[1].shape[1]}, {setting}: milliseconds")
        for name, convolve in candidates(x).items():
            rows.append({**measure(name, convolve, x, kernels, expected, options), "setting": setting})
    return rows


def main() -> None:
    """Evaluations, then kernels alone."""
    options = arguments(__doc__ or "")
    options.budget = 0.05 if options.quick else 0.2
    x, kernels = draw(options)
    rows = evaluations(x, kernels, options)
    write(rows, options)
    if triton_available(x):
        hidden = torch.randn(len(x), kernels[1].shape[2], 32, 32, device=options.device)
        rows += kernel_blocks(hidden, kernels[1].detach(), options)
    write(rows, options)


if __name__ == "__main__":
    main()
