"""A long solve, for memory: the per-sample MLP flow in 500 fixed steps."""

from __future__ import annotations

from typing import Any

from ..contest import Contest, Settings
from ..flow import compete
from . import mlp_flow

TITLE = "Long: the per-sample MLP flow in 500 fixed steps of dopri5 (look at memory)"


def contest(settings: Settings) -> Contest:
    """Everyone takes the same steps."""
    steps = 10 if settings.quick else 500
    rows: dict[str, dict[str, Any]] = {
        "eager, every 22nd state": {"checkpoint_every": 22},
        "eager, adjoint": {"gradient": "adjoint"},
        "eager, autograd": {"gradient": "autograd"},
    }
    return compete(mlp_flow.flow(settings, dt=1 / steps, ours=rows), settings)
