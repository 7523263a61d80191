"""Cluster the codes of test images without their labels, and compare clusters with labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from ncode import InputError
from ncode.models import Autoencoder

from ...data import Images, stream
from ...metrics import (
    GaussianMixture,
    clustering_accuracy,
    k_means,
    normalised_mutual_information,
    spectral_clusters,
    t_sne,
)
from ...training import Column, Reported, Trial, TrialContext
from ..base import Finished, Picture
from ..common import check_choices, check_positive, first_seeds
from .codes import encode
from .models import PAPER_KINDS, Kind
from .settings import FULL, PAPER, QUICK, SMOKE, Coding

PIXELS = "pixels"
CLUSTERS = 10  # of all published data
NEIGHBOURS = 10  # of an image, in the graph of spectral clustering
EXAGGERATION = 2.0  # of attraction in t-SNE to the end, which leaves gaps between groups
MAP_RIDGE = 1e-6  # a map has two dimensions, and many points per component: no regularisation needed
MAX_THREADS = 256  # more than a system allows would end the process
Way = Literal["mixture", "map", "wide-map", "k-means", "spectral"]
WAYS: Mapping[Way, str] = {
    "mixture": "mixture",
    "map": "t-SNE and mixture",
    "wide-map": "t-SNE with training codes and mixture",
    "k-means": "k-means",
    "spectral": "spectral clustering",
}
MAPS: Mapping[Way, str] = {"map": "test images", "wide-map": "test images, placed together with training images"}
CAPTION = (
    "t-SNE maps of the codes of {images}. Left: coloured by a mixture of Gaussians fitted to the map. Right: the same,"
    " coloured by labels. Each component has the colour of the label it was given. A few codes that lie far from all"
    " others may be outside."
)
_SMOKE = {"starts": 1, "map_images": 40, "perplexity": 8.0, "iterations": 60, "threads": 1}
_PAPER_ACCURACY = {
    # CIFAR-10, MNIST
    (PIXELS, "k-means"): (0.229, 0.572),
    (PIXELS, "spectral"): (0.247, 0.696),
    ("vae", "mixture"): (0.291, 0.832),
    ("sparse", "mixture"): (0.297, 0.827),
    ("denoising", "mixture"): (0.297, 0.832),
    ("ae", "mixture"): (0.314, 0.812),
    ("auton-code", "mixture"): (0.3331, 0.8602),
    ("auton-code", "map"): (0.2700, 0.9726),
}


def _reported() -> tuple[Reported, ...]:
    found = []
    for place, dataset in enumerate(("cifar10", "mnist")):
        # Published results on CIFAR-10 have 36 epochs.
        for label in (dataset, f"{dataset}, epochs 36", f"{dataset}, paper"):
            for (model, way), values in _PAPER_ACCURACY.items():
                note = "quoted by the paper from others" if model in (PIXELS, "sparse", "denoising") else ""
                if (model, dataset) == ("ae", "cifar10"):
                    note = "marked as the authors' own, but the table of Chang et al. (2017) has 31.35"
                found.append(Reported(model, label, f"{way} accuracy", values[place], note))
    return tuple(found)


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
    """Cluster the codes of test images without their labels, and compare clusters with labels.

    The accuracy gives each cluster one label, in the best possible way (Hungarian method). Labels are used for nothing
    else. Mixtures and k-means take the best of several starts, by likelihood and by inertia. Every model is clustered
    with the same settings, which were chosen with the labels of 10,000 training images: whitening, exaggeration and the
    ridge for digits on auton-code and ae, directions and the ridge for colour images on pixels.
    """

    name = "cluster"
    line = "clusters of codes against labels, with a t-SNE map (appendix C.7)"
    question = (
        "Do codes of test images fall into groups that match their classes? A mixture of ten Gaussians is fitted to the"
        " whitened codes, and to their t-SNE map: of the test images alone, and of test and training images together,"
        " without any labels. For pixels, principal components stand for codes, as many as are clustered of codes."
        " k-means and spectral clustering are given for comparison. Look at the fraction of the test images"
        " whose cluster has their label, when each cluster is given one label, and at the normalised mutual information"
        " (NMI)."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {**SMOKE, **_SMOKE, "models": ("auton-code",)},
        "quick": {**QUICK, "models": ("auton-code", "ae"), "starts": 10, "map_images": 2500},
        "full": {**FULL, "dataset": "mnist"},
        "paper": {**PAPER, "dataset": "mnist"},
    }
    columns = _columns(get_args(Way))
    paper = _reported()
    judged_by: ClassVar[tuple[str, ...]] = ("starts", "map_images", "perplexity", "iterations")
    renamed: ClassVar[Mapping[str, str]] = {"beside": "map_images"}
    retired: ClassVar[Mapping[str, Any]] = {
        **Coding.retired,
        "clusters": CLUSTERS,
        "whiten": True,
        "directions": 0,
        "ridge": -1.0,
        "exaggeration": EXAGGERATION,
    }

    models: tuple[Kind, ...] = PAPER_KINDS
    """Models. ae-wide has twice the dimensions. None: pixels only."""
    pixels: bool = True
    """Cluster the images themselves too, with principal components instead of codes."""
    ways: tuple[Way, ...] = get_args(Way)
    """Ways to cluster: a mixture of codes, of their t-SNE map, or of a map of test and training codes; k-means;
    spectral clustering. Maps take most of the time."""
    starts: int = 40
    """Starts of mixtures and of k-means."""
    map_images: int = 60_000
    """Training images in the wide map, besides the test images."""
    perplexity: float = 30.0
    """Perplexity of t-SNE."""
    iterations: int = 750
    """Iterations of t-SNE, a third of them with early exaggeration."""
    threads: int = 2
    """Threads of t-SNE."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "starts", "threads", "iterations", "map_images")
        check_choices("way", self.ways, get_args(Way))
        object.__setattr__(self, "columns", _columns(self.ways))
        if self.perplexity < 1:
            raise InputError(f"perplexity must be at least 1; given {self.perplexity:g}")
        if self.threads > MAX_THREADS:
            raise InputError(f"threads must be at most {MAX_THREADS}; given {self.threads}")

    def check_architecture(self) -> None:
        super().check_architecture()
        if self.architecture.latent < 2:
            raise InputError("cluster maps codes to the plane: latent must be at least 2; given 1")

    def _check_models(self) -> None:
        if self.models or not self.pixels:
            super()._check_models()

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        test = self.sets().test
        if len(test.classes) < 2:
            raise InputError(f"{self.dataset} has no classes that clusters could match: choose another data set")
        needed = max(self.clusters, math.ceil(3 * self.perplexity), NEIGHBOURS) + 1
        if len(test) < needed:
            raise InputError(
                f"{self.clusters} clusters and a perplexity of {self.perplexity:g} need at least {needed} test images;"
                f" there are {len(test)}: lower perplexity, or use more images"
            )
        pixels = [Trial(PIXELS, self.label(PIXELS), seed) for seed in seeds] if self.pixels else []
        return [*pixels, *super().trials(seeds)]

    def trains(self, trial: Trial) -> bool:
        return trial.model != PIXELS

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        train, test = self.sets().to(context.device)
        if trial.model == PIXELS:
            context.parameters, model = 0, None
        else:
            model, _ = self.trained(trial, context)
        labels, codes = test.labels.cpu(), self._codes(model, test, trial.model)
        shown = dict.fromkeys(self.ways, test.float().flatten(1) if model is None else codes) | {"mixture": codes}
        if "map" in self.ways:
            shown["map"] = self._map(codes, trial.seed)
        if "wide-map" in self.ways:
            images = torch.cat([test.images, train.images[: self.map_images]])
            both = replace(test, images=images, labels=torch.cat([test.labels, train.labels[: self.map_images]]))
            shown["wide-map"] = self._map(self._codes(model, both, trial.model), trial.seed)
        metrics: dict[str, float] = {}
        for way in self.ways:
            found = self._clusters(shown[way], way, trial.seed)[: len(test)].cpu()
            metrics[f"{way} accuracy"] = clustering_accuracy(labels, found)
            metrics[f"{way} nmi"] = normalised_mutual_information(labels, found)
            if way in MAPS:
                places = shown[way][: len(test)]
                context.save_tensors(way, places=places, clusters=match_labels(labels, found), labels=labels)
        return metrics

    def directions(self, model: str) -> int:
        """Number of directions of codes that are clustered: all for digits, and 64 for colour images."""
        return min(self.latent_of(model), 64) if self.colour else self.latent_of(model)

    @property
    def clusters(self) -> int:
        """Number of clusters, that of the classes; also components of the mixture."""
        return len(self.sets().test.classes)

    @property
    def ridge(self) -> float:
        """Added to every variance of a mixture of codes, relative to the mean variance of codes."""
        return 0.01 if self.colour else 0.3

    def _codes(self, model: Autoencoder | None, images: Images, name: str) -> Tensor:
        """Whitened codes, or pixels, along the most informative directions."""
        if model is None:
            return principal(images.float().flatten(1), self.directions(name))
        codes = principal(encode(model, images).float(), self.latent_of(name))
        return most_informative(codes, images.images, self.directions(name))

    def _map(self, codes: Tensor, seed: int) -> Tensor:
        early = self.iterations // 3
        count = {"early_exaggeration_iter": early, "n_iter": self.iterations - early}
        settings = {"perplexity": self.perplexity, "exaggeration": EXAGGERATION, "threads": self.threads}
        return t_sne(codes, seed=seed, **settings, **count)

    def _clusters(self, codes: Tensor, way: Way, seed: int) -> Tensor:
        match way:
            case "k-means":
                return k_means(codes, self.clusters, starts=self.starts, generator=stream(seed, "k-means")).labels
            case "spectral":
                return spectral_clusters(codes, self.clusters, neighbours=NEIGHBOURS, seed=seed)
            case _:
                ridge = MAP_RIDGE if way in MAPS else self.ridge
                return best_mixture(codes, self.clusters, self.starts, seed, ridge).predict(codes)

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        from .figures import Map, draw_maps

        first = first_seeds(done for done in finished if done.trial.model != PIXELS)
        pictures = []
        for way in MAPS if first else ():
            if way not in self.ways:
                continue
            maps = {
                model: Map(**done.load(way), accuracy=done.result.metrics[f"{way} accuracy"])
                for model, done in first.items()
            }
            figure = draw_maps(maps, self.sets().test.classes)
            pictures.append(Picture(f"{way}s", figure, CAPTION.format(images=MAPS[way])))
        return pictures


