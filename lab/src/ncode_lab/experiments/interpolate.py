"""Interpolation between codes (appendix C.8 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ncode import InputError

from ..data import stream
from ..models.autoencoder_family import Kind
from ..training import Column, Trial, TrialContext
from .base import Finished, Picture
from .code_units import Units
from .coding import decode, encode
from .coding_recipes import PAPER, QUICK, SMOKE
from .coding_task import errors
from .scoring import FID, OTHER, Scored


@dataclass(frozen=True)
class Interpolate(Scored):
    """Decode what lies between the codes of test images: on lines and arcs between two, and in the plane of three.

    How good an image half-way between two others is has no answer pixel by pixel; as a set, such images should look
    like test images, and that is scored. In many dimensions codes lie far from their mean, and the middle of a line
    between two lies nearer to it than codes do; an arc around the mean keeps its distance.
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
        Column(f"{FID.frechet} half-way", "FID, half-way on lines", digits=2),
        Column(f"{FID.frechet} half-way, arcs", "FID, half-way on arcs", digits=2),
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
                Column(f"{OTHER.frechet} half-way", f"{OTHER.title}, half-way on lines", digits=2),
                Column(f"{OTHER.frechet} half-way, arcs", f"{OTHER.title}, half-way on arcs", digits=2),
                Column(f"{OTHER.frechet} floor", f"{OTHER.title}, coded and decoded", digits=2),
            )
            object.__setattr__(self, "columns", (self.columns[0], *other))

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed."""
        have, needed = len(self.sets().test), max(3, 2 * self.pairs)
        if have < needed:
            raise InputError(f"{self.pairs} pairs need {needed} test images; there are {have}")
        return super().trials(seeds)

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Train a model or take it, and decode what lies between codes. All models are shown the same test images."""
        model = self.trained(trial, context).model
        test = self.sets().test.to(context.device)
        codes = encode(model, test)
        order = torch.randperm(len(codes), generator=stream(0, "pairs")).to(codes.device)
        first, second = codes[order[: self.pairs]], codes[order[self.pairs : 2 * self.pairs]]
        units = Units.of(codes)
        on_lines, on_arcs = line(first, second, self.steps), units.undo(arc(units(first), units(second), self.steps))
        a, b, c = codes[order[:3]]
        in_square = square(a, b, c, self.steps)
        context.save_tensors("lines", images=decode(model, on_lines.flatten(0, 1)).unflatten(0, on_lines.shape[:2]))
        context.save_tensors("arcs", images=decode(model, on_arcs.flatten(0, 1)).unflatten(0, on_arcs.shape[:2]))
        context.save_tensors("square", images=decode(model, in_square.flatten(0, 1)).unflatten(0, in_square.shape[:2]))
        judge = self.judge(test.images, context)
        name = judge.names.frechet
        bent = units.undo(arc(units(codes), units(codes[order]), 3)[:, 1])
        return {
            "error": errors(model, test)["error"],
            f"{name} half-way": judge(decode(model, (codes + codes[order]) / 2))[name],
            f"{name} half-way, arcs": judge(decode(model, bent))[name],
            f"{name} floor": judge(decode(model, codes))[name],
        }

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Lines, arcs and squares, of the first seed."""
        from ..figures.interpolate import draw_lines, draw_squares

        first: dict[str, Finished] = {}
        for done in finished:
            first.setdefault(done.trial.model, done)
        if not first:
            return []
        lines = {model: done.load("lines")["images"] for model, done in first.items()}
        arcs = {model: done.load("arcs")["images"] for model, done in first.items()}
        squares = {model: done.load("square")["images"] for model, done in first.items()}
        between = "From the code of one test image to that of another, in equal steps; each row is a pair."
        around = "The same pairs, by arcs around the mean of all codes."
        plane = "The plane of the codes of three test images, A, B and C, which stand in three corners."
        return [
            Picture("lines", draw_lines(lines), between),
            Picture("arcs", draw_lines(arcs), around),
            Picture("squares", draw_squares(squares), plane),
        ]


def line(first: Tensor, second: Tensor, steps: int) -> Tensor:
    """Codes in equal steps from first to second (n, m), with both: (n, steps, m).

    >>> line(torch.zeros(1, 1), torch.ones(1, 1), 3).flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """
    way = torch.linspace(0, 1, steps, device=first.device, dtype=first.dtype)[:, None]
    return first[:, None] + way * (second - first)[:, None]


def arc(first: Tensor, second: Tensor, steps: int) -> Tensor:
    """Codes in equal angles around 0 from first to second (n, m), with both: (n, steps, m); norms in equal steps.

    Codes of one direction, or of opposite ones, which have many arcs, and a code at 0, which has none, get a line.

    >>> arc(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]), 3)
    tensor([[[1.0000, 0.0000],
             [1.4142, 1.4142],
             [0.0000, 3.0000]]])
    """
    way = torch.linspace(0, 1, steps, device=first.device, dtype=first.dtype)[:, None]
    sizes = first.norm(dim=1, keepdim=True), second.norm(dim=1, keepdim=True)
    cosine = ((first * second).sum(1, keepdim=True) / (sizes[0] * sizes[1])).clamp(-1, 1)
    angle = cosine.acos()[:, None]
    size = line(*sizes, steps)
    directions = (first / sizes[0])[:, None], (second / sizes[1])[:, None]
    turned = (((1 - way) * angle).sin() * directions[0] + (way * angle).sin() * directions[1]) / angle.sin()
    bent = cosine.abs()[:, None] < 1 - 1e-6
    return torch.where(bent, size * turned, line(first, second, steps))


def square(a: Tensor, b: Tensor, c: Tensor, steps: int) -> Tensor:
    """Codes in the plane of three (m,), (steps, steps, m): a up and left, b up and right, c down and left.

    >>> square(torch.zeros(1), torch.ones(1), torch.full((1,), 2.0), 2)[..., 0]
    tensor([[0., 1.],
            [2., 3.]])
    """
    way = torch.linspace(0, 1, steps, device=a.device, dtype=a.dtype)
    return a + way[None, :, None] * (b - a) + way[:, None, None] * (c - a)
