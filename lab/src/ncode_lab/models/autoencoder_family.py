"""The autoencoders of the paper's comparison, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ncode import InputError
from ncode.checks import check_choice
from ncode.costs import KineticEnergy
from ncode.models.auto_ncode import AutoNCODE, Start
from ncode.models.autoencoder import Autoencoder, PlainAutoencoder, VariationalAutoencoder
from ncode.models.code_noise import CodeNoise, check_part
from ncode.models.coders import Architecture, Decoder, Encoder, architecture
from ncode.models.control_norms import Norm

from .texture import Texture

Kind = Literal["auton-code", "ae", "ae-wide", "vae", "sparse", "denoising"]
Dataset = Literal["mnist", "fashion-mnist", "cifar10", "celeba"]
LossName = Literal["paper", "mse", "bce"]
PlannedNorm = Literal["auto", Norm]
PlannedStart = Literal["auto", Start]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Settings that only one of the models looks at.
OWN = {
    "auton-code": ("nonzeros", "norm", "gain", "start", "horizon", "kinetic_cost"),
    "vae": ("beta",),
    "sparse": ("sparsity",),
    "denoising": ("image_noise",),
}


class Flow(NamedTuple):
    """How the control of AutoN-CODE is normalised, to what size, and where its flow begins."""

    norm: Norm
    gain: float
    start: Start


# What held-out images chose.
COLOURS, DIGITS = Flow("sphere", 0.25, "ones"), Flow("l2", 1.0, "stored")


@dataclass(frozen=True)
class Plan:
    """What autoencoders are built by. Zeros and "paper" stand for the paper's choice for the data set.

    Where the paper names none, as for the norm of the control, zeros and "auto" stand for what held-out images chose.

    >>> Plan("cifar10").numbers.latent, Plan("mnist").measure, Plan("cifar10", latent=64).latent_of("ae-wide")
    (128, 'bce', 128)
    """

    dataset: Dataset = "cifar10"
    """Images to code."""
    latent: int = 0
    """Dimensions of the code. 0: 25 for MNIST, 128 for CIFAR-10, 64 for CelebA."""
    nonzeros: int = 1
    """Non-zeros a row of the control. 0: the paper's 1 for MNIST, 2 for CIFAR-10, 10 for CelebA."""
    norm: PlannedNorm = "auto"
    """How the control is normalised: as a whole (l2), as a whole without its mean (sphere), a row, over the batch,
    bounded by tanh, or not at all. auto: sphere for images in colour, l2 for digits."""
    gain: float = 0.0
    """Norm of the control. 0: 0.25 for images in colour, 1 for digits."""
    start: PlannedStart = "auto"
    """Where the flow begins: drawn once and stored, learned, drawn each time, or at 1 throughout. auto: at ones for
    images in colour, stored for digits."""
    horizon: float = 10.0
    """When the flow ends."""
    kinetic_cost: float = 0.0
    """Weight of the running cost |dx/dt|^2 on the flow. Above 0, a solver takes the place of the exact flow."""
    loss: LossName = "paper"
    """Error of images. paper: bce for MNIST, mse otherwise."""
    depth: int = 0
    """Convolutions that the encoder has beyond the paper's three; each halves the image."""
    width: float = 1.0
    """Factor of all widths of the coders."""
    dropout: float = 0.0
    """Part of the encoder's features that is left out in training."""
    standardise: bool = True
    """Let the decoder see codes of mean 0 and deviation 1, each value over the batch."""
    code_noise: float = 0.0
    """Noise on codes in training, relative to their deviation. -1: 0.25 for images in colour, none for digits, and none
    for vae, whose codes have noise of their own."""
    code_dropout: float = 0.0
    """Part of a code that is left out in training."""
    texture: float = 0.0
    """Weight of the distance between textures, which makes images sharper at the price of a larger error. For images in
    colour alone: digits have no texture."""
    beta: float = 0.0
    """Weight of the divergence of vae. 0: 1 for bce, and 0.04 for mse, as of a decoder of variance 0.02."""
    sparsity: float = 1e-3
    """Weight of the mean absolute code of sparse."""
    image_noise: float = 0.2
    """Deviation of the noise that denoising takes away."""

    def __post_init__(self) -> None:
        for name, known in (("dataset", Dataset), ("norm", PlannedNorm), ("start", PlannedStart), ("loss", LossName)):
            check_choice(name, getattr(self, name), get_args(known))
        if not self.horizon > 0:
            raise InputError(f"horizon must be above 0; given {self.horizon!r}")
        for name in ("latent", "nonzeros", "gain", "kinetic_cost", "texture", "beta", "sparsity", "image_noise"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0; given {getattr(self, name)!r}")
        if not (self.code_noise >= 0 or self.code_noise == -1):
            raise InputError(f"code_noise must be at least 0, or -1; given {self.code_noise!r}")
        numbers = self.numbers
        if numbers.nonzeros > numbers.latent:
            raise InputError(
                f"a row of the control has {numbers.latent} places, as the code has dimensions; {numbers.nonzeros}"
                " non-zeros do not fit: raise latent, or lower nonzeros"
            )
        for name in ("dropout", "code_dropout"):
            check_part(name, getattr(self, name))

    @property
    def numbers(self) -> Architecture:
        """Of the coders, with what was told in place of the paper's."""
        paper = architecture(self.dataset, self.depth, self.width)
        return paper._replace(latent=self.latent or paper.latent, nonzeros=self.nonzeros or paper.nonzeros)

    @property
    def colour(self) -> bool:
        """Whether images have colours."""
        return self.numbers.channels == 3

    @property
    def measure(self) -> str:
        """The loss, "mse" or "bce"."""
        if self.loss != "paper":
            return self.loss
        return "bce" if self.dataset == "mnist" else "mse"

    @property
    def flow(self) -> Flow:
        """Of AutoN-CODE: what was told, and the best for the rest."""
        best = COLOURS if self.colour else DIGITS
        norm = best.norm if self.norm == "auto" else self.norm
        return Flow(norm, self.gain or best.gain, best.start if self.start == "auto" else self.start)

    def noise_of(self, kind: str) -> float:
        """Noise on the codes of a model.

        >>> [Plan(name, code_noise=-1).noise_of("ae") for name in ("cifar10", "mnist")]
        [0.25, 0.0]
        """
        if self.code_noise >= 0:
            return self.code_noise
        return 0.25 if self.colour and kind != "vae" else 0.0

    def latent_of(self, kind: str) -> int:
        """Dimensions of the code of a model."""
        return self.numbers.latent * (2 if kind == "ae-wide" else 1)


def build_autoencoder(kind: str, plan: Plan, seed: int = 0) -> Autoencoder:
    """An autoencoder, new.

    Args:
        kind: auton-code, ae, ae-wide (twice the dimensions), vae, sparse or denoising.
        plan: Its settings.
        seed: Of AutoN-CODE's pattern and of its x(0).

    >>> import torch
    >>> model = build_autoencoder("auton-code", Plan("mnist", width=0.1))
    >>> model(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    check_choice("model", kind, KINDS)
    numbers, latent = plan.numbers, plan.latent_of(kind)
    encoder, decoder = Encoder(numbers, plan.dropout), Decoder(numbers, latent, plan.standardise)
    terms = {"texture": Texture(plan.texture)} if plan.texture and plan.colour else {}
    common = {"disturb": CodeNoise(plan.noise_of(kind), plan.code_dropout), "terms": terms}
    if kind == "auton-code":
        costs = [KineticEnergy(plan.kinetic_cost)] if plan.kinetic_cost else []
        flow = {**plan.flow._asdict(), "horizon": plan.horizon, "costs": costs}
        sizes = (encoder.width, latent, plan.measure, numbers.nonzeros)
        return AutoNCODE(encoder, decoder, *sizes, **flow, seed=seed, **common)
    sizes = (encoder.width, latent, plan.measure)
    if kind == "vae":
        # Of a decoder of variance 0.02 under "mse"; "bce" is a likelihood as it is.
        beta = plan.beta or (1.0 if plan.measure == "bce" else 0.04)
        return VariationalAutoencoder(encoder, decoder, *sizes, beta=beta, **common)
    noise = plan.image_noise if kind == "denoising" else 0.0
    sparsity = plan.sparsity if kind == "sparse" else 0.0
    return PlainAutoencoder(encoder, decoder, *sizes, noise=noise, sparsity=sparsity, **common)
