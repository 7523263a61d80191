"""The paper's image classifier, solved by torchdiffeq: as the paper's appendix writes it, and at its best.

gamma, the biases and the read-out are those of our `Classifier`, so that all rows have the same weights; only the solve
differs. What torchdiffeq's users write for convolutions that are a sample's own is in `workloads/convolutions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchdiffeq import odeint, odeint_adjoint

import ncode
from ncode.models import Classifier

KERNELS = ("conv_in", "conv_3x3", "conv_out")
Field = Callable[[Any, Tensor, Sequence[Tensor]], Tensor]


class ClassifierByTorchdiffeq(nn.Module):
    """Images in, logits out.

    Args:
        classifier: Whose weights are used.
        field: dx/dt from t, x and kernels and biases in turn, all with a row for each sample; None for `ConvBlock`.
        in_state: The paper's way: theta is part of the state, with zero derivative, and gradients are by the adjoint.
            Otherwise theta stays outside, and gradients are by backpropagation.
    """

    def __init__(self, classifier: Classifier, field: Field | None, in_state: bool, tolerance: float):
        super().__init__()
        self.classifier, self.field, self.in_state = classifier, field, in_state
        self.known: dict[str, Any] = {"method": "dopri5", "rtol": tolerance, "atol": tolerance}
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        block = self.classifier.block
        x = self.classifier.normalise(images)
        theta = block.controller.start(x).fixed
        x0, kernels = block.dynamics.lift(x), tuple(theta[name] for name in KERNELS)
        span = torch.tensor([0.0, 1.0], device=x0.device)
        if not self.in_state:
            xs: Any = odeint(lambda t, x: self.derivative(t, x, kernels), x0, span, **self.known)
            return self.classifier.readout(xs[-1].flatten(1))

        def joint(t: Tensor, z: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return self.derivative(t, z[0], z[1:]), *(torch.zeros_like(kernel) for kernel in z[1:])

        z = odeint_adjoint(joint, (x0, *kernels), span, **self.known, adjoint_params=tuple(self.biases()))
        return self.classifier.readout(z[0][-1].flatten(1))

    def derivative(self, t: Tensor, x: Tensor, kernels: Sequence[Tensor]) -> Tensor:
        """dx/dt."""
        self.calls += 1
        if self.field is None:
            return self.classifier.block.dynamics(t.expand(len(x)), x, dict(zip(KERNELS, kernels, strict=True)))
        biases = [bias.expand(len(x), -1) for bias in self.biases()]
        theta = [leaf for pair in zip(kernels, biases, strict=True) for leaf in pair]
        return self.field(t, x, theta)

    def biases(self) -> list[Tensor]:
        """Which all samples share."""
        augmented = self.classifier.block.dynamics
        assert isinstance(augmented, ncode.dynamics.Augmented)
        block = augmented.dynamics
        assert isinstance(block, ncode.dynamics.ConvBlock)
        return [block.weights.learned[f"{name}_bias"] for name in KERNELS]
