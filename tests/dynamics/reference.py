import torch
from torch.nn import functional as F


def one_by_one(x, w):
    """Each sample convolved with its own kernel, by torch's own convolution."""
    return torch.cat([F.conv2d(x[b : b + 1], w[b], padding=w.shape[-1] // 2) for b in range(len(x))])
