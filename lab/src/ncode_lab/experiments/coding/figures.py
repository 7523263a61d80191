"""Names of autoencoders in figures, and figures per data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...training import Result
from ..base import Picture
from ..common import file_name

TITLES = {
    "auton-code": "AutoN-CODE",
    "ae": "AE",
    "ae-wide": "AE, twice the size",
    "vae": "VAE",
    "sparse": "sparse AE",
    "denoising": "denoising AE",
    "pixels": "pixels",
}


def title(model: str) -> str:
    """The display name of a model."""
    return TITLES.get(model, model)


def draw_per_dataset(results: Sequence[Result], draw: Callable[[list[Result]], list[Picture]]) -> list[Picture]:
    """Draw the results of each data set, with its name in the file names and captions."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.dataset, []).append(result)
    return [
        picture._replace(name=f"{picture.name}-{file_name(name)}", caption=f"{name}: {picture.caption}")
        for name, some in found.items()
        for picture in draw(some)
    ]
