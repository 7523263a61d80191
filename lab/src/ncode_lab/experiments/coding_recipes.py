"""What each preset says of the training of autoencoders. What 0 and -1 stand for is told by `Coding` and `Plan`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

SMOKE: dict[str, Any] = {
    "dataset": "mnist",
    "fallback": True,
    "width": 0.1,
    "images": 256,
    "test_images": 60,
    "epochs": 1,
}
QUICK: dict[str, Any] = {
    "dataset": "mnist",
    "fallback": True,
    "images": 20_000,
    "test_images": 2500,
    "epochs": 6,
    "schedule": "cosine",
}
# Whatever is set here holds for all models of autoencode, generate, cluster and interpolate, and is in no label.
PAPER: dict[str, Any] = {
    "flips": True,
    "shift": -1,
    "still": 0.5,
    "schedule": "cosine",
    "batch": 128,
    "texture": 1.0,
    "code_noise": -1.0,
}


def told(values: Mapping[str, Any], presets: Collection[Mapping[str, Any]], names: Collection[str]) -> list[str]:
    """The settings of these names that are not those of the preset that comes nearest to all of them, in words.

    >>> told({"gain": 3.0, "flips": False, "lr": 1.0}, [{"gain": 1.0, "flips": True, "lr": 1.0}], ("gain", "flips"))
    ['gain 3', 'no flips']
    """
    nearest = min(presets, key=lambda preset: sum(values[name] != preset[name] for name in values))
    return [_say(name.replace("_", " "), values[name]) for name in names if values[name] != nearest[name]]


def _say(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
