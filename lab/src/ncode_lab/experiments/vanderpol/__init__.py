"""The Van der Pol oscillator as a line with a control (figure 2 of the paper)."""

from .experiment import VanDerPol

__all__ = ["VanDerPol"]
