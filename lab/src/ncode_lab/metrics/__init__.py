"""Metrics: FID and KID, densities of codes, clustering, error rates."""

from .clustering import clustering_accuracy, k_means, normalised_mutual_information, spectral_clusters, t_sne
from .error import bit_error_rate
from .fid import FrechetDistance, extract, frechet_distance
from .inception import Inception, find_weights, load_inception
from .kid import KernelDistance, kernel_distance
from .mixture import GaussianMixture, KernelDensity

__all__ = [
    "FrechetDistance",
    "GaussianMixture",
    "Inception",
    "KernelDensity",
    "KernelDistance",
    "bit_error_rate",
    "clustering_accuracy",
    "extract",
    "find_weights",
    "frechet_distance",
    "k_means",
    "kernel_distance",
    "load_inception",
    "normalised_mutual_information",
    "spectral_clusters",
    "t_sne",
]
