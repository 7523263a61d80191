"""NCODE, the module that joins a dynamics and a controller."""

from .family import Member
from .ncode import NCODE
from .settings import Settings

__all__ = ["NCODE", "Member", "Settings"]
