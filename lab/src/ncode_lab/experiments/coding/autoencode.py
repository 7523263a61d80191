"""Train AutoN-CODE and the autoencoders it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ncode import InputError
from ncode.models import AutoNCODE

from ...data import Images
from ...training import Column, Result, Trial, TrialContext
from ..base import Finished, Picture
from ..common import curves_by_model, draw_per_dataset, first_seeds
from .codes import decode, encode, to_floats
from .models import HORIZON, PAPER_KINDS
from .scoring import FID, OTHER, Names, Scored
from .settings import FULL, PAPER, QUICK, SMOKE
from .training import errors

RECONSTRUCTIONS = "Test images and their reconstructions."
ORBIT = (
    "Decoded states along controlled trajectories, from left to right; last column: the test image whose control drives"
    " the trajectory. All trajectories start at the same state."
)
TRAINING = "The mean squared error of held-out training images, and of training batches as dashed lines."


def _columns(names: Names) -> tuple[Column, ...]:
    return (
        Column("error", "test error (MSE)", digits=5),
        Column("train error", "training error", digits=5),
        Column("pca error", "PCA, test error", digits=5),
        Column(names.frechet, f"reconstruction {names.title}", digits=2),
        Column(names.kernel, f"reconstruction {names.kernel_title}", digits=names.kernel_digits),
    )


@dataclass(frozen=True)
class Autoencode(Scored):
    """Train autoencoders whose code is the end of a flow, and those they are compared with.

    The encoder of AutoN-CODE does not give a code but a control: the few non-zeros of a matrix theta. The code is x(T)
    of dx/dt = theta x, x(0) = x_0, which is solved exactly. All models have the same encoder and decoder.

    With --precision bf16 encoder and decoder are computed in 16 bits; control, flow, codes and the loss stay in 32 bits
    or more.
    """

    name = "autoencode"
    line = "AutoN-CODE against autoencoders of images (section 4.4, figures 7, 8 and A.4 to A.6)"
    question = (
        "An autoencoder maps an image to a code, and the code back to an image. AutoN-CODE's encoder sets the couplings"
        " of a linear system instead, and the state of that system at t = 10 is the code. Does that cost or gain"
        " anything in the reconstruction? Compare the error on test images with that on training images and with that"
        " of as many principal components, and look at the images that the states on the way decode to."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {**SMOKE, "models": ("auton-code", "ae"), "score": "random"},
        "quick": {**QUICK, "models": PAPER_KINDS, "score": "random"},
        "full": FULL,
        "paper": PAPER,
    }
    columns = _columns(FID)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source:
            raise InputError("autoencode trains models: source is for generate, cluster and interpolate")
        if self.weights is None:
            object.__setattr__(self, "columns", _columns(OTHER))

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*super().metrics, "held-out error", "seconds an epoch")

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        model, seconds = self.trained(trial, context)
        train, test = self.sets().to(context.device)
        some = test.take(slice(0, 12))
        context.save_tensors("reconstructions", truth=some.images, back=decode(model, encode(model, some)))
        if isinstance(model, AutoNCODE):
            context.save_tensors("orbit", **orbit(model, some.images[:8]))
        return {
            "error": errors(model, test)["error"],
            "train error": errors(model, train.take(slice(0, 10_000)))["error"],
            "held-out error": context.final["error"],
            "pca error": principal_error(train, test, self.latent_of(trial.model)),
            **self.judge(test.images, context)(decode(model, encode(model, test))),
            **({} if seconds is None else {"seconds an epoch": seconds}),
        }

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        from .figures import draw_orbit, draw_reconstructions

        if not finished:
            return []
        first = first_seeds(finished)
        truth = finished[0].load("reconstructions")["truth"]
        back = {model: done.load("reconstructions")["back"] for model, done in first.items()}
        pictures = [Picture("reconstructions", draw_reconstructions(truth, back), RECONSTRUCTIONS)]
        if "auton-code" in first:
            pictures.append(Picture("orbit", draw_orbit(**first["auton-code"].load("orbit")), ORBIT))
        return [*pictures, training_picture([done.result for done in finished])]

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """Training curves of each data set."""
        return draw_per_dataset([each for each in results if each.curves], lambda some: [training_picture(some)])


def training_picture(results: Sequence[Result]) -> Picture:
    from .figures import draw_training

    linear = {result.about["dimensions"]: result.metrics["pca error"] for result in results}
    principal = {f"PCA, {size} dimensions (test images)": error for size, error in linear.items()}
    return Picture("training", draw_training(curves_by_model(results), principal), TRAINING)


@torch.no_grad()
def orbit(model: AutoNCODE, images: Tensor, count: int = 11) -> dict[str, Tensor]:
    """The decoded states at equally spaced times, (rows, count, C, H, W), bytes."""
    shown = to_floats(images)
    ts = torch.linspace(0, HORIZON, count, device=shown.device, dtype=shown.dtype)
    states = model.trajectory(shown, ts)
    decoded = decode(model, states.flatten(0, 1)).unflatten(0, states.shape[:2])
    return {"orbit": decoded, "truth": images, "ts": ts}


@torch.no_grad()
def principal_error(train: Images, test: Images, dimensions: int, rounds: int = 8) -> float:
    """The mean squared error on test images of the best linear code, found on training images.

    By orthogonal iteration with a few more dimensions, so that the covariance of all pixels is never formed.
    """
    mean = sum(part.flatten(1).double().sum(0) for part in train.images.split(2000)) / len(train)
    assert isinstance(mean, Tensor)
    size = min(dimensions + 30, len(mean), len(train))
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(len(mean), size, generator=generator, dtype=torch.float64).to(train.device)
    moved = basis
    for _ in range(rounds):
        moved = torch.zeros_like(basis)
        for part in train.images.split(2000):
            x = part.flatten(1) - mean
            moved += x.mT @ (x @ basis)
        basis, _ = torch.linalg.qr(moved)
    # Ordered by how much the last round has stretched them.
    found, _, _ = torch.linalg.svd(moved, full_matrices=False)
    axes = found[:, : min(dimensions, size)]
    lost = 0.0
    for part in test.images.split(2000):
        x = part.flatten(1) - mean
        lost += float((x - (x @ axes) @ axes.mT).square().sum())
    return lost / (len(test) * len(mean)) / 255**2
