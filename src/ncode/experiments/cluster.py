"""Clusters of codes (appendix C.7 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data import stream
from ..metrics import (
    GaussianMixture,
    clustering_accuracy,
    k_means,
    normalised_mutual_information,
    spectral_clusters,
    t_sne,
)
from ..models.autoencoder_family import KINDS, Kind
from ..solve import InputError
from ..training import Column, Desk, Reported, Trial
from .base import Finished, Picture
from .checks import check_positive
from .coding import Coding, encode
from .coding_recipes import PAPER, QUICK, SMOKE

PIXELS = "pixels"
NEIGHBOURS = 10  # of an image, in the graph of spectral clustering
WAYS = {
    "mixture": "mixture",
    "map": "t-SNE and mixture",
    "wide-map": "t-SNE with training codes and mixture",
    "k-means": "k-means",
    "spectral": "spectral clustering",
}
MAPS = {"map": "test images", "wide-map": "test images, placed together with training images"}
_PAPER = {
    "cifar10": {
        (PIXELS, "k-means"): 0.229,
        (PIXELS, "spectral"): 0.247,
        ("vae", "mixture"): 0.291,
        ("sparse", "mixture"): 0.297,
        ("denoising", "mixture"): 0.297,
        ("ae", "mixture"): 0.314,
        ("auton-code", "mixture"): 0.3331,
        ("auton-code", "map"): 0.2700,
    },
    "mnist": {
        (PIXELS, "k-means"): 0.572,
        (PIXELS, "spectral"): 0.696,
        ("vae", "mixture"): 0.832,
        ("sparse", "mixture"): 0.827,
        ("denoising", "mixture"): 0.832,
        ("ae", "mixture"): 0.812,
        ("auton-code", "mixture"): 0.8602,
        ("auton-code", "map"): 0.9726,
    },
}
_QUOTED = "quoted by the paper from others"


@dataclass(frozen=True)
class Cluster(Coding):
    """Cluster the codes of test images without their labels, and see how well clusters match labels.

    The accuracy gives each cluster one label, in the best way there is (Hungarian method). Labels are used for nothing
    else. Mixtures and k-means take the best of several starts, by likelihood and by inertia. Every model is
    clustered by the same settings, which were chosen with the labels of held-out training images.
    """

    name = "cluster"
    line = "clusters of codes against labels, with a t-SNE map (appendix C.7)"
    question = (
        "Do codes of test images fall into groups that match their classes? A mixture of ten Gaussians is fitted to the"
        " whitened codes, and to their t-SNE map: of the test images alone, and of test and training images together,"
        " without any labels. For pixels, principal components stand for codes, as many as codes have dimensions."
        " k-means and spectral clustering of codes and of pixels stand beside it. Look at the part of the test images"
        " whose cluster has their label, when each cluster is given one label, and at the normalised mutual information"
        " (NMI)."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {
            **SMOKE,
            "models": ("auton-code",),
            "starts": 1,
            "beside": 40,
            "perplexity": 8.0,
            "iterations": 60,
            "threads": 1,
        },
        "quick": {**QUICK, "models": ("auton-code", "ae"), "starts": 10, "beside": 2500},
        "paper": {**PAPER, "dataset": "mnist"},
    }
    columns = tuple(
        column
        for way, title in WAYS.items()
        for column in (
            Column(f"{way} accuracy", f"{title}, accuracy, %", digits=1, scale=100),
            Column(f"{way} nmi", "NMI", digits=3),
        )
    )
    paper = tuple(
        Reported(model, dataset, f"{way} accuracy", value, _QUOTED if model in (PIXELS, "sparse", "denoising") else "")
        for dataset, numbers in _PAPER.items()
        for (model, way), value in numbers.items()
    )

    judged_by: ClassVar[tuple[str, ...]] = (
        "clusters",
        "starts",
        "whiten",
        "ridge",
        "beside",
        "perplexity",
        "exaggeration",
        "iterations",
    )

    # Whitening, ridge and exaggeration were chosen with the labels of 10,000 held-out training images, on auton-code
    # and ae, and are the same for all models.
    models: tuple[Kind, ...] = KINDS
    """Models. ae-wide has twice the dimensions. None: pixels alone."""
    pixels: bool = True
    """Cluster the images themselves too, with principal components in place of codes."""
    clusters: int = 10
    """Clusters, and components of the mixture."""
    starts: int = 40
    """Starts of mixtures and of k-means."""
    whiten: bool = True
    """Cluster codes of mean 0 and covariance 1, whatever the model made of them."""
    ridge: float = 0.3
    """Added to every variance of a mixture of codes, relative to the mean variance of codes."""
    beside: int = 60_000
    """Training images that the wide map has beside the test images."""
    perplexity: float = 30.0
    """Of t-SNE."""
    exaggeration: float = 2.0
    """Of attraction in t-SNE to the end, which leaves gaps between groups; 1 for plain t-SNE."""
    iterations: int = 750
    """Iterations of t-SNE, a third of them with early exaggeration."""
    threads: int = 2
    """Threads of t-SNE."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(starts=self.starts, threads=self.threads, iterations=self.iterations)
        check_positive(beside=self.beside, exaggeration=self.exaggeration)
        if self.ridge < 0:
            raise InputError(f"ridge must be at least 0; given {self.ridge:g}")
        if self.clusters < 2 or self.perplexity < 1:
            raise InputError(
                f"clusters must be at least 2, and perplexity at least 1; given {self.clusters} and {self.perplexity:g}"
            )

    def _check_models(self) -> None:
        if self.models or not self.pixels:
            super()._check_models()

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Pixels and each model, with each seed."""
        test = self.sets().test
        if not test.classes:
            raise InputError(f"{self.dataset} has no classes that clusters could match: choose another data set")
        needed = max(self.clusters, math.ceil(3 * self.perplexity), NEIGHBOURS) + 1
        if len(test) < needed:
            raise InputError(
                f"{self.clusters} clusters and a perplexity of {self.perplexity:g} need at least {needed} test images;"
                f" there are {len(test)}: lower clusters or perplexity, or use more images"
            )
        pixels = [Trial(PIXELS, self.label(PIXELS), seed) for seed in seeds] if self.pixels else []
        return [*pixels, *super().trials(seeds)]

    def run(self, trial: Trial, desk: Desk) -> dict[str, float]:
        """Cluster the codes of a model, or pixels, in all ways."""
        sets = self.sets()
        beside, labels = sets.train.take(slice(self.beside)), sets.test.labels
        if trial.model == PIXELS:
            desk.parameters = 0
            test, wide = (images.to(desk.device).float().flatten(1) for images in (sets.test, beside))
        else:
            model = self.trained(trial, desk).model
            test, wide = (encode(model, images).float() for images in (sets.test, beside))
        count = self.latent_of(trial.model)
        codes = principal(test, count, self.whiten)
        wide = principal(torch.cat([test, wide]), count, self.whiten)
        shown = {"mixture": codes, "map": self._map(codes, trial.seed), "wide-map": self._map(wide, trial.seed)}
        rest = test if trial.model == PIXELS else codes
        found = {way: self._clusters(shown.get(way, rest), way, trial.seed)[: len(test)].cpu() for way in WAYS}
        for way in MAPS:
            desk.keep(way, places=shown[way][: len(test)], clusters=matched(labels, found[way]), labels=labels)
        return _agreements(labels, found)

    def _map(self, codes: Tensor, seed: int) -> Tensor:
        early = self.iterations // 3
        count = {"early_exaggeration_iter": early, "n_iter": self.iterations - early}
        settings = {"perplexity": self.perplexity, "exaggeration": self.exaggeration, "threads": self.threads}
        return t_sne(codes, seed=seed, **settings, **count)

    def _clusters(self, codes: Tensor, way: str, seed: int) -> Tensor:
        match way:
            case "k-means":
                found = k_means(codes, self.clusters, starts=self.starts, generator=stream(seed, "k-means"))
                return found.labels
            case "spectral":
                return spectral_clusters(codes, self.clusters, neighbours=NEIGHBOURS, seed=seed)
            case _:
                # A map has two dimensions, and many places for each component: nothing to hold back.
                ridge = 1e-6 if way in MAPS else self.ridge
                return best_mixture(codes, self.clusters, self.starts, seed, ridge).predict(codes)

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """The maps, of the first seed."""
        from ..figures.cluster import Map, draw_maps

        first: dict[str, Finished] = {}
        for done in finished:
            if done.trial.model != PIXELS:
                first.setdefault(done.trial.model, done)
        if not first:
            return []
        pictures = []
        for way, whose in MAPS.items():
            maps = {
                model: Map(**done.load(way), accuracy=done.result.metrics[f"{way} accuracy"])
                for model, done in first.items()
            }
            caption = (
                f"t-SNE maps of the codes of {whose}. Left: coloured by a mixture of Gaussians fitted to the map."
                " Right: the same, coloured by labels. Each component has the colour of the label it was given."
            )
            pictures.append(Picture(f"{way}s", draw_maps(maps, self.sets().test.classes), caption))
        return pictures


def principal(codes: Tensor, count: int, whiten: bool = True) -> Tensor:
    """The principal components of codes, at most so many: those of the largest variances, scaled to 1 if told to.

    Directions in which codes do not differ are left out.

    >>> principal(torch.randn(100, 3) * torch.tensor([9.0, 0.1, 0.0]), 3).std(0, correction=0).round(decimals=3)
    tensor([1., 1.])
    """
    centred = codes.double() - codes.double().mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(codes))
    seen = (variances > 1e-9 * variances.max()).nonzero()[-count:, 0]
    found = centred @ directions[:, seen]
    return (found / variances[seen].sqrt() if whiten else found).to(codes)


def matched(labels: Tensor, clusters: Tensor) -> Tensor:
    """Clusters renamed by the labels that the accuracy gives them; those left over come after all labels.

    >>> matched(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 3, 3])).tolist()
    [0, 0, 1, 1]
    """
    from scipy.optimize import linear_sum_assignment

    size = 1 + int(torch.maximum(labels.max(), clusters.max()))
    pairs = torch.bincount(clusters * size + labels, minlength=size * size).view(size, size)
    rows, columns = linear_sum_assignment(pairs.numpy(), maximize=True)
    names = torch.empty(size, dtype=torch.int64)
    names[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return names[clusters]


@torch.no_grad()
def best_mixture(codes: Tensor, components: int, starts: int, seed: int, ridge: float = 1e-6) -> GaussianMixture:
    """The likeliest of several mixtures of codes, each from a start of its own.

    >>> codes = torch.cat([torch.randn(50, 2), torch.randn(50, 2) + 9])
    >>> best_mixture(codes, 2, starts=2, seed=0).predict(codes)[:50].unique().numel()
    1
    """
    # Relative to what codes vary by, one ridge is right for all models.
    mixture = {"components": components, "reg_covar": ridge * float(codes.var(0).mean())}
    fits = [GaussianMixture(**mixture).fit(codes, generator=stream(seed, "mixture", start)) for start in range(starts)]
    return max(fits, key=lambda fit: fit.score(codes))


def _agreements(labels: Tensor, found: Mapping[str, Tensor]) -> dict[str, float]:
    """How well clusters match labels, a way."""
    metrics: dict[str, float] = {}
    for way, clusters in found.items():
        metrics[f"{way} accuracy"] = clustering_accuracy(labels, clusters)
        metrics[f"{way} nmi"] = normalised_mutual_information(labels, clusters)
    return metrics
