"""Autoencoding with a controlled latent flow (section 4.4, appendix C.4 and C.5 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ncode import InputError
from ncode.models.auto_ncode import AutoNCODE
from ncode.models.autoencoder import Autoencoder

from ..data import Images
from ..models.autoencoder_family import KINDS
from ..training import Column, Result, Trial, TrialContext
from .base import Finished, Picture
from .coding import as_numbers, decode, encode
from .coding_recipes import PAPER, QUICK, SMOKE
from .coding_results import each_dataset
from .coding_task import errors
from .scoring import FID, OTHER, Names, Scored


def _columns(names: Names) -> tuple[Column, ...]:
    return (
        Column("error", "test error (MSE)", digits=5),
        Column("train error", "training error", digits=5),
        Column("pca error", "PCA, test error", digits=5),
        Column(names.frechet, f"reconstruction {names.title}", digits=2),
        Column(names.kernel, f"reconstruction {names.kernel_title}", digits=names.kernel_digits),
        Column("seconds an epoch", "seconds an epoch", digits=1),
    )


@dataclass(frozen=True)
class Autoencode(Scored):
    """Train autoencoders whose code is the end of a flow, and those it is compared with.

    The encoder of AutoN-CODE gives no code but a control: the few non-zeros of a matrix theta. The code is x(T) of
    dx/dt = theta x, x(0) = x_0, which is solved exactly. All models have the same encoder and decoder.

    With --precision bf16 the coders are computed in 16 bits; control, flow, codes and the loss stay in 32 bits or more.
    """

    name = "autoencode"
    line = "images: AutoN-CODE against autoencoders (section 4.4, figures 6 and A.4 to A.6)"
    question = (
        "An autoencoder maps an image to a code, and the code back to an image. AutoN-CODE's encoder sets the couplings"
        " of a linear system instead, and where that system has come to at t = 10 is the code. Does that cost or gain"
        " anything in what comes back? Look at the error on test images beside that on training images, and beside"
        " principal components of the same number; and at what the states on the way decode to."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {**SMOKE, "models": ("auton-code", "ae"), "score": "random"},
        "quick": {**QUICK, "models": KINDS, "score": "random"},
        "paper": PAPER,
    }
    columns = _columns(FID)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source:
            raise InputError("autoencode trains models: source is for generate, cluster and interpolate")
        if self.weights is None:
            object.__setattr__(self, "columns", _columns(OTHER))

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Train a model, and look at test images once."""
        model, seconds = self.trained(trial, context)
        train, test = self.sets().to(context.device)
        self._keep(model, test, context)
        return {
            "error": errors(model, test)["error"],
            "train error": errors(model, train.take(slice(0, 10_000)))["error"],
            "held-out error": context.final["error"],
            "pca error": principal_error(train, test, self.latent_of(trial.model)),
            **self.judge(test.images, context)(decode(model, encode(model, test))),
            **({} if seconds is None else {"seconds an epoch": seconds}),
        }

    def _keep(self, model: Autoencoder, test: Images, context: TrialContext) -> None:
        some = test.take(slice(0, 12))
        context.save_tensors("reconstructions", truth=some.images, back=decode(model, encode(model, some)))
        if isinstance(model, AutoNCODE):
            context.save_tensors("orbit", **orbit(model, some.take(slice(0, 8)).images, self.horizon))

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Reconstructions, orbits and training curves; pictures are of the first seed."""
        from ..figures.autoencode import draw_orbit, draw_reconstructions

        if not finished:
            return []
        back: dict[str, Tensor] = {}
        truth = finished[0].load("reconstructions")["truth"]
        pictures = []
        for done in finished:
            model = done.trial.model
            if model in back:
                continue
            back[model] = done.load("reconstructions")["back"]
            if model == "auton-code":
                caption = (
                    "What the states on controlled orbits decode to, from left to right; last column: the test image"
                    " whose control drives the orbit. All orbits begin at the same state."
                )
                pictures = [Picture("orbit", draw_orbit(**done.load("orbit")), caption)]
        text = "Test images, and what comes back of them."
        return [
            Picture("reconstructions", draw_reconstructions(truth, back), text),
            *pictures,
            training_picture([done.result for done in finished]),
        ]

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """Training curves, of each data set.

        >>> seen = {f"{which} {name}": [1.0, 2.0] for which in ("train", "evaluation") for name in ("step", "error")}
        >>> about = ("cifar10", "paper", 0, {}, {"pca error": 0.005}, 1, 1.0, "", {}, "", "", {"dimensions": 128})
        >>> results = [Result("autoencode", model, *about, seen) for model in ("auton-code", "ae")]
        >>> [(picture.name, picture.caption[:30]) for picture in Autoencode.redraw(results)]
        [('training-cifar10', 'cifar10: The mean squared erro')]
        """
        return each_dataset([each for each in results if each.curves], lambda some: [training_picture(some)])


def training_picture(results: Sequence[Result]) -> Picture:
    """The error of held-out images while models are trained."""
    from ..figures.autoencode import draw_training

    curves: dict[str, list[dict[str, list[float]]]] = {}
    for result in results:
        curves.setdefault(result.model, []).append(result.curves)
    plain = {result.about["dimensions"]: result.metrics["pca error"] for result in results}
    principal = {f"PCA, {size} dimensions (test images)": error for size, error in plain.items()}
    course = "The mean squared error of images that were held out of training, and of training batches as dashed lines."
    return Picture("training", draw_training(curves, principal), course)


@torch.no_grad()
def orbit(model: AutoNCODE, images: Tensor, horizon: float, count: int = 11) -> dict[str, Tensor]:
    """What the states at equal distances in time decode to, (rows, count, C, H, W), bytes."""
    shown = as_numbers(images)
    ts = torch.linspace(0, horizon, count, device=shown.device, dtype=shown.dtype)
    states = model.orbit(shown, ts)
    decoded = decode(model, states.flatten(0, 1)).unflatten(0, states.shape[:2])
    return {"orbit": decoded, "truth": images, "ts": ts}


@torch.no_grad()
def principal_error(train: Images, test: Images, dimensions: int, rounds: int = 8) -> float:
    """The mean squared error on test images of the best linear code of so many dimensions, found on training images.

    By orthogonal iteration on a few dimensions more than asked for, so that no covariance of all pixels is formed.

    >>> from ncode_lab.data import draw_digits
    >>> images = draw_digits(100, generator=0)
    >>> principal_error(images, images, 99) < 1e-9 < principal_error(images, images, 10)
    True
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
    # What the last round has stretched the most comes first.
    found, _, _ = torch.linalg.svd(moved, full_matrices=False)
    axes = found[:, : min(dimensions, size)]
    lost = 0.0
    for part in test.images.split(2000):
        x = part.flatten(1) - mean
        lost += float((x - (x @ axes) @ axes.mT).square().sum())
    return lost / (len(test) * len(mean)) / 255**2
