"""What each script of the gallery starts from."""

from typing import Any


def reset(gallery_conf: dict[str, Any], fname: str) -> None:
    """Draw the same random numbers in each build; tensors are small, and slower on several threads."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
