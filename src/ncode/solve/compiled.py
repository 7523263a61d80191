"""Compiling the attempt and the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .loop import Attempt
from .step import Step


def prepare_attempt(compile: bool) -> Callable[[Attempt], Callable[..., Any]]:
    return lambda attempt: attempt


def prepare_step(compile: bool) -> Callable[[Step], Callable[..., Any]]:
    return lambda step: step
