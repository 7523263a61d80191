"""Clusters of codes (appendix C.7 of the paper)."""
