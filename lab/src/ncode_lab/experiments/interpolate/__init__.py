"""Interpolation between codes (appendix C.8 of the paper)."""
