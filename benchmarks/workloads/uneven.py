"""The per-sample MLP flow with one sample whose field is 50 times faster."""

from __future__ import annotations

import dataclasses

from ..contest import Aim, Contest, Settings
from ..flow import compete
from . import mlp_flow

TITLE = "Uneven: the per-sample MLP flow with one sample of 512 that is 50 times faster"
AIMS = (
    Aim("eager", "torchdiffeq", 0.2),
    Aim("compiled", "torchdiffeq", 0.2),
    Aim("compiled", "torchdiffeq", 0.2, "cuda"),
    Aim("compiled", "diffrax", 1.0, "cuda"),
)


def contest(settings: Settings) -> Contest:
    """The output layer of the first sample is 50 times larger."""
    flow = mlp_flow.flow(settings)
    w1, b1, w2, b2 = (leaf.clone() for leaf in flow.weights)
    w2[0] *= 50
    b2[0] *= 50
    flow = dataclasses.replace(flow, weights=(w1, b1, w2, b2))
    return compete(flow, settings, AIMS)
