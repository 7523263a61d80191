"""Sampling from densities of codes (section 4.5 and appendix C.6 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_choice
from ncode.models.autoencoder import Autoencoder

from ..data import ImageSets, stream
from ..metrics import GaussianMixture, KernelDensity
from ..training import Column, Reported, Result, Trial, TrialContext
from .base import Finished, Picture
from .checks import check_choices
from .code_units import Units
from .coding import decode, encode
from .coding_recipes import PAPER, QUICK, SMOKE
from .coding_results import each_dataset
from .generate_scores import score_pictures
from .neighbours import neighbours_of
from .scoring import FID, OTHER, Judge, Names, Scored

Protocol = Literal["paper", "honest"]
Space = Literal["code", "control"]
Covariance = Literal["full", "diagonal"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
SHOWN = 36  # samples of each density that are drawn
LOOKED = 500  # samples whose nearest neighbours are looked for
PATIENCE = 10  # seconds that a fit may take before it is said how long it may take

# Of the paper: a VAE sampled from its prior, and mixtures of 100 and of 1,000 components.
_PAPER = {
    "cifar10": {"vae": (105.45,), "ae": (73.24, 55.55), "auton-code": (34.90, 24.19)},
    "celeba": {"vae": (68.07,), "ae": (63.11, 55.60), "auton-code": (55.27, 52.47)},
}
_WORDS = {"paper": "test codes", "honest": "training codes"}


def _columns(
    names: Names, components: Sequence[int], protocols: Sequence[str], prior: bool = True
) -> tuple[Column, ...]:
    """What tables show: the floor, a column for each mixture and protocol, and KID of the largest mixtures."""

    def column(metric: str, title: str, key: str, digits: int = 2) -> Column:
        return Column(f"{metric} {key}", title, digits)

    words = {
        f"{protocol} {count}": f"{count:,} components, {_WORDS[protocol]}"
        for protocol in protocols
        for count in components
    }
    largest = [f"{protocol} {max(components)}" for protocol in protocols]
    return (
        column(names.frechet, f"{names.title}, coded and decoded", "floor"),
        *[column(names.frechet, f"{names.short}, {text}", key) for key, text in words.items()],
        *[column(names.frechet, f"{names.short}, codes from N(0, I)", "prior")] * prior,
        column(names.kernel, f"{names.kernel_title}, coded and decoded", "floor", names.kernel_digits),
        *[column(names.kernel, f"{names.kernel_title}, {words[key]}", key, names.kernel_digits) for key in largest],
    )


def _reported() -> tuple[Reported, ...]:
    found = []
    for dataset, part in (("cifar10", ""), ("celeba", ""), ("celeba", " (first 10k)")):
        note = "on all of CelebA" if part else ""
        numbers = _PAPER[dataset]
        found.append(Reported("vae", dataset + part, "fid prior", numbers["vae"][0], note))
        for model in ("ae", "auton-code"):
            for count, value in zip((100, 1000), numbers[model], strict=True):
                found.append(Reported(model, dataset + part, f"fid paper {count}", value, note))
    return tuple(found)


@dataclass(frozen=True)
class Generate(Scored):
    """Fit densities to codes, draw new ones, decode them, and score what comes out.

    Two protocols stand side by side. The paper's fits densities to the codes of test images, and scores samples against
    those same images: with as many components as images it hands back the test set. The honest one fits them to the
    codes of training images. FID is of as many samples as there are test images, against those; that of test images
    which were only coded and decoded is the floor.
    """

    name = "generate"
    line = "new images from mixtures and kernel densities of codes, by FID (section 4.5, appendix C.6)"
    question = (
        "A Gaussian mixture fitted to codes turns an autoencoder into a generator. Are AutoN-CODE's codes easier to fit"
        " than those of an autoencoder, of one twice the size, or of a VAE, at the same number of components? And how"
        " much of a low score is memory: compare densities of test codes, which the paper uses, with those of training"
        " codes, and look at the test images nearest to samples."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {
            **SMOKE,
            "models": ("auton-code", "ae"),
            "components": (2, 8),
            "widths": (0.1, 0.5),
            "score": "random",
        },
        "quick": {
            **QUICK,
            "models": ("auton-code", "ae", "vae"),
            "components": (10, 30, 100, 300),
            "score": "random",
        },
        "paper": PAPER,
    }
    columns = _columns(FID, (10, 100, 1000), PROTOCOLS)
    paper = _reported()

    judged_by: ClassVar[tuple[str, ...]] = ("samples", "codes", "covariance", "reg_covar", "space")

    components: tuple[int, ...] = (10, 100, 1000, 10_000)
    """Components of the mixtures."""
    widths: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    """Widths of the kernel densities, in each value of a code relative to its deviation."""
    protocols: tuple[Protocol, ...] = PROTOCOLS
    """paper: densities of test codes, scored on the test images. honest: densities of training codes."""
    samples: int = 0
    """Images to draw from each density. 0: as many as there are test images, as many as the floor has: FID depends on
    how many images it is of."""
    codes: int = 0
    """Training codes that the honest protocol fits densities to. 0: as many as there are test images, so that the
    protocols differ in nothing but whose codes they take."""
    covariance: Covariance = "full"
    """Of the mixtures' components."""
    reg_covar: float = 1e-6
    """Added to every variance of a component, relative to the variance of all codes in that value."""
    space: Space = "code"
    """What densities are fitted to: codes, or the controls that lead to them, for auton-code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("protocol", self.protocols, PROTOCOLS)
        check_choice("covariance", self.covariance, get_args(Covariance))
        check_choice("space", self.space, get_args(Space))
        for name in ("samples", "codes", "reg_covar"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0; given {getattr(self, name)!r}")
        for name in ("components", "widths"):
            if not all(value > 0 for value in getattr(self, name)):
                raise InputError(f"{name} must be above 0; given {getattr(self, name)}")
        if not self.components:
            raise InputError("components must name at least one number")
        names = OTHER if self.weights is None else FID
        object.__setattr__(self, "columns", _columns(names, self.components, self.protocols, "vae" in self.models))

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed."""
        self._check_components(self.sets())
        return super().trials(seeds)

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Train a model or take it, fit densities to its codes, and score samples."""
        model = self.trained(trial, context).model
        here = self.sets().to(context.device)
        work = _Work(self, trial, context, model, here, self.judge(here.test.images, context))
        metrics = work.scores("floor", decode(model, encode(model, here.test)))
        for protocol in self.protocols:
            metrics |= work.protocol(protocol)
        if trial.model == "vae":
            noise = torch.randn(work.samples, self.latent_of("vae"), generator=stream(trial.seed, "prior"))
            metrics |= work.scores("prior", decode(model, noise))
        return metrics

    def _check_components(self, sets: ImageSets) -> None:
        """Refuse a mixture of more components than there are codes."""
        have = {"paper": len(sets.test), "honest": min(self.codes or len(sets.test), len(sets.train))}
        for protocol in self.protocols:
            if max(self.components) > have[protocol]:
                raise InputError(
                    f"a mixture of {max(self.components)} components needs at least as many codes, and the protocol"
                    f" {protocol!r} has {have[protocol]}: leave the largest of --components out, or use more images"
                )

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Samples, scores and neighbours."""
        from ..figures.coding import title
        from ..figures.generate import draw_neighbours, draw_samples

        if not finished:
            return []
        pictures, shown = [], {}
        for done in finished:
            shown.setdefault(done.trial.model, done)  # of the first seed
        for protocol in self.protocols:
            samples = {model: self._samples(done, protocol) for model, done in shown.items()}
            caption = f"Images drawn from mixtures of {_WORDS[protocol]} by number of components, a model a row."
            pictures.append(Picture(f"samples-{protocol}", draw_samples(samples), caption))
        pictures += score_pictures([done.result for done in finished], self.paper)
        first = shown.get("auton-code", finished[0])
        caption = (
            f"Samples of {title(first.trial.model)}, and the test images nearest to each. Percentages: how many samples"
            " are nearer to some test image than to any of as many training images: about half where nothing is"
            " remembered, more where test images are, and fewer where training images are."
        )
        pictures.append(Picture("neighbours", draw_neighbours(self._neighbours(first)), caption))
        return pictures

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """Scores against components and widths, of each data set.

        >>> about = ("cifar10", "paper", 0, {}, {"fid floor": 30.0, "fid paper 10": 90.0, "fid paper 100": 60.0})
        >>> results = [Result("generate", model, *about, 1, 1.0, "", {}, "", "") for model in ("auton-code", "ae")]
        >>> [picture.name for picture in Generate.redraw(results)]
        ['components-cifar10']
        """
        return each_dataset(results, lambda some: score_pictures(some, cls.paper))

    def _samples(self, done: Finished, protocol: str) -> dict[str, Tensor]:
        kept = done.load("samples")
        return {f"{count:,} components": kept[f"{protocol} {count}"] for count in self.components}

    def _neighbours(self, done: Finished) -> dict[str, Any]:
        from ..figures.generate import Neighbours

        kept, found = done.load("neighbours"), {}
        for protocol in self.protocols:
            for count in self._looked_at:
                key = f"{protocol} {count}"
                name = f"{count:,} components\n{_WORDS[protocol]}"
                nearer = done.result.metrics[f"nearer {key}"]
                found[name] = Neighbours(kept[f"samples {key}"], kept[f"nearest {key}"], nearer)
        return found

    @property
    def _looked_at(self) -> tuple[int, ...]:
        """The two largest mixtures."""
        return tuple(sorted(self.components)[-2:])


