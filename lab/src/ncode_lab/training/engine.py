"""One step of training, on whatever the Fabric has."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ncode import InputError

from .graphed import GraphedStep
from .task import Loss, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Held:
    """A batch that Fabric does not look into.

    For mixed precision it would round the numbers of a batch to 16 bits before the loss sees them. Autocast decides
    operation by operation what is safe to round, and data are none of it.
    """

    def __init__(self, batch: Any):
        self.batch = batch


class Objective(nn.Module):
    """The loss of a model as a module, so that what wraps it (DDP, autocast) sees all that the loss does with it."""

    def __init__(self, task: Task):
        super().__init__()
        self.model = task.model
        self._loss = task.loss
        # DDP is told that parameters may be unused, and complains on stderr when all are used: this one never is.
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Any) -> Loss:
        """The loss of a batch."""
        value, report = self._loss(self.model, batch.batch if isinstance(batch, Held) else batch)
        if value.dim():
            raise InputError(f"a loss is one number; given one of shape {tuple(value.shape)}: take its mean")
        # What is only told must not look to DDP like something that will be differentiated.
        return Loss(value, {name: _detached(each) for name, each in report.items()})


class Engine:
    """A task's model with its optimiser and schedule, on the devices of a Fabric.

    Args:
        task: What to train.
        fabric: On what.
        graph: Whether to record a step as a CUDA graph and replay it.
    """

    def __init__(self, task: Task, fabric: Fabric, graph: bool = False):
        task.to(fabric.device)
        task.model.to(fabric.device)
        self._model, self._fabric = task.model, fabric
        self._optimiser = task.optimiser(task.model.parameters())
        self._schedule = task.schedule(self._optimiser)
        self._objective, self._stepper = fabric.setup(Objective(task).to(fabric.device), self._optimiser)
        self._mixed = str(fabric.strategy.precision.precision).endswith("mixed")
        self._graph, self._clip = graph, task.clip
        self._graphed = GraphedStep(self._optimiser, fabric.device) if graph else None

    def step(self, batch: Any, seen: Callable[[Loss], None]) -> None:
        """Make the loss of this device's share of a batch smaller, all devices together.

        `seen` is shown the loss, and may refuse it before the weights change; of a CUDA graph it is shown afterwards.
        """
        if self._graphed is None:
            self._take(batch, seen)
        else:
            seen(self._graphed(self._take, batch))
        if self._schedule is not None:
            with warnings.catch_warnings():
                # Gradients of 16 bits that overflow are left out, the first as a rule; the schedule counts every step.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self._schedule.step()

    def _take(self, batch: Any, seen: Callable[[Loss], None] | None = None) -> Loss:
        loss = self._objective(Held(batch) if self._mixed else batch)
        if seen is not None:
            seen(loss)
        self._stepper.zero_grad()
        self._fabric.backward(loss.value)
        if self._clip:
            # To look whether it is finite would be to wait for the GPU.
            self._fabric.clip_gradients(self._objective, self._stepper, max_norm=self._clip, error_if_nonfinite=False)
        self._stepper.step()
        # Whoever keeps it need not keep the graph of what led to it.
        return Loss(loss.value.detach(), loss.report)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's weights and statistics."""
        return {name: each.detach().cpu().contiguous().clone() for name, each in self._model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """What else is needed to go on."""
        return {
            "optimiser": self._optimiser.state_dict(),
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
            # The scale of 16-bit gradients; empty for other precisions.
            "precision": self._fabric.strategy.precision.state_dict(),
        }

    def put_back(self, weights: dict[str, Tensor]) -> None:
        """Give the model these weights, in the places where its own are."""
        self._model.load_state_dict(weights)

    def load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go back to how things stood."""
        self.put_back(weights)
        self._optimiser.load_state_dict(state["optimiser"])
        if self._schedule is not None and state["schedule"] is not None:
            self._schedule.load_state_dict(state["schedule"])
        self._fabric.strategy.precision.load_state_dict(state["precision"])
        # The optimiser has its numbers in new places.
        self._graphed = GraphedStep(self._optimiser, self._fabric.device) if self._graph else None


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
