"""The `ncode` command: one file a word."""

from .main import main

__all__ = ["main"]