class _Work(NamedTuple):
    """The scoring of one model."""

    settings: Generate
    trial: Trial
    context: TrialContext
    model: Autoencoder
    sets: ImageSets
    judge: Judge

    @property
    def samples(self) -> int:
        return self.settings.samples or len(self.sets.test)

    @property
    def control(self) -> bool:
        return self.settings.space == "control" and self.trial.model == "auton-code"

    def protocol(self, protocol: str) -> dict[str, float]:
        """The scores of all densities of one set of codes. Pictures are kept as they come."""
        found, metrics, pictures, neighbours = self._codes(protocol), {}, {}, {}
        units = Units.of(found)
        codes = units(found)
        for count in self.settings.components:
            key = f"{protocol} {count}"
            images = self._draw(self._fit(count, codes, protocol), units, key)
            metrics |= self.scores(key, images)
            pictures[key] = images[:SHOWN]
            if count in self.settings._looked_at:
                near, nearer = neighbours_of(images[:LOOKED], self.sets)
                metrics[f"nearer {key}"] = nearer
                neighbours |= {f"samples {key}": images[:8], f"nearest {key}": near[:8]}
        for width in self.settings.widths:
            key = f"{protocol} width {width}"
            metrics |= self.scores(key, self._draw(KernelDensity(codes, width), units, key))
        self._keep("samples", pictures)
        self._keep("neighbours", neighbours)
        return metrics

    def scores(self, key: str, images: Tensor) -> dict[str, float]:
        """Both scores of images, under names that say of what."""
        return {f"{name} {key}": value for name, value in self.judge(images).items()}

    def _codes(self, protocol: str) -> Tensor:
        test, train = self.sets.test, self.sets.train
        images = test if protocol == "paper" else train.take(slice(0, self.settings.codes or len(test)))
        return encode(self.model, images, self.control)

    def _fit(self, count: int, codes: Tensor, protocol: str) -> GaussianMixture:
        """A mixture of codes. Where there is no GPU it may take long: then it is said how long at most."""
        mixture = GaussianMixture(count, self.settings.covariance, reg_covar=self.settings.reg_covar)
        title = f"{self.trial.name}  mixture of {count} components of {len(codes)} {_WORDS[protocol]}"
        seconds = 0.0 if codes.is_cuda else mixture.estimate(codes)
        self.context.info(f"{title}, {seconds:.0f} s at most" if seconds > PATIENCE else title)
        bar = self.context.progress
        bar.start(title, mixture.max_iterations)
        try:
            return mixture.fit(
                codes,
                generator=stream(self.trial.seed, "mixture", f"{protocol} {count}"),
                progress=lambda stage, done, of: bar.update(done, {}) if stage == "mixture" else None,
            )
        finally:
            bar.finish()

    def _draw(self, density: GaussianMixture | KernelDensity, units: Units, key: str) -> Tensor:
        codes = density.sample(self.samples, stream(self.trial.seed, "samples", key))
        return decode(self.model, units.undo(codes), self.control)

    def _keep(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Beside what the other protocol has kept."""
        path = self.context.folder / "kept" / f"{name}.safetensors"
        before: dict[str, Tensor] = {}
        if path.is_file():
            from safetensors.torch import load_file

            before = load_file(path)
        self.context.save_tensors(name, **{**before, **tensors})
