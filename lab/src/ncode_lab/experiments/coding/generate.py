"""Fit densities to codes, sample from them, decode the samples and score the images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ncode import InputError
from ncode.models import Autoencoder

from ...data import Images, ImageSets, stream
from ...metrics import GaussianMixture, KernelDensity
from ...training import Column, Reported, Result, Trial, TrialContext
from ...wording import model_name
from ..base import Finished, Picture
from ..common import check_choices, check_not_negative, check_positive, draw_per_dataset, first_seeds
from .codes import Units, decode, encode
from .scoring import FID, OTHER, Judge, Names, Scored
from .settings import FULL, PAPER, QUICK, SMOKE, Coding

Protocol = Literal["paper", "honest"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
SHOWN = 36  # samples of each density that are drawn
COMPARED = 500  # samples whose nearest neighbours are searched
PATIENCE = 10  # seconds that a fit may take before its expected duration is printed
REG_COVAR = 1e-6  # added to every variance of a component, in units of the variance of the codes

Line = dict[float, float]  # a score at each number of components, or width

WIDTHS_AXIS = "width of the kernels / deviation of the codes"
CAPTION = (
    "{score} of images drawn from {densities} against {axis}, averaged over the seeds that have all of them. Dotted:"
    " test images that were only coded and decoded."
)

# The paper's FIDs: a VAE sampled from its prior, and mixtures of 100 and of 1,000 components.
_PAPER_FID = {
    "cifar10": {"vae": (105.45,), "ae": (73.24, 55.55), "auton-code": (34.90, 24.19)},
    "celeba": {"vae": (68.07,), "ae": (63.11, 55.60), "auton-code": (55.27, 52.47)},
}
_SMOKE = {"components": (2, 8), "widths": (0.1, 0.5), "score": "random"}
_QUICK = {"components": (10, 30, 100, 300), "score": "random"}
_CODES = {"paper": "test codes", "honest": "training codes"}


def _columns(
    names: Names, components: Sequence[int], protocols: Sequence[str], prior: bool = True
) -> tuple[Column, ...]:
    """Columns of tables: the floor, one per mixture and protocol, and KID of the largest mixtures."""
    frechet, kernel, digits, largest = names.frechet, names.kernel, names.kernel_digits, max(components)
    pairs = [(protocol, count) for protocol in protocols for count in components]
    titles = {pair: f"{pair[1]:,} components, {_CODES[pair[0]]}" for pair in pairs}
    columns = [Column(f"{frechet} floor", f"{names.title}, coded and decoded")]
    columns += [Column(f"{frechet} {each} {n}", f"{names.short}, {titles[each, n]}") for each, n in pairs]
    columns += [Column(f"{frechet} prior", f"{names.short}, codes from N(0, I)")] if prior else []
    columns += [Column(f"{kernel} floor", f"{names.kernel_title}, coded and decoded", digits)]
    for each in protocols:
        columns.append(Column(f"{kernel} {each} {largest}", f"{names.kernel_title}, {titles[each, largest]}", digits))
    return tuple(columns)


def _reported() -> tuple[Reported, ...]:
    found = []
    for dataset, part in (("cifar10", ""), ("celeba", ""), ("celeba", " (first 10k)")):
        note = "on all of CelebA" if part else ""
        numbers = _PAPER_FID[dataset]
        # Published results on CIFAR-10 have 36 epochs.
        for label in (dataset + part, f"{dataset}{part}, epochs 36", f"{dataset}{part}, paper"):
            found.append(Reported("vae", label, "fid prior", numbers["vae"][0], note))
            for model in ("ae", "auton-code"):
                for count, value in zip((100, 1000), numbers[model], strict=True):
                    found.append(Reported(model, label, f"fid paper {count}", value, note))
    return tuple(found)


@dataclass(frozen=True)
class Generate(Scored):
    """Fit densities to codes, sample from them, decode the samples and score the images.

    There are two protocols. The paper's fits densities to the codes of test images, and scores samples against those
    same images: with as many components as images it reproduces the test set. The honest one fits them to the codes of
    training images. FID compares as many samples as there are test images with those; the floor is that of test images
    which were only coded and decoded.
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
        "smoke": {**SMOKE, **_SMOKE, "models": ("auton-code", "ae")},
        "quick": {**QUICK, **_QUICK, "models": ("auton-code", "ae", "vae")},
        "full": FULL,
        "paper": PAPER,
    }
    columns = _columns(FID, (10, 100, 1000), PROTOCOLS)
    paper = _reported()
    judged_by: ClassVar[tuple[str, ...]] = ("codes",)
    retired: ClassVar[Mapping[str, Any]] = {
        **Coding.retired,
        "samples": 0,
        "covariance": "full",
        "reg_covar": REG_COVAR,
        "space": "code",
    }

    components: tuple[int, ...] = (10, 100, 1000, 10_000)
    """Components of the mixtures."""
    widths: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    """Widths of the kernel densities, relative to the standard deviation of each value of a code."""
    protocols: tuple[Protocol, ...] = PROTOCOLS
    """paper: densities of test codes, scored on the test images. honest: densities of training codes."""
    codes: int = 0
    """Training codes that the honest protocol fits densities to. 0: as many as there are test images, so that the
    protocols differ only in whose codes they use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("protocol", self.protocols, PROTOCOLS)
        check_not_negative(self, "codes")
        check_positive(self, "components", "widths")
        if not self.components:
            raise InputError("components must name at least one number")
        names = OTHER if self.weights is None else FID
        object.__setattr__(self, "columns", _columns(names, self.components, self.protocols, "vae" in self.models))

    @property
    def metrics(self) -> tuple[str, ...]:
        names = OTHER if self.weights is None else FID
        densities = [*map(str, self.components), *(f"width {width}" for width in self.widths)]
        kinds = [f"{protocol} {density}" for protocol in self.protocols for density in densities]
        scores = [f"{score} {kind}" for score in (names.frechet, names.kernel, "nearer") for kind in kinds]
        return (*super().metrics, *scores, f"{names.kernel} prior")

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed. Mixtures with more components than codes are refused here, before training."""
        sets = self.sets()
        have = {"paper": len(sets.test), "honest": min(self.codes or len(sets.test), len(sets.train))}
        for protocol in self.protocols:
            if max(self.components) > have[protocol]:
                raise InputError(
                    f"a mixture of {max(self.components)} components needs at least as many codes, and the protocol"
                    f" {protocol!r} has {have[protocol]}: leave the largest of --components out, or use more images"
                )
        return super().trials(seeds)

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        model, _ = self.trained(trial, context)
        sets = self.sets().to(context.device)
        scoring = _Scoring(self, trial, context, model, sets, self.judge(sets.test.images, context), {}, {})
        metrics = scoring.scores("floor", decode(model, encode(model, sets.test)))
        for protocol in self.protocols:
            metrics |= scoring.protocol(protocol)
        context.save_tensors("samples", **scoring.samples)
        context.save_tensors("neighbours", **scoring.neighbours)
        if trial.model == "vae":
            noise = torch.randn(len(sets.test), self.latent_of("vae"), generator=stream(trial.seed, "prior"))
            metrics |= scoring.scores("prior", decode(model, noise))
        return metrics

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        from .figures import draw_neighbours, draw_samples

        if not finished:
            return []
        first = first_seeds(finished)
        pictures = []
        for protocol in self.protocols:
            keys = {f"{count:,} components": f"{protocol} {count}" for count in self.components}
            saved = {model: done.load("samples") for model, done in first.items()}
            samples = {model: {name: saved[model][key] for name, key in keys.items()} for model in first}
            caption = f"Images drawn from mixtures of {_CODES[protocol]} by number of components, one model per row."
            pictures.append(Picture(f"samples-{protocol}", draw_samples(samples), caption))
        pictures += score_pictures([done.result for done in finished], self.paper)
        chosen = first.get("auton-code", finished[0])
        caption = (
            f"Samples of {model_name(chosen.trial.model)}, and the test images nearest to each. Percentages: samples"
            " that are nearer to some test image than to any of as many training images: about half if nothing is"
            " remembered, more if test images are, and fewer if training images are."
        )
        pictures.append(Picture("neighbours", draw_neighbours(self._neighbours(chosen)), caption))
        return pictures

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        return draw_per_dataset(results, lambda some: score_pictures(some, cls.paper))

    @property
    def largest(self) -> tuple[int, ...]:
        """The two largest mixtures, whose samples are compared with test images."""
        return tuple(sorted(self.components)[-2:])

    def _neighbours(self, done: Finished) -> dict[str, Any]:
        from .figures import Neighbours

        saved, found = done.load("neighbours"), {}
        for protocol in self.protocols:
            for count in self.largest:
                key = f"{protocol} {count}"
                nearer = done.result.metrics[f"nearer {key}"]
                neighbours = Neighbours(saved[f"samples {key}"], saved[f"nearest {key}"], nearer)
                found[f"{count:,} components\n{_CODES[protocol]}"] = neighbours
        return found


