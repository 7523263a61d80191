"""What a classifier is worth: its loss, its accuracy, and the evaluations that it takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ncode.models.classifier import Answer, ImageClassifier


def cross_entropy(answer: Answer, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Of each sample, (batch,); 0 for those that could not be solved."""
    each = F.cross_entropy(answer.logits.float(), labels, reduction="none", label_smoothing=smoothing)
    return torch.where(answer.ok, each, 0)


def right(answer: Answer, labels: Tensor) -> Tensor:
    """Which samples are classified rightly, (batch,); one that could not be solved is not."""
    return (answer.logits.argmax(1) == labels) & answer.ok


@torch.no_grad()
def measure(model: ImageClassifier, images: Tensor, labels: Tensor, chunk: int, **changes: Any) -> dict[str, float]:
    """Accuracy, loss, evaluations a solve and failures, on all images; `changes` are other settings of the solver.

    Every chunk has the same size, the last one being filled up, so that a compiled solver meets one shape.

    >>> from ncode_lab.models.classifier_family import build_classifier
    >>> model = build_classifier("node", (1, 8, 8))
    >>> sorted(measure(model, torch.zeros(5, 1, 8, 8), torch.arange(5), chunk=2))
    ['accuracy', 'failed', 'loss', 'nfe']
    """
    count, device = len(images), images.device
    total = torch.zeros(4, dtype=torch.float64, device=device)
    for first in range(0, count, chunk):
        indices = torch.arange(first, first + chunk, device=device)
        real, indices = indices < count, indices % count
        answer, wanted = model.answer(images[indices], **changes), labels[indices]
        parts = (right(answer, wanted), cross_entropy(answer, wanted), answer.nfe, ~answer.ok)
        total += torch.stack([(part * real).sum().double() for part in parts])
    accuracy, loss, nfe, failed = (total / count).tolist()
    return {"accuracy": accuracy, "loss": loss, "nfe": nfe, "failed": round(failed * count)}


def evaluations(model: ImageClassifier, images: Tensor, labels: Tensor, **changes: Any) -> dict[str, float]:
    """Evaluations that a sample takes forward, and backward: 0 where a graph is kept. No gradient is changed by it.

    `changes` are other settings of the solver.

    >>> from ncode_lab.models.classifier_family import build_classifier
    >>> found = evaluations(build_classifier("node", (1, 8, 8)), torch.zeros(2, 1, 8, 8), torch.arange(2))
    >>> found["nfe"] > found["nfe backward"] > 0
    True
    """
    torch.clear_autocast_cache()  # copies of weights that were made without gradients
    with torch.enable_grad():
        answer = model.answer(images, **changes)
        value = cross_entropy(answer, labels).sum()
        torch.autograd.grad(value, [each for each in model.parameters() if each.requires_grad], allow_unused=True)
    return {
        "nfe": float(answer.nfe.double().mean()),
        "nfe backward": float(answer.nfe_backward.double().mean()),
    }
