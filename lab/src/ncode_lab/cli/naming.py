"""The experiment that a line names."""

from __future__ import annotations

from ncode import InputError

from ..experiments import EXPERIMENTS, Experiment, find


def take_experiment(words: list[str], word: str) -> tuple[type[Experiment], list[str]]:
    """The experiment named first, and the rest of the line.

    >>> take_experiment(["reflection", "--steps", "3"], "run")[1]
    ['--steps', '3']
    """
    if not words or words[0].startswith("-"):
        raise InputError(f"say which experiment: `ncode {word} NAME`, one of {', '.join(EXPERIMENTS)}")
    return find(words[0]), words[1:]