def principal(codes: Tensor, count: int) -> Tensor:
    """The first `count` principal components of codes, scaled to variance 1, without directions of no variance."""
    centred = codes.double() - codes.double().mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(codes))
    seen = (variances > 1e-9 * variances.max()).nonzero()[-count:, 0]
    return (centred @ directions[:, seen] / variances[seen].sqrt()).to(codes)


def most_informative(codes: Tensor, images: Tensor, count: int) -> Tensor:
    """Whitened codes (n, m) along the `count` directions that explain most of images (n, ...).

    By least squares images are codes times W = codes' images / n, and codes along a unit vector u alone explain
    |u' W|^2 of their variance. The best u are the first eigenvectors of W W'. A linear map after the code changes none
    of it, and if codes are all of the images, these are their principal components.
    """
    if count >= codes.shape[1]:
        return codes
    parts = zip(codes.split(5000), images.split(5000), strict=True)
    weights = sum(part.double().mT @ shown.flatten(1).double() for part, shown in parts)
    assert isinstance(weights, Tensor)
    _, directions = torch.linalg.eigh(weights @ weights.mT)
    return codes @ directions[:, -count:].to(codes)


def match_labels(labels: Tensor, clusters: Tensor) -> Tensor:
    """Clusters renamed by the labels that the accuracy gives them; those left over come after all labels."""
    from scipy.optimize import linear_sum_assignment

    size = 1 + int(torch.maximum(labels.max(), clusters.max()))
    pairs = torch.bincount(clusters * size + labels, minlength=size * size).view(size, size)
    rows, columns = linear_sum_assignment(pairs.numpy(), maximize=True)
    names = torch.empty(size, dtype=torch.int64)
    names[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return names[clusters]


@torch.no_grad()
def best_mixture(codes: Tensor, components: int, starts: int, seed: int, ridge: float = MAP_RIDGE) -> GaussianMixture:
    """The most likely of several mixtures of codes from different starts."""
    # Relative to the variance of codes, so that one ridge suits all models.
    mixture = {"components": components, "reg_covar": ridge * float(codes.var(0).mean())}
    fits = [GaussianMixture(**mixture).fit(codes, generator=stream(seed, "mixture", start)) for start in range(starts)]
    return max(fits, key=lambda fit: fit.score(codes))
