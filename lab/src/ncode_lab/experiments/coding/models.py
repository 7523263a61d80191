"""The autoencoders of the paper's comparison, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ncode import InputError
from ncode.costs import KineticEnergy
from ncode.errors import check_choice
from ncode.models import Autoencoder, AutoNCODE, ControlNormKind, FlowStart

from ..common import check_not_negative
from .ablations import RotationCode, SphereCode
from .baselines import CodeNoise, PlainAutoencoder, VariationalAutoencoder
from .coders import ARCHITECTURES, Architecture, Decoder, Encoder, architecture, own_architecture
from .texture import Texture

PaperKind = Literal["auton-code", "ae", "ae-wide", "vae", "sparse", "denoising"]
Ablation = Literal["sphere", "sphere-exp", "rotation"]
Kind = Literal[PaperKind, Ablation]
NormSetting = Literal["auto", ControlNormKind]
StartSetting = Literal["auto", FlowStart]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAPER_KINDS: tuple[PaperKind, ...] = get_args(PaperKind)

HORIZON = 10.0  # end of the flow
MAX_GAIN = 8.0
SPARSITY = 1e-3  # weight of the mean absolute code of sparse
IMAGE_NOISE = 0.2  # standard deviation of the noise that denoising removes

# Settings that concern some models only.
_FLOW_SETTINGS = ("nonzeros", "norm", "gain", "start", "kinetic_cost")
OWN_SETTINGS = {
    "auton-code": _FLOW_SETTINGS,
    "rotation": _FLOW_SETTINGS,
    "sphere": ("gain",),
    "sphere-exp": ("gain",),
    "vae": ("beta",),
}


class Flow(NamedTuple):
    """How the control of AutoN-CODE is normalised, to what norm, and where its flow starts."""

    norm: ControlNormKind
    gain: float
    start: FlowStart


# Chosen on held-out images.
COLOUR_FLOW, DIGIT_FLOW = Flow("sphere", 0.25, "ones"), Flow("l2", 1.0, "stored")


@dataclass(frozen=True)
class AutoencoderSettings:
    """Settings by which autoencoders are built. 0 and "auto" stand for a choice by data set."""

    dataset: str = "cifar10"
    """Data set: mnist, fashion-mnist, cifar10 or celeba; or data of your own: a folder of images, perhaps with one
    subfolder per class, an .npz file with images, or module:function."""
    image_size: int = 0
    """Crop images of your own to squares, and resize them to this side length. 0: leave them as they are."""
    channels: int = 0
    """Channels of images of your own: 1 for grey, 3 for colour. 0: grey if all of them are."""
    latent: int = 0
    """Dimensions of the code. 0: 25 for MNIST, 128 for CIFAR-10, 64 for CelebA."""
    nonzeros: int = 1
    """Non-zeros per row of the control. 0: the paper's 1 for MNIST, 2 for CIFAR-10, 10 for CelebA."""
    norm: NormSetting = "auto"
    """How the control is normalised: to one norm (l2), to one norm without its mean over the batch (sphere), or not at
    all. auto: sphere for colour images, l2 for digits."""
    gain: float = 0.0
    """Norm of the control. 0: 0.25 for colour images, 1 for digits."""
    start: StartSetting = "auto"
    """Start of the flow: ones, or drawn once and stored. auto: ones for colour images, stored for digits."""
    kinetic_cost: float = 0.0
    """Weight of the running cost |dx/dt|^2 on the flow. Above 0, a solver replaces the exact flow."""
    width: float = 1.0
    """Factor of all widths of the encoder and decoder."""
    standardise: bool = True
    """Normalise each value of a code over the batch before it is decoded."""
    code_noise: float = 0.0
    """Noise on codes in training, relative to their standard deviation. -1: 0.25 for colour images, none for digits and
    for vae, whose codes have noise of their own."""
    texture: float = 0.0
    """Weight of the texture distance, which makes images sharper and the error larger. For colour images only."""
    beta: float = 0.0
    """Weight of the divergence of vae. 0: 1 for MNIST, and 0.04 otherwise, as for a decoder of variance 0.02."""

    def __post_init__(self) -> None:
        self._check_dataset()
        for name, known in (("norm", NormSetting), ("start", StartSetting)):
            check_choice(name, getattr(self, name), get_args(known))
        check_not_negative(self, "latent", "nonzeros", "gain", "kinetic_cost", "texture", "beta")
        if self.gain > MAX_GAIN:
            raise InputError(
                f"gain must be at most {MAX_GAIN:g}: the code may grow by exp({HORIZON:g} gain), which would overflow;"
                f" given {self.gain:g}"
            )
        if not (self.code_noise >= 0 or self.code_noise == -1):
            raise InputError(f"code_noise must be at least 0, or -1; given {self.code_noise!r}")
        if self.dataset in ARCHITECTURES:
            self.check_architecture()

    def _check_dataset(self) -> None:
        if self.dataset not in ARCHITECTURES and not (self.image_size and self.channels):
            raise InputError(f"for {self.dataset}, which is no data set of the paper, give image_size and channels")

    def check_architecture(self) -> None:
        """Check settings that depend on the size of images."""
        numbers = self.architecture
        if numbers.nonzeros > numbers.latent:
            raise InputError(
                f"a row of the control has {numbers.latent} places, as the code has dimensions; {numbers.nonzeros}"
                " non-zeros do not fit: raise latent, or lower nonzeros"
            )

    @property
    def image_shape(self) -> tuple[int, int]:
        """Channels and side length of images of your own."""
        return self.channels, self.image_size

    @property
    def architecture(self) -> Architecture:
        if self.dataset in ARCHITECTURES:
            paper = architecture(self.dataset, width=self.width)
        else:
            paper = own_architecture(*self.image_shape, width=self.width)
        return paper._replace(latent=self.latent or paper.latent, nonzeros=self.nonzeros or paper.nonzeros)

    @property
    def colour(self) -> bool:
        return self.architecture.channels == 3

    @property
    def loss(self) -> str:
        """The error of images as in the paper: "bce" for MNIST, "mse" otherwise."""
        return "bce" if self.dataset == "mnist" else "mse"

    @property
    def flow(self) -> Flow:
        best = COLOUR_FLOW if self.colour else DIGIT_FLOW
        norm = best.norm if self.norm == "auto" else self.norm
        return Flow(norm, self.gain or best.gain, best.start if self.start == "auto" else self.start)

    def noise_of(self, kind: str) -> float:
        if self.code_noise >= 0:
            return self.code_noise
        return 0.25 if self.colour and kind != "vae" else 0.0

    def latent_of(self, kind: str) -> int:
        return self.architecture.latent * (2 if kind == "ae-wide" else 1)