class _Scoring(NamedTuple):
    """The scoring of one model. Samples and their neighbours are collected for the figures."""

    settings: Generate
    trial: Trial
    context: TrialContext
    model: Autoencoder
    sets: ImageSets
    judge: Judge
    samples: dict[str, Tensor]
    neighbours: dict[str, Tensor]

    def protocol(self, protocol: str) -> dict[str, float]:
        """Scores of all densities of one set of codes."""
        test, train = self.sets.test, self.sets.train
        fitted = test if protocol == "paper" else train.take(slice(0, self.settings.codes or len(test)))
        raw = encode(self.model, fitted)
        units = Units.of(raw)
        codes, metrics = units(raw), {}
        for count in self.settings.components:
            key = f"{protocol} {count}"
            images = self._draw(self._fit(count, codes, protocol), units, key)
            metrics |= self.scores(key, images)
            self.samples[key] = images[:SHOWN]
            if count in self.settings.largest:
                nearest, metrics[f"nearer {key}"] = neighbours_of(images[:COMPARED], self.sets)
                self.neighbours.update({f"samples {key}": images[:8], f"nearest {key}": nearest[:8]})
        for width in self.settings.widths:
            key = f"{protocol} width {width}"
            metrics |= self.scores(key, self._draw(KernelDensity(codes, width), units, key))
        return metrics

    def scores(self, key: str, images: Tensor) -> dict[str, float]:
        """Both scores of images, with the key in their names."""
        return {f"{name} {key}": value for name, value in self.judge(images).items()}

    def _fit(self, count: int, codes: Tensor, protocol: str) -> GaussianMixture:
        mixture = GaussianMixture(count, reg_covar=REG_COVAR)
        title = f"{self.trial.name}  mixture of {count} components of {len(codes)} {_CODES[protocol]}"
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
        # As many as there are test images: FID depends on the number of images.
        codes = density.sample(len(self.sets.test), stream(self.trial.seed, "samples", key))
        return decode(self.model, units.undo(codes))


