"""NCODE, the module that joins a dynamics and a controller."""

from .episode import Episode
from .family import Member
from .ncode import NCODE
from .pretrained import from_pretrained, save_pretrained
from .registry import register
from .settings import Settings

__all__ = ["NCODE", "Episode", "Member", "Settings", "from_pretrained", "register", "save_pretrained"]
