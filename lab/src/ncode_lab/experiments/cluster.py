"""Clusters of codes (appendix C.7 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from ncode import InputError
from ncode.models.autoencoder import Autoencoder

from ..data import Images, stream
from ..metrics import (
    GaussianMixture,
    clustering_accuracy,
    k_means,
    normalised_mutual_information,
    spectral_clusters,
    t_sne,
)
from ..models.autoencoder_family import KINDS, Kind
from ..training import Column, Reported, Trial, TrialContext
from .base import Finished, Picture
from .checks import check_choices, check_positive
from .coding import Coding, encode
from .coding_recipes import PAPER, QUICK, SMOKE

PIXELS = "pixels"
NEIGHBOURS = 10  # of an image, in the graph of spectral clustering
Way = Literal["mixture", "map", "wide-map", "k-means", "spectral"]
WAYS: Mapping[Way, str] = {
    "mixture": "mixture",
    "map": "t-SNE and mixture",
    "wide-map": "t-SNE with training codes and mixture",
    "k-means": "k-means",
    "spectral": "spectral clustering",
}
MAPS: Mapping[Way, str] = {"map": "test images", "wide-map": "test images, placed together with training images"}
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


def _columns(ways: Sequence[Way]) -> tuple[Column, ...]:
    return tuple(
        column
        for way in ways
        for column in (
            Column(f"{way} accuracy", f"{WAYS[way]}, accuracy, %", digits=1, scale=100),
            Column(f"{way} nmi", "NMI", digits=3),
        )
    )


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
        " without any labels. For pixels, principal components stand for codes, as many as are clustered of codes."
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
    columns = _columns(get_args(Way))
    paper = tuple(
        Reported(model, dataset, f"{way} accuracy", value, _QUOTED if model in (PIXELS, "sparse", "denoising") else "")
        for dataset, numbers in _PAPER.items()
        for (model, way), value in numbers.items()
    )

    judged_by: ClassVar[tuple[str, ...]] = (
        "clusters",
        "starts",
        "whiten",
        "directions",
        "ridge",
        "beside",
        "perplexity",
        "exaggeration",
        "iterations",
    )

    # Chosen with the labels of 10,000 training images, the same for all models: whitening, exaggeration and the ridge
    # for digits on auton-code and ae, directions and the ridge for images in colour on pixels.
    models: tuple[Kind, ...] = KINDS
    """Models. ae-wide has twice the dimensions. None: pixels alone."""
    pixels: bool = True
    """Cluster the images themselves too, with principal components in place of codes."""
    ways: tuple[Way, ...] = get_args(Way)
    """Ways to cluster: a mixture of codes, of their t-SNE map, or of one of test and training codes; k-means; spectral
    clustering. Maps take most of the time."""
    clusters: int = 10
    """Clusters, and components of the mixture."""
    starts: int = 40
    """Starts of mixtures and of k-means."""
    whiten: bool = True
    """Cluster codes of mean 0 and covariance 1, whatever the model made of them."""
    directions: int = 0
    """Directions of codes that are clustered, those that tell the most about images. 0: all for digits, and 64 for
    images in colour."""
    ridge: float = -1.0
    """Added to every variance of a mixture of codes, relative to the mean variance of codes. Below 0: 0.3 for digits,
    and 0.01 for images in colour."""
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
        check_choices("way", self.ways, get_args(Way))
        if self.directions < 0:
            raise InputError(f"directions must be at least 0; given {self.directions}")
        object.__setattr__(self, "columns", _columns(self.ways))
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

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Cluster the codes of a model, or pixels, in all ways."""
        train, test = self.sets().to(context.device)
        if trial.model == PIXELS:
            context.parameters, model = 0, None
        else:
            model = self.trained(trial, context).model
        labels, plain = test.labels.cpu(), self._codes(model, test, trial.model)
        shown = dict.fromkeys(self.ways, test.float().flatten(1) if model is None else plain) | {"mixture": plain}
        if "map" in self.ways:
            shown["map"] = self._map(plain, trial.seed)
        if "wide-map" in self.ways:
            joined = zip((test.images, test.labels), (train.images, train.labels), strict=True)
            images, names = (torch.cat([mine, others[: self.beside]]) for mine, others in joined)
            wide = replace(test, images=images, labels=names)
            shown["wide-map"] = self._map(self._codes(model, wide, trial.model), trial.seed)
        found = {way: self._clusters(shown[way], way, trial.seed)[: len(test)].cpu() for way in self.ways}
        for way in self._maps:
            context.save_tensors(
                way, places=shown[way][: len(test)], clusters=matched(labels, found[way]), labels=labels
            )
        return _agreements(labels, found)

    def _codes(self, model: Autoencoder | None, images: Images, name: str) -> Tensor:
        """What is clustered: codes, or pixels, along the directions that tell the most."""
        codes = images.float().flatten(1) if model is None else encode(model, images).float()
        count = self.planned_directions(name)
        if model is None or not self.whiten:
            return principal(codes, count, self.whiten)
        return telling(principal(codes, self.latent_of(name)), images.images, count)

    @property
    def _maps(self) -> tuple[Way, ...]:
        return tuple(way for way in MAPS if way in self.ways)

    def planned_directions(self, model: str) -> int:
        """Directions, as told or those of the data set. Codes have no more than their dimensions."""
        dimensions = self.latent_of(model)
        return min(dimensions, self.directions or (64 if self.colour else dimensions))

    @property
    def planned_ridge(self) -> float:
        """The ridge, as told or that of the data set."""
        return self.ridge if self.ridge >= 0 else 0.01 if self.colour else 0.3

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
                ridge = 1e-6 if way in MAPS else self.planned_ridge
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
        for way in self._maps:
            maps = {
                model: Map(**done.load(way), accuracy=done.result.metrics[f"{way} accuracy"])
                for model, done in first.items()
            }
            caption = (
                f"t-SNE maps of the codes of {MAPS[way]}. Left: coloured by a mixture of Gaussians fitted to the map."
                " Right: the same, coloured by labels. Each component has the colour of the label it was given. A few"
                " codes that lie far from all others may be outside."
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


def telling(codes: Tensor, images: Tensor, count: int) -> Tensor:
    """Whitened codes (n, m) along the so many directions that tell the most about images (n, ...).

    By least squares images are codes times W = codes' images / n, and codes along a unit vector u alone explain
    |u' W|^2 of their variance. The best u are the first eigenvectors of W W'. A linear map that a model puts behind its
    code changes none of it, and where codes are all of the images, those are their principal components.

    >>> codes = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> telling(codes, codes * torch.tensor([3.0, 20.0]), 1).abs().flatten(), codes[:, 1]
    (tensor([1., 1., 1., 1.]), tensor([ 1., -1.,  1., -1.]))
    """
    if count >= codes.shape[1]:
        return codes
    parts = zip(codes.split(5000), images.split(5000), strict=True)
    weights = sum(part.double().mT @ shown.flatten(1).double() for part, shown in parts)
    assert isinstance(weights, Tensor)
    _, directions = torch.linalg.eigh(weights @ weights.mT)
    return codes @ directions[:, -count:].to(codes)


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
