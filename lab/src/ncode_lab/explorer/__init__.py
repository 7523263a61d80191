"""The explorer: one self-contained page that trains small models in the browser."""

from .page import render_explorer, write_explorer

__all__ = ["render_explorer", "write_explorer"]
