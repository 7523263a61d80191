"""The experiments of the paper: settings that know how to run themselves."""

from .base import PRESETS, Experiment, Finished, Picture
from .registry import EXPERIMENTS, find
from .runner import run

__all__ = ["EXPERIMENTS", "PRESETS", "Experiment", "Finished", "Picture", "find", "run"]
