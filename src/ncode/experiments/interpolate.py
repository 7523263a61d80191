"""Interpolation between codes (appendix C.8 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data import stream
from ..models.autoencoder_family import Kind
from ..solve import InputError
from ..training import Column, Desk, Trial
from .base import Finished, Picture
from .coding import decode, encode
from .coding_recipes import PAPER, QUICK, SMOKE
from .coding_task import errors
from .scoring import FID, OTHER, Scored


@dataclass(frozen=True)
class Interpolate(Scored):
    """Decode what lies between the codes of test images: on lines between two, and in the plane of three.

    How good an image half-way between two others is has no answer pixel by pixel; as a set, such images should look
    like test images, and that is scored.
    """

    name = "interpolate"
    line = "images between images: AutoN-CODE beside an autoencoder (appendix C.8)"
    question = (
        "What lies half-way between the codes of two images? If codes are well organised, the way from one to the other"
        " passes through images that could be real, and does not fade one into the other. Look at the lines and squares"
        " of both models, and at the score of images half-way between random pairs."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {**SMOKE, "score": "random"},
        "quick": {**QUICK, "score": "random"},
        "paper": {**PAPER, "dataset": "celeba"},
    }
    columns = (
        Column("error", "test error (MSE)", digits=5),
        Column(f"{FID.frechet} half-way", "FID, half-way between pairs", digits=2),
        Column(f"{FID.frechet} floor", "FID, coded and decoded", digits=2),
    )

    models: tuple[Kind, ...] = ("auton-code", "ae")
    """Models. ae-wide has twice the dimensions."""
    pairs: int = 6
    """Lines to draw."""
    steps: int = 9
    """Images on a line, and on the side of a square."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs < 1 or self.steps < 2:
            raise InputError(f"pairs must be at least 1, and steps at least 2; given {self.pairs} and {self.steps}")
        if self.weights is None:
            other = (
                Column(f"{OTHER.frechet} half-way", f"{OTHER.title}, half-way between pairs", digits=2),
                Column(f"{OTHER.frechet} floor", f"{OTHER.title}, coded and decoded", digits=2),
            )
            object.__setattr__(self, "columns", (self.columns[0], *other))

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed."""
        have, needed = len(self.sets().test), max(3, 2 * self.pairs)
        if have < needed:
            raise InputError(f"{self.pairs} pairs need {needed} test images; there are {have}")
        return super().trials(seeds)

    def run(self, trial: Trial, desk: Desk) -> dict[str, float]:
        """Train a model or take it, and decode what lies between codes. All models are shown the same test images."""
        model = self.trained(trial, desk).model
        test = self.sets().test.to(desk.device)
        codes = encode(model, test)
        order = torch.randperm(len(codes), generator=stream(0, "pairs")).to(codes.device)
        first, second = codes[order[: self.pairs]], codes[order[self.pairs : 2 * self.pairs]]
        on_lines = line(first, second, self.steps)
        a, b, c = codes[order[:3]]
        in_square = square(a, b, c, self.steps)
        desk.keep("lines", images=decode(model, on_lines.flatten(0, 1)).unflatten(0, on_lines.shape[:2]))
        desk.keep("square", images=decode(model, in_square.flatten(0, 1)).unflatten(0, in_square.shape[:2]))
        judge = self.judge(test.images, desk)
        name = judge.names.frechet
        half_way = judge(decode(model, (codes + codes[order]) / 2))[name]
        floor = judge(decode(model, codes))[name]
        return {"error": errors(model, test)["error"], f"{name} half-way": half_way, f"{name} floor": floor}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Lines and squares, of the first seed."""
        from ..figures.interpolate import draw_lines, draw_squares

        first: dict[str, Finished] = {}
        for done in finished:
            first.setdefault(done.trial.model, done)
        if not first:
            return []
        lines = {model: done.load("lines")["images"] for model, done in first.items()}
        squares = {model: done.load("square")["images"] for model, done in first.items()}
        between = "From the code of one test image to that of another, in equal steps; each row is a pair."
        plane = "The plane of the codes of three test images, A, B and C, which stand in three corners."
        return [
            Picture("lines", draw_lines(lines), between),
            Picture("squares", draw_squares(squares), plane),
        ]


def line(first: Tensor, second: Tensor, steps: int) -> Tensor:
    """Codes in equal steps from first to second (n, m), with both: (n, steps, m).

    >>> line(torch.zeros(1, 1), torch.ones(1, 1), 3).flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """
    way = torch.linspace(0, 1, steps, device=first.device, dtype=first.dtype)[:, None]
    return first[:, None] + way * (second - first)[:, None]


def square(a: Tensor, b: Tensor, c: Tensor, steps: int) -> Tensor:
    """Codes in the plane of three (m,), (steps, steps, m): a up and left, b up and right, c down and left.

    >>> square(torch.zeros(1), torch.ones(1), torch.full((1,), 2.0), 2)[..., 0]
    tensor([[0., 1.],
            [2., 3.]])
    """
    way = torch.linspace(0, 1, steps, device=a.device, dtype=a.dtype)
    return a + way[None, :, None] * (b - a) + way[:, None, None] * (c - a)
