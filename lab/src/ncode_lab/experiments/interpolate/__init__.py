"""Interpolation between codes (appendix C.8 of the paper)."""

from .experiment import Interpolate

__all__ = ["Interpolate"]