def build_autoencoder(kind: str, settings: AutoencoderSettings, seed: int = 0) -> Autoencoder:
    """A new autoencoder; `seed` is that of AutoN-CODE's sparsity pattern and of its x(0).

    - auton-code: the code is the end of a flow; rotation: of one with a skew-symmetric control.
    - sphere: the code is a point on a sphere, without a flow; sphere-exp: the exponential of its values.
    - ae: the code is a linear map of features; ae-wide: of twice the dimensions; sparse, denoising: trained otherwise.
    - vae: variational.
    """
    check_choice("model", kind, KINDS)
    sizes, latent = settings.architecture, settings.latent_of(kind)
    encoder, decoder = Encoder(sizes), Decoder(sizes, latent, settings.standardise)
    terms = {"texture": Texture(settings.texture)} if settings.texture and settings.colour else {}
    parts = (encoder, decoder, encoder.width, latent, settings.loss)
    common = {"code_noise": CodeNoise(settings.noise_of(kind)), "terms": terms}
    match kind:
        case "auton-code" | "rotation":
            costs = [KineticEnergy(settings.kinetic_cost)] if settings.kinetic_cost else []
            flow = {**settings.flow._asdict(), "horizon": HORIZON, "costs": costs, "seed": seed}
            build = AutoNCODE if kind == "auton-code" else RotationCode
            return build(*parts, sizes.nonzeros, **flow, **common)
        case "sphere" | "sphere-exp":
            horizon = HORIZON if kind == "sphere-exp" else 0.0
            return SphereCode(*parts, gain=settings.flow.gain, horizon=horizon, **common)
        case "vae":
            # Binary cross-entropy is a likelihood as it is.
            beta = settings.beta or (1.0 if settings.loss == "bce" else 0.04)
            return VariationalAutoencoder(*parts, beta=beta, **common)
        case "sparse":
            return PlainAutoencoder(*parts, sparsity=SPARSITY, **common)
        case "denoising":
            return PlainAutoencoder(*parts, noise=IMAGE_NOISE, **common)
        case _:
            return PlainAutoencoder(*parts, **common)
