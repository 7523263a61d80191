"""The autoencoders of the paper's comparison, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..costs import KineticEnergy
from ..solve import InputError
from ..solve.problem import choose
from .auto_ncode import AutoNCODE
from .autoencoder import Autoencoder, PlainAutoencoder, VariationalAutoencoder
from .code_noise import CodeNoise
from .coders import Architecture, Decoder, Encoder, architecture

Kind = Literal["auton-code", "ae", "ae-wide", "vae", "sparse", "denoising"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Plan:
    """What autoencoders are built by. Zeros and empty words stand for the paper's choice for the data set.

    Attributes:
        dataset: Whose coders.
        latent, nonzeros: Dimensions of the code, and non-zeros a row of the control.
        loss: "mse" or "bce".
        norm, gain, start, horizon, kinetic_cost: Of `AutoNCODE`; the last is the weight of |dx/dt|^2 on the flow.
        depth, width: Of `architecture`.
        dropout: Of the encoder's features.
        code_noise, code_dropout: Of `CodeNoise`.
        beta, sparsity, image_noise: Of the variational, the sparse and the denoising autoencoder.

    >>> Plan("cifar10").numbers.latent, Plan("mnist").measure, Plan("cifar10", latent=64).latent_of("ae-wide")
    (128, 'bce', 128)
    """

    dataset: str
    latent: int = 0
    nonzeros: int = 0
    loss: str = ""
    norm: str = "l2"
    gain: float = 1.0
    start: str = "stored"
    horizon: float = 10.0
    kinetic_cost: float = 0.0
    depth: int = 0
    width: float = 1.0
    dropout: float = 0.0
    code_noise: float = 0.0
    code_dropout: float = 0.0
    beta: float = 0.0
    sparsity: float = 1e-3
    image_noise: float = 0.2

    @property
    def numbers(self) -> Architecture:
        """Of the coders, with what was told in place of the paper's."""
        paper = architecture(self.dataset, self.depth, self.width)
        if self.latent < 0 or self.nonzeros < 0:
            raise InputError(f"latent and nonzeros must be at least 0; given {self.latent} and {self.nonzeros}")
        numbers = paper._replace(latent=self.latent or paper.latent, nonzeros=self.nonzeros or paper.nonzeros)
        if numbers.nonzeros > numbers.latent:
            raise InputError(
                f"a row of the control has {numbers.latent} places, as the code has dimensions; {numbers.nonzeros}"
                " non-zeros do not fit: raise latent, or lower nonzeros"
            )
        return numbers

    @property
    def measure(self) -> str:
        """The loss."""
        return self.loss or ("bce" if self.dataset == "mnist" else "mse")

    def latent_of(self, kind: str) -> int:
        """Dimensions of the code of a model."""
        return self.numbers.latent * (2 if kind == "ae-wide" else 1)


def build_autoencoder(kind: str, plan: Plan, seed: int = 0) -> Autoencoder:
    """An autoencoder, new.

    Args:
        kind: auton-code, ae, ae-wide (twice the dimensions), vae, sparse or denoising.
        plan: Its sizes.
        seed: Of AutoN-CODE's pattern and of its x(0).

    >>> import torch
    >>> model = build_autoencoder("auton-code", Plan("mnist", width=0.1))
    >>> model(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    choose("model", kind, KINDS)
    numbers, latent = plan.numbers, plan.latent_of(kind)
    encoder, decoder = Encoder(numbers, plan.dropout), Decoder(numbers, latent)
    disturb = CodeNoise(plan.code_noise, plan.code_dropout)
    if kind == "auton-code":
        costs = [KineticEnergy(plan.kinetic_cost)] if plan.kinetic_cost else []
        flow = {"norm": plan.norm, "gain": plan.gain, "start": plan.start, "horizon": plan.horizon, "costs": costs}
        sizes = (encoder.width, latent, plan.measure, numbers.nonzeros)
        return AutoNCODE(encoder, decoder, *sizes, **flow, seed=seed, disturb=disturb)
    sizes = (encoder.width, latent, plan.measure)
    if kind == "vae":
        # Of a decoder of variance 0.01 under "mse"; "bce" is a likelihood as it is.
        beta = plan.beta or (1.0 if plan.measure == "bce" else 0.02)
        return VariationalAutoencoder(encoder, decoder, *sizes, beta=beta, disturb=disturb)
    noise = plan.image_noise if kind == "denoising" else 0.0
    sparsity = plan.sparsity if kind == "sparse" else 0.0
    return PlainAutoencoder(encoder, decoder, *sizes, noise=noise, sparsity=sparsity, disturb=disturb)
