"""Decode codes between those of test images: on lines and arcs between two, and in the plane of three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ncode import InputError

from ...data import stream
from ...training import Column, Trial, TrialContext
from ..base import Finished, Picture
from ..common import first_seeds
from .codes import Units, decode, encode
from .models import Kind
from .scoring import FID, OTHER, Names, Scored
from .settings import FULL, PAPER, QUICK, SMOKE, Coding
from .training import errors

PAIRS = 6  # lines to draw
STEPS = 9  # images on a line, and on the side of a square

LINES = "From the code of one test image to that of another, in equal steps; each row is a pair."
ARCS = "The same pairs, by arcs around the mean of all codes."
SQUARES = "The plane of the codes of three test images, A, B and C, which stand in three corners."


def _columns(names: Names) -> tuple[Column, ...]:
    return (
        Column("error", "test error (MSE)", digits=5),
        Column(f"{names.frechet} half-way", f"{names.title}, half-way on lines", digits=2),
        Column(f"{names.frechet} half-way, arcs", f"{names.title}, half-way on arcs", digits=2),
        Column(f"{names.frechet} floor", f"{names.title}, coded and decoded", digits=2),
    )


@dataclass(frozen=True)
class Interpolate(Scored):
    """Decode codes between those of test images: on lines and arcs between two, and in the plane of three.

    There is no true image half-way between two others; as a set, such images should look like test images, and that is
    scored. In many dimensions codes lie far from their mean, and the middle of a line between two is nearer to it than
    codes are; an arc around the mean keeps its distance.
    """

    name = "interpolate"
    line = "images between images: AutoN-CODE and an autoencoder (appendix C.8)"
    question = (
        "What lies half-way between the codes of two images? If codes are well organised, the way from one to the other"
        " passes through images that could be real, and does not fade one into the other. Look at the lines and squares"
        " of both models, and at the score of images half-way between random pairs."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {**SMOKE, "score": "random"},
        "quick": {**QUICK, "score": "random"},
        "full": {**FULL, "dataset": "celeba"},
        "paper": {**PAPER, "dataset": "celeba"},
    }
    columns = _columns(FID)
    retired: ClassVar[Mapping[str, Any]] = {**Coding.retired, "pairs": PAIRS, "steps": STEPS}

    models: tuple[Kind, ...] = ("auton-code", "ae")
    """Models. ae-wide has twice the dimensions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is None:
            object.__setattr__(self, "columns", _columns(OTHER))

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        have = len(self.sets().test)
        if have < 2 * PAIRS:
            raise InputError(f"{PAIRS} pairs need {2 * PAIRS} test images; there are {have}")
        return super().trials(seeds)

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        model, _ = self.trained(trial, context)
        test = self.sets().test.to(context.device)
        codes = encode(model, test)
        order = torch.randperm(len(codes), generator=stream(0, "pairs")).to(codes.device)
        first, second = codes[order[:PAIRS]], codes[order[PAIRS : 2 * PAIRS]]
        a, b, c = codes[order[:3]]
        units = Units.of(codes)
        between = {
            "lines": line(first, second, STEPS),
            "arcs": units.undo(arc(units(first), units(second), STEPS)),
            "square": square(a, b, c, STEPS),
        }
        for name, places in between.items():
            images = decode(model, places.flatten(0, 1)).unflatten(0, places.shape[:2])
            context.save_tensors(name, images=images)
        judge = self.judge(test.images, context)
        name = judge.names.frechet
        on_arcs = units.undo(arc(units(codes), units(codes[order]), 3)[:, 1])
        return {
            "error": errors(model, test)["error"],
            f"{name} half-way": judge(decode(model, (codes + codes[order]) / 2))[name],
            f"{name} half-way, arcs": judge(decode(model, on_arcs))[name],
            f"{name} floor": judge(decode(model, codes))[name],
        }

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        from .figures import draw_lines, draw_squares

        if not finished:
            return []
        first = first_seeds(finished)
        lines, arcs, squares = (
            {model: done.load(name)["images"] for model, done in first.items()} for name in ("lines", "arcs", "square")
        )
        return [
            Picture("lines", draw_lines(lines), LINES),
            Picture("arcs", draw_lines(arcs), ARCS),
            Picture("squares", draw_squares(squares), SQUARES),
        ]


def line(first: Tensor, second: Tensor, steps: int) -> Tensor:
    """Codes in equal steps from first to second (n, m), including both: (n, steps, m)."""
    fraction = torch.linspace(0, 1, steps, device=first.device, dtype=first.dtype)[:, None]
    return first[:, None] + fraction * (second - first)[:, None]


def arc(first: Tensor, second: Tensor, steps: int) -> Tensor:
    """Codes in equal angles around 0 from first to second (n, m), including both: (n, steps, m); norms in equal steps.

    Codes with the same or opposite directions, and a code at 0, get a line.
    """
    fraction = torch.linspace(0, 1, steps, device=first.device, dtype=first.dtype)[:, None]
    sizes = first.norm(dim=1, keepdim=True), second.norm(dim=1, keepdim=True)
    cosine = ((first * second).sum(1, keepdim=True) / (sizes[0] * sizes[1])).clamp(-1, 1)
    angle = cosine.acos()[:, None]
    directions = (first / sizes[0])[:, None], (second / sizes[1])[:, None]
    turned = ((1 - fraction) * angle).sin() * directions[0] + (fraction * angle).sin() * directions[1]
    bent = cosine.abs()[:, None] < 1 - 1e-6
    return torch.where(bent, line(*sizes, steps) * turned / angle.sin(), line(first, second, steps))


def square(a: Tensor, b: Tensor, c: Tensor, steps: int) -> Tensor:
    """Codes in the plane of three (m,), (steps, steps, m): a top left, b top right, c bottom left."""
    fraction = torch.linspace(0, 1, steps, device=a.device, dtype=a.dtype)
    return a + fraction[None, :, None] * (b - a) + fraction[:, None, None] * (c - a)
