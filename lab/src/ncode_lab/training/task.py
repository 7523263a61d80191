"""`Task`: what is to be trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Loss(NamedTuple):
    """What a step is judged by.

    Attributes:
        value: To be made small, a scalar.
        report: What the progress bar and the log tell, a scalar tensor or number each: accuracy, nfe, rejected,
            control norm.

    >>> Loss(torch.tensor(0.5), {"nfe": 26}).report
    {'nfe': 26}
    """

    value: Tensor
    report: dict[str, Any]


class Task(ABC):
    """A model, its batches and its loss.

    All that is random about step n is a function of the seed and of n: a run may stop after any step and go on as if
    it had not, and several devices share one batch.

    Attributes:
        model: What is trained.
        steps: How many steps it is trained for.
        draws: Where the generator of a step's random numbers lives. On the CPU, all devices train on the same data.
        evaluate_every: Steps between two evaluations; 0: only at the end.
        keep_best: A metric of `evaluate`, as "accuracy", or "-error" where less is better: after the last step the
            model goes back to the weights of the evaluation that was best by it. Empty: the last weights stay.
        clip: A gradient that is longer is shortened to this length. 0: none is.

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
    draws: ClassVar[Literal["cpu", "device"]] = "cpu"
    evaluate_every: int = 0
    keep_best: str = ""
    clip: float = 0.0

    @abstractmethod
    def batch(self, step: int, generator: torch.Generator) -> Any:
        """The whole batch of one step: a tensor, or a (named) tuple or dict of tensors (batch, ...)."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """The loss of a batch, or of one device's share of it."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """What the model is worth, on data that it was not trained on. Called without gradients, in evaluation mode."""

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Who makes the loss small."""
        return torch.optim.Adam(parameters, lr=1e-3)

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        """How the learning rate changes from step to step."""
        return None

    def to(self, device: torch.device) -> None:
        """Move the data, where there are any, to the device. The loop moves the model and the batches."""
        return None
