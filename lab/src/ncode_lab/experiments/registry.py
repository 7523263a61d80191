"""The experiments by name."""

from __future__ import annotations

from importlib import import_module

from ncode.checks import check_choice

from .base import Experiment

# Where each lives. They are imported when they are asked for: some need extras that others do not.
_PLACES = {
    "reflection": "reflection.Reflection",
    "annuli": "annuli.Annuli",
    "vanderpol": "vanderpol.VanDerPol",
    "memory": "memory.Memory",
    "classification": "classification.Classification",
    "autoencode": "autoencode.Autoencode",
    "generate": "generate.Generate",
    "cluster": "cluster.Cluster",
    "interpolate": "interpolate.Interpolate",
}
EXPERIMENTS = tuple(_PLACES)


def find(name: str) -> type[Experiment]:
    """The experiment of that name; a misspelt one gets the nearest right one.

    >>> find("reflection").line
    'x -> -x on the line, which no NODE can learn (figure 3)'
    """
    module, _, kind = _PLACES[check_choice("experiment", name, EXPERIMENTS)].partition(".")
    return getattr(import_module(f".{module}", __package__), kind)
