"""The precision of 32-bit products on CUDA."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def tf32(enabled: bool, *, matmul: bool = False, autotune: bool | None = None) -> Iterator[None]:
    """Allow or forbid TF32 within a `with` block, and restore the previous state afterwards.

    TF32 rounds the factors of a float32 product to 10 bits; tensor cores then take a fraction of the time. PyTorch
    allows it for convolutions by default, and forbids it for matrix products.

    Args:
        enabled: Whether cuDNN may use TF32 in convolutions.
        matmul: Apply the choice to matrix products too. Default: leave them as they are.
        autotune: Whether cuDNN times its convolutions once and takes the fastest, which pays off if all batches have
            one size. Default: leave it as it is.

    >>> import torch
    >>> from ncode_lab.precision import tf32
    >>> with tf32(False):
    ...     torch.backends.cudnn.allow_tf32
    False
    >>> torch.backends.cudnn.allow_tf32
    True
    """
    # The older switches, since the library reads them: they raise once the newer ones (`fp32_precision`) disagree.
    cudnn = torch.backends.cudnn
    convolutions, benchmark, products = cudnn.allow_tf32, cudnn.benchmark, torch.get_float32_matmul_precision()
    cudnn.allow_tf32 = enabled
    cudnn.benchmark = benchmark if autotune is None else autotune
    if matmul:
        torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = convolutions, benchmark
        if matmul:
            torch.set_float32_matmul_precision(products)
