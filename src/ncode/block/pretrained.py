"""Blocks in a folder: config.json says what to build, model.safetensors holds the weights."""

from __future__ import annotations
