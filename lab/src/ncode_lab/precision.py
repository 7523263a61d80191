"""The precision of 32-bit products on CUDA."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def tf32(enabled: bool, *, matmul: bool = False) -> Iterator[None]:
    """Allow or forbid TF32 within a `with` block, and restore the previous state afterwards.

    TF32 rounds the factors of a float32 product to 10 bits; tensor cores then take a fraction of the time. PyTorch
    allows it for convolutions by default, and forbids it for matrix products.

    Args:
        enabled: Whether cuDNN may use TF32 in convolutions.
        matmul: Apply the choice to matrix products too. Default: leave them as they are.

    >>> import torch
    >>> from ncode_lab.precision import tf32
    >>> with tf32(False):
    ...     torch.backends.cudnn.allow_tf32
    False
    >>> torch.backends.cudnn.allow_tf32
    True
    """
    # The older switches, since the library reads them: they raise once the newer ones (`fp32_precision`) disagree.
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = enabled
    if matmul:
        torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        if matmul:
            torch.set_float32_matmul_precision(products)
