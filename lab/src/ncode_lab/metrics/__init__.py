"""Metrics: FID and KID, densities of codes, clustering, error rates."""

from .clustering import Clusters, clustering_accuracy, k_means, normalised_mutual_information, spectral_clusters, t_sne
from .error import bit_error_rate
from .fid import FrechetDistance, Statistics, extract, frechet_distance, to_bytes
from .inception import Inception, find_weights, fingerprint, load_inception
from .kid import KernelDistance, Spread, kernel_distance
from .mixture import GaussianMixture, KernelDensity

__all__ = [
    "Clusters",
    "FrechetDistance",
    "GaussianMixture",
    "Inception",
    "KernelDensity",
    "KernelDistance",
    "Spread",
    "Statistics",
    "bit_error_rate",
    "clustering_accuracy",
    "extract",
    "find_weights",
    "fingerprint",
    "frechet_distance",
    "k_means",
    "kernel_distance",
    "load_inception",
    "normalised_mutual_information",
    "spectral_clusters",
    "t_sne",
    "to_bytes",
]
