"""NCODE, the module that joins a dynamics and a controller."""

from .family import Member
from .ncode import NCODE
from .pretrained import from_pretrained, save_pretrained
from .registry import register
from .settings import Settings

__all__ = ["NCODE", "Member", "Settings", "from_pretrained", "register", "save_pretrained"]
