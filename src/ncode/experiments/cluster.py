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
        " whitened codes, and to their t-SNE map, drawn of the test images alone or together with training images;"
        " k-means and spectral clustering of codes and of pixels stand beside it. Look"
        " at the part of the images whose cluster has their label, when each cluster is given one label, and at the"
        " normalised mutual information (NMI)."
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
        "quick": {**QUICK, "models": ("auton-code", "ae")},
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

    models: tuple[Kind, ...] = KINDS
    """Models. ae-wide has twice the dimensions."""
    pixels: bool = True
    """Cluster the images themselves too, by k-means and spectral clustering."""
    clusters: int = 10
    """Clusters, and components of the mixture."""
    starts: int = 20
    """Starts of mixtures and of k-means."""
    whiten: bool = True
    """Cluster codes of mean 0 and covariance 1, whatever the model made of them."""
    ridge: float = 0.1
    """Added to every variance of a mixture of codes, relative to the mean variance of codes."""
    beside: int = 20_000
    """Training images that the wide map has beside the test images; labels of neither are looked at."""
    perplexity: float = 30.0
    """Of t-SNE."""
    exaggeration: float = 4.0
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
        labels = sets.test.labels
        if trial.model == PIXELS:
            desk.parameters = 0
            pixels = sets.test.float().flatten(1)
            return _agreements(
                labels, {way: self._clusters(pixels, way, trial.seed) for way in ("k-means", "spectral")}
            )
        model = self.trained(trial, desk).model
        test = encode(model, sets.test).float().cpu()
        wide = torch.cat([test, encode(model, sets.train.take(slice(self.beside))).float().cpu()])
        if self.whiten:
            test, wide = whitened(test), whitened(wide)
        maps = {"map": self._map(test, trial.seed), "wide-map": self._map(wide, trial.seed)}
        found = {way: self._clusters(maps.get(way, test), way, trial.seed)[: len(test)] for way in WAYS}
        for way, places in maps.items():
            desk.keep(way, places=places[: len(test)], clusters=matched(labels, found[way]), labels=labels)
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
                ridge = self.ridge if way == "mixture" else 1e-6
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


def whitened(codes: Tensor) -> Tensor:
    """Codes of mean 0 and covariance 1, along the directions in which they differ at all.

    >>> codes = whitened(torch.randn(100, 3).double() @ torch.tensor([[9.0, 1, 0], [0, 1, 0], [0, 0, 0]]).double())
    >>> codes.T.cov(correction=0).round(decimals=4)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    centred = codes.double() - codes.double().mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(codes))
    seen = variances > 1e-9 * variances.max()
    return (centred @ directions[:, seen] / variances[seen].sqrt()).to(codes)


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
