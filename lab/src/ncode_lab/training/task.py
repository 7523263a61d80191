"""`Task`: a model, its batches and its loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Loss(NamedTuple):
    """The loss of a training step.

    Attributes:
        value: The scalar to minimise.
        report: Numbers for the progress bar and the log, each a number or a scalar tensor: accuracy, nfe, rejected,
            control norm.

    >>> Loss(torch.tensor(0.5), {"nfe": 26}).report
    {'nfe': 26}
    """

    value: Tensor
    report: dict[str, Any]


class Task(ABC):
    """A model, its batches and its loss.

    Everything random in step n is a function of the seed and of n. So a run can stop after any step and resume with
    the same result, and several devices can share one batch.

    Attributes:
        model: The model to train.
        steps: Number of training steps.
        evaluate_every: Steps between two evaluations. 0: evaluate only at the end.
        keep_best: A metric of `evaluate` such as "accuracy", or "-error" if smaller is better: after the last step the
            model gets the weights of the evaluation that was best by it. Empty: the model keeps its last weights.
        clip: Gradients with a larger norm are scaled down to this norm. 0: no clipping.
        lr: Learning rate of the default optimiser.

    >>> class Halve(Task):
    ...     def __init__(self):
    ...         self.model, self.steps = nn.Linear(1, 1), 3
    ...     def batch(self, step, generator):
    ...         return torch.rand(8, 1, generator=generator)
    ...     def loss(self, model, batch):
    ...         return Loss((model(batch) - batch / 2).square().mean(), {})
    ...     def evaluate(self, model):
    ...         return {"error": float((model(torch.ones(1, 1)) - 0.5).abs())}
    >>> task = Halve()
    >>> task.loss(task.model, task.batch(0, torch.Generator())).value.shape
    torch.Size([])
    """

    model: nn.Module
    steps: int
    evaluate_every: int = 0
    keep_best: str = ""
    clip: float = 0.0
    lr: float = 1e-3

    @abstractmethod
    def batch(self, step: int, generator: torch.Generator) -> Any:
        """The whole batch of one step: a tensor, or a (named) tuple or dict of tensors (batch, ...).

        The generator is on the CPU, so that all kinds of devices train on the same data.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """The loss of a batch, or of one device's share of it."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on held-out data. Called without gradients, with the model in evaluation mode."""

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimiser. Default: Adam with the learning rate `lr`."""
        return torch.optim.Adam(parameters, lr=self.lr)

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        """The learning-rate schedule, stepped after every training step. Default: a constant learning rate."""
        return None

    def to(self, device: torch.device) -> None:
        """Move the task's data, if any, to the device. The training loop moves the model and the batches."""
        return None
