"""Measures: FID and KID, mixtures and densities of codes, clustering, error rates."""

from .clustering import clustering_accuracy, normalised_mutual_information, spectral_clusters, t_sne
from .error import accuracy, bit_error_rate, top_k
from .fid import FrechetDistance, frechet_distance
from .images import extract, to_bytes
from .inception import Inception
from .kid import KernelDistance, Spread, kernel_distance
from .kmeans import Clusters, k_means
from .mixture import GaussianMixture, KernelDensity
from .statistics import Statistics
from .weights import find_weights, fingerprint, load_inception

__all__ = [
    "Clusters",
    "FrechetDistance",
    "GaussianMixture",
    "Inception",
    "KernelDensity",
    "KernelDistance",
    "Spread",
    "Statistics",
    "accuracy",
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
    "top_k",
]
