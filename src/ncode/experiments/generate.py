"""Sampling from densities of codes (section 4.5 and appendix C.6 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..data import ImageSets, stream
from ..metrics import GaussianMixture, KernelDensity
from ..models.autoencoder import Autoencoder
from ..solve import InputError
from ..solve.problem import choose
from ..training import Column, Desk, Reported, Trial
from .base import Finished, Picture
from .checks import check_choices, check_positive
from .coding import decode, encode
from .coding_recipes import PAPER, QUICK, SMOKE
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
    """What tables show: the floor, and a column for each mixture and protocol."""
    mixtures = [
        Column(
            f"{names.frechet} {protocol} {count}", f"{names.short}, {count:,} components, {_WORDS[protocol]}", digits=2
        )
        for protocol in protocols
        for count in components
    ]
    floor = Column(f"{names.frechet} floor", f"{names.title}, coded and decoded", digits=2)
    drawn = Column(f"{names.frechet} prior", f"{names.short}, codes from N(0, I)", digits=2)
    return (floor, *mixtures, *[drawn] * prior)


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
    codes of training images. FID is of 10,000 samples against all test images; that of test images which were only
    coded and decoded is the floor.
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
            "samples": 60,
            "score": "random",
        },
        "quick": {
            **QUICK,
            "models": ("auton-code", "ae", "vae"),
            "components": (10, 30, 100, 300),
            "samples": 2500,
            "score": "random",
        },
        "paper": PAPER,
    }
    columns = _columns(FID, (10, 100, 1000, 10_000), PROTOCOLS)
    paper = _reported()

    judged_by: ClassVar[tuple[str, ...]] = ("samples", "codes", "covariance", "reg_covar", "space")

    components: tuple[int, ...] = (10, 100, 1000, 10_000)
    """Components of the mixtures."""
    widths: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    """Widths of the kernel densities, relative to the deviation of a code's values."""
    protocols: tuple[Protocol, ...] = PROTOCOLS
    """paper: densities of test codes, scored on the test images. honest: densities of training codes."""
    samples: int = 10_000
    """Images to draw from each density."""
    codes: int = 0
    """Training codes that the honest protocol fits densities to. 0: as many as there are test images, so that the
    protocols differ in nothing but whose codes they take."""
    covariance: Covariance = "full"
    """Of the mixtures' components."""
    reg_covar: float = 1e-6
    """Added to every variance of a component."""
    space: Space = "code"
    """What densities are fitted to: codes, or the controls that lead to them, for auton-code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("protocol", self.protocols, PROTOCOLS)
        choose("covariance", self.covariance, get_args(Covariance))
        choose("space", self.space, get_args(Space))
        check_positive(samples=self.samples)
        if self.codes < 0 or self.reg_covar < 0:
            raise InputError(f"codes and reg_covar must be at least 0; given {self.codes} and {self.reg_covar:g}")
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

    def run(self, trial: Trial, desk: Desk) -> dict[str, float]:
        """Train a model or take it, fit densities to its codes, and score samples."""
        model = self.trained(trial, desk).model
        here = self.sets().to(desk.device)
        work = _Work(self, trial, desk, model, here, self.judge(here.test.images, desk))
        metrics = work.scores("floor", decode(model, encode(model, here.test)))
        for protocol in self.protocols:
            metrics |= work.protocol(protocol)
        if trial.model == "vae":
            noise = torch.randn(self.samples, self.latent_of("vae"), generator=stream(trial.seed, "prior"))
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
        from ..figures.generate import draw_neighbours, draw_samples, draw_scores

        if not finished:
            return []
        pictures, names = [], self.names(finished)
        for protocol in self.protocols:
            samples = {done.trial.model: self._samples(done, protocol) for done in reversed(finished)}
            samples = {model: samples[model] for model in dict.fromkeys(done.trial.model for done in finished)}
            caption = f"Images drawn from mixtures of {_WORDS[protocol]} by number of components, a model a row."
            pictures.append(Picture(f"samples-{protocol}", draw_samples(samples), caption))
        floors = means(finished, f"{names.frechet} floor")
        lines = self._lines(finished, names, "", self.components)
        stars = self._stars(finished, names)
        caption = (
            f"{names.title} of images drawn from mixtures against their number of components, mean over seeds. Dotted:"
            " test images that were only coded and decoded."
        )
        figure = draw_scores(lines, floors, "components of the mixture", names.title, stars)
        pictures.append(Picture("components", figure, caption))
        if self.widths:
            lines = self._lines(finished, names, "width ", self.widths)
            caption = f"{names.title} of images drawn from kernel densities against the width of the kernels."
            axis = "width of the kernels / deviation of the codes"
            pictures.append(Picture("widths", draw_scores(lines, floors, axis, names.title), caption))
        first = next((done for done in finished if done.trial.model == "auton-code"), finished[0])
        caption = (
            f"Samples of {title(first.trial.model)}, and the test images nearest to each. Percentages: how many samples"
            " are nearer to some test image than to any of as many training images: about half where nothing is"
            " remembered, more where test images are, and fewer where training images are."
        )
        pictures.append(Picture("neighbours", draw_neighbours(self._neighbours(first)), caption))
        return pictures

    def names(self, finished: Sequence[Finished]) -> Names:
        """What the scores of a run are called: the weights may have come or gone since."""
        return FID if "fid floor" in finished[0].result.metrics else OTHER

    def _samples(self, done: Finished, protocol: str) -> dict[str, Tensor]:
        kept = done.load("samples")
        return {f"{count:,} components": kept[f"{protocol} {count}"] for count in self.components}

    def _lines(self, finished: Sequence[Finished], names: Names, kind: str, places: Sequence[float]) -> dict[str, Any]:
        from ..figures.generate import Scores

        lines: dict[str, Any] = {}
        for protocol in self.protocols:
            columns = [means(finished, f"{names.frechet} {protocol} {kind}{place}") for place in places]
            for model in dict.fromkeys(done.trial.model for done in finished):
                lines.setdefault(model, {})[protocol] = Scores(places, [column[model] for column in columns])
        return lines

    def _stars(self, finished: Sequence[Finished], names: Names) -> dict[str, Any]:
        from ..figures.generate import Scores

        told = [each for each in self.paper if each.dataset == self.data_name() and each.metric != "fid prior"]
        stars = {} if names != FID else {each.model: each for each in told}
        values = {model: [each.value for each in told if each.model == model] for model in stars}
        return {model: Scores((100, 1000), value) for model, value in values.items()}

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


def means(finished: Sequence[Finished], metric: str) -> dict[str, float]:
    """The mean of a metric over seeds, a model."""
    found: dict[str, list[float]] = {}
    for done in finished:
        if metric in done.result.metrics:
            found.setdefault(done.trial.model, []).append(done.result.metrics[metric])
    return {model: sum(values) / len(values) for model, values in found.items()}


class _Work(NamedTuple):
    """The scoring of one model."""

    settings: Generate
    trial: Trial
    desk: Desk
    model: Autoencoder
    sets: ImageSets
    judge: Judge

    @property
    def control(self) -> bool:
        return self.settings.space == "control" and self.trial.model == "auton-code"

    def protocol(self, protocol: str) -> dict[str, float]:
        """The scores of all densities of one set of codes. Pictures are kept as they come."""
        codes, metrics, pictures, neighbours = self._codes(protocol), {}, {}, {}
        for count in self.settings.components:
            key = f"{protocol} {count}"
            images = self._draw(self._fit(count, codes, protocol), key)
            metrics |= self.scores(key, images)
            pictures[key] = images[:SHOWN]
            if count in self.settings._looked_at:
                near, nearer = neighbours_of(images[:LOOKED], self.sets)
                metrics[f"nearer {key}"] = nearer
                neighbours |= {f"samples {key}": images[:8], f"nearest {key}": near[:8]}
        spread = float(codes.var(0).mean().sqrt())
        for width in self.settings.widths:
            key = f"{protocol} width {width}"
            metrics |= self.scores(key, self._draw(KernelDensity(codes, width * spread), key))
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
        self.desk.say(f"{title}, {seconds:.0f} s at most" if seconds > PATIENCE else title)
        bar = self.desk.progress
        bar.start(title, mixture.max_iterations)
        try:
            return mixture.fit(
                codes,
                generator=stream(self.trial.seed, "mixture", f"{protocol} {count}"),
                progress=lambda stage, done, of: bar.update(done, {}) if stage == "mixture" else None,
            )
        finally:
            bar.finish()

    def _draw(self, density: GaussianMixture | KernelDensity, key: str) -> Tensor:
        codes = density.sample(self.settings.samples, stream(self.trial.seed, "samples", key))
        return decode(self.model, codes, self.control)

    def _keep(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Beside what the other protocol has kept."""
        path = self.desk.folder / "kept" / f"{name}.safetensors"
        before: dict[str, Tensor] = {}
        if path.is_file():
            from safetensors.torch import load_file

            before = load_file(path)
        self.desk.keep(name, **{**before, **tensors})
