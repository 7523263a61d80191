"""Clusters of codes (appendix C.7 of the paper)."""

from .experiment import Cluster

__all__ = ["Cluster"]
