"""The experiments of the paper: one folder each, with its settings, models, training and figures."""

from __future__ import annotations

from importlib import import_module

from ncode.checks import check_choice

from .base import PRESETS, Experiment, Finished, Picture
from .runner import run

__all__ = ["EXPERIMENTS", "PRESETS", "Experiment", "Finished", "Picture", "find", "run"]

# An experiment is imported when it is needed: some depend on optional packages that others do not.
_CLASSES = {
    "reflection": "Reflection",
    "annuli": "Annuli",
    "vanderpol": "VanDerPol",
    "memory": "Memory",
    "classification": "Classification",
    "autoencode": "Autoencode",
    "generate": "Generate",
    "cluster": "Cluster",
    "interpolate": "Interpolate",
}
EXPERIMENTS = tuple(_CLASSES)


def find(name: str) -> type[Experiment]:
    """The experiment of that name. The error for a misspelt name suggests the nearest one.

    >>> find("reflection").line
    'x -> -x on the line, which no NODE can learn (figure 3)'
    """
    check_choice("experiment", name, EXPERIMENTS)
    return getattr(import_module(f".{name}.experiment", __package__), _CLASSES[name])
