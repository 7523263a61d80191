import torch


def pictures(n, seed=0, top=256):
    """n random images of bytes below `top`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(top, (n, 3, 6, 5), generator=generator, dtype=torch.uint8)
