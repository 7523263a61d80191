"""The experiments: settings, models, training and figures; `coding` has all autoencoders."""

from __future__ import annotations

from importlib import import_module

from ncode.errors import check_choice

from .base import PRESETS, Experiment, Finished, Picture
from .runner import run

__all__ = ["EXPERIMENTS", "PRESETS", "Experiment", "Finished", "Picture", "find", "run"]

# An experiment is imported when it is needed: some depend on optional packages that others do not.
_CLASSES = {
    "reflection": "reflection.experiment:Reflection",
    "annuli": "annuli.experiment:Annuli",
    "vanderpol": "vanderpol.experiment:VanDerPol",
    "memory": "memory.experiment:Memory",
    "tracking": "tracking.experiment:Tracking",
    "classification": "classification.experiment:Classification",
    "autoencode": "coding.autoencode:Autoencode",
    "generate": "coding.generate:Generate",
    "cluster": "coding.cluster:Cluster",
    "interpolate": "coding.interpolate:Interpolate",
}
EXPERIMENTS = tuple(_CLASSES)


def find(name: str) -> type[Experiment]:
    """The experiment of that name. The error for a misspelt name suggests the nearest one.

    >>> find("reflection").line
    'x -> -x on the line, which no NODE can learn (figure 4)'
    """
    module, _, kind = _CLASSES[check_choice("experiment", name, EXPERIMENTS)].partition(":")
    return getattr(import_module(f".{module}", __package__), kind)
