"""Metrics: FID and KID, densities of codes, clustering, error rates."""

from .clustering import clustering_accuracy, k_means, normalised_mutual_information, spectral_clusters, t_sne
from .error import bit_error_rate
from .fid import FrechetDistance, KernelDistance, extract, frechet_distance, kernel_distance
from .inception import Inception, load_inception
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
    "frechet_distance",
    "k_means",
    "kernel_distance",
    "load_inception",
    "normalised_mutual_information",
    "spectral_clusters",
    "t_sne",
]
