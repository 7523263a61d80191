"""How autoencoders look in figures."""

from __future__ import annotations

COLOURS = {
    "auton-code": "#0072B2",
    "ae": "#E69F00",
    "ae-wide": "#8C564B",
    "vae": "#009E73",
    "sparse": "#CC79A7",
    "denoising": "#7f7f7f",
}
TITLES = {
    "auton-code": "AutoN-CODE",
    "ae": "AE",
    "ae-wide": "AE, twice the size",
    "vae": "VAE",
    "sparse": "sparse AE",
    "denoising": "denoising AE",
    "pixels": "pixels",
}


def colour(model: str) -> str:
    """The colour of a model, the same in all figures of autoencoders.

    >>> colour("auton-code")
    '#0072B2'
    """
    return COLOURS.get(model, "black")


def title(model: str) -> str:
    """The name of a model for a reader.

    >>> title("auton-code"), title("pixels")
    ('AutoN-CODE', 'pixels')
    """
    return TITLES.get(model, model)
