"""Options of an experiment as a command line: every field of its settings, and how to run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import tyro

from ncode import InputError

from ..experiments import PRESETS, Experiment
from ..training import RunOptions

E = TypeVar("E", bound=Experiment)


@dataclass(frozen=True)
class Preset:
    """Where the settings begin; one of the three."""

    smoke: tyro.conf.FlagCreatePairsOff[bool] = False
    """Seconds: does it run?"""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """About a minute on two cores. Taken unless told otherwise."""
    paper: tyro.conf.FlagCreatePairsOff[bool] = False
    """The paper's setting."""


@dataclass(frozen=True)
class Form(Generic[E]):
    """What a user fills in."""

    preset: tyro.conf.OmitArgPrefixes[Preset]
    settings: tyro.conf.OmitArgPrefixes[E]
    options: tyro.conf.OmitArgPrefixes[RunOptions]


def chosen_preset(words: Sequence[str]) -> str:
    """The preset that is named among the words; "quick" where none is.

    >>> chosen_preset(["--steps", "3", "--smoke"])
    'smoke'
    """
    named = [preset for preset in PRESETS if f"--{preset}" in words]
    if len(named) > 1:
        raise InputError(f"choose one preset; given {' and '.join('--' + preset for preset in named)}")
    return named[0] if named else "quick"


def parse(settings: E, options: RunOptions, words: Sequence[str], program: str) -> Form[E]:
    """Read the words, with these settings and options where they say nothing."""
    kind = type(settings)
    return tyro.cli(
        Form[kind],
        prog=program,
        description=f"{kind.line}\n\n{kind.question}",
        args=list(words),
        default=Form(Preset(), settings, options),
        config=(tyro.conf.HelptextFromCommentsOff,),
    )