def score_pictures(results: Sequence[Result], paper: Sequence[Reported]) -> list[Picture]:
    """Scores of mixtures and of kernel densities, of results on one data set."""
    from .figures import draw_scores

    # As the results have it: the weights of the FID network may have been found or lost since.
    names = FID if "fid floor" in results[0].metrics else OTHER
    stars, pictures = _stars(results[0].dataset, paper) if names == FID else {}, []
    for name, prefix, axis, densities, against in (
        ("components", "", "components of the mixture", "mixtures", "their number of components"),
        ("widths", "width ", WIDTHS_AXIS, "kernel densities", "the width of the kernels"),
    ):
        lines, floors = _lines(results, names, prefix)
        if lines:
            figure = draw_scores(lines, floors, axis, names.title, {} if prefix else stars)
            caption = CAPTION.format(score=names.title, densities=densities, axis=against)
            pictures.append(Picture(name, figure, caption))
    return pictures


def neighbours_of(images: Tensor, sets: ImageSets, count: int = 4) -> tuple[Tensor, float]:
    """The nearest test images (n, count, C, H, W), and how often one is nearer than any of as many training images."""
    same = min(len(sets.test), len(sets.train))
    of_test, index = _nearest(images, sets.test.take(slice(0, same)), min(count, same))
    of_train, _ = _nearest(images, sets.train.take(slice(0, same)), 1)
    return sets.test.images[index], float((of_test[:, 0] < of_train[:, 0]).double().mean())


def _nearest(images: Tensor, among: Images, count: int) -> tuple[Tensor, Tensor]:
    """Pixel distances to the nearest images, and their indices."""
    x = images.flatten(1).float()
    parts = [torch.cdist(x, part.flatten(1).float()) for part in among.images.split(5000)]
    found = torch.cat(parts, 1).topk(count, largest=False)
    return found.values, found.indices


def _lines(results: Sequence[Result], names: Names, kind: str) -> tuple[dict[str, dict[str, Line]], dict[str, float]]:
    """A line for each model and protocol over the scored components or widths, and the floors.

    Of each model only the seeds with the most scores are used: a line is an average over the same seeds throughout.
    """
    pattern = re.compile(rf"{names.frechet} (paper|honest) {kind}([0-9.e-]+)")
    scored: dict[str, dict[frozenset[str], list[Result]]] = {}
    for result in results:
        if metrics := frozenset(filter(pattern.fullmatch, result.metrics)):
            scored.setdefault(result.model, {}).setdefault(metrics, []).append(result)
    lines: dict[str, dict[str, Line]] = {}
    floors: dict[str, float] = {}
    for model, by_metrics in scored.items():
        metrics = max(by_metrics, key=len)
        seeds = by_metrics[metrics]
        floors[model] = fmean(seed.metrics[f"{names.frechet} floor"] for seed in seeds)
        found: dict[str, Line] = {}
        for metric in metrics:
            match = pattern.fullmatch(metric)
            assert match
            found.setdefault(match[1], {})[float(match[2])] = fmean(seed.metrics[metric] for seed in seeds)
        # The paper's protocol first.
        lines[model] = {each: dict(sorted(found[each].items())) for each in sorted(found, reverse=True)}
    return lines, floors


def _stars(dataset: str, paper: Sequence[Reported]) -> dict[str, Line]:
    """The paper's numbers for mixtures, by model."""
    found: dict[str, Line] = {}
    for each in paper:
        count = each.metric.removeprefix("fid paper ")
        if each.dataset == dataset and count.isdigit():
            found.setdefault(each.model, {})[float(count)] = each.value
    return found
