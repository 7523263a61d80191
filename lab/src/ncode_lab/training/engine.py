"""One training step on the devices of a Fabric, and the buffer in which losses stay on the device."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ncode import InputError

from .errors import RunError
from .graph import GraphedStep
from .task import Loss, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RESERVED = ("step", "kind", "fit", "loss")


class OpaqueBatch:
    """A batch that Fabric does not convert: for mixed precision it would round data to 16 bits, which is not safe."""

    def __init__(self, batch: Any):
        self.batch = batch


class Objective(nn.Module):
    """The loss of a model as a module, so that wrappers (DDP, autocast) cover all that the loss does with the model."""

    def __init__(self, task: Task):
        super().__init__()
        self.model = task.model
        self._loss = task.loss
        # DDP is told to expect unused parameters, and warns on stderr if all are used: this one never is.
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Any) -> Loss:
        """The loss of a batch."""
        value, report = self._loss(self.model, batch.batch if isinstance(batch, OpaqueBatch) else batch)
        if value.dim():
            raise InputError(f"a loss must be a scalar; given shape {tuple(value.shape)}: take its mean")
        # DDP must not take the report for something that will be differentiated.
        return Loss(value, {name: each.detach() if isinstance(each, Tensor) else each for name, each in report.items()})


class Engine:
    """A task's model with its optimiser and schedule, on the devices of a Fabric. `graph`: replay a CUDA graph."""

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

    def step(self, batch: Any, on_loss: Callable[[Loss], None]) -> None:
        """Take one training step on this device's share of a batch, together with all devices.

        `on_loss` receives the loss and may raise before the weights change; with a CUDA graph it is called afterwards.
        """
        if self._graphed is None:
            self._take_step(batch, on_loss)
        else:
            on_loss(self._graphed(self._take_step, batch))
        if self._schedule is not None:
            with warnings.catch_warnings():
                # Steps with overflowing 16-bit gradients are skipped, often the first; the schedule counts every step.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self._schedule.step()

    def _take_step(self, batch: Any, on_loss: Callable[[Loss], None] | None = None) -> Loss:
        loss = self._objective(OpaqueBatch(batch) if self._mixed else batch)
        if on_loss is not None:
            on_loss(loss)
        self._stepper.zero_grad()
        self._fabric.backward(loss.value)
        if self._clip:
            # Checking whether the norm is finite would synchronise with the GPU.
            self._fabric.clip_gradients(self._objective, self._stepper, max_norm=self._clip, error_if_nonfinite=False)
        self._stepper.step()
        # Detached, so that keeping the loss does not keep its autograd graph.
        return Loss(loss.value.detach(), loss.report)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's weights and buffers on the CPU."""
        return {name: each.detach().cpu().contiguous().clone() for name, each in self._model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the weights."""
        return {
            "optimiser": self._optimiser.state_dict(),
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
            # The scale of 16-bit gradients; empty for other precisions.
            "precision": self._fabric.strategy.precision.state_dict(),
        }

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy weights into the model, in place."""
        self._model.load_state_dict(weights)

    def load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the weights and state of a checkpoint."""
        self.load_weights(weights)
        self._optimiser.load_state_dict(state["optimiser"])
        if self._schedule is not None and state["schedule"] is not None:
            self._schedule.load_state_dict(state["schedule"])
        self._fabric.strategy.precision.load_state_dict(state["precision"])
        # The optimiser's state now consists of other tensors.
        self._graphed = GraphedStep(self._optimiser, self._fabric.device) if self._graph else None


class LossBuffer:
    """Collects losses on the device and reads them rarely, so that a step need not wait for the previous one."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._report: dict[str, Tensor | float] = {}

    def add(self, loss: Loss) -> None:
        """Store the loss and report of a step."""
        self._losses.append(loss.value.detach())
        self._report = loss.report

    def check(self, step: int, last: int = 0) -> None:
        """Raise if one of the stored losses up to `step` is not finite. `last`: check only so many. Default: all."""
        if self._losses:
            _check_finite(torch.stack(self._losses[-last:]).tolist(), step)

    def read(self, step: int, stop: bool = False, fabric: Fabric | None = None) -> tuple[dict[str, float], bool]:
        """Loss and report of `step`, averaged over all devices, and whether any of them is requested to stop.

        Raises if a loss since the last call is not finite.
        """
        report = [_to_scalar(name, value, self._losses[-1]) for name, value in self._report.items()]
        stacked = torch.stack([*self._losses, *report, self._losses[-1].new_tensor(float(stop))])
        if fabric is not None and fabric.world_size > 1:
            stacked = fabric.all_reduce(stacked, reduce_op="mean")
        assert isinstance(stacked, Tensor)
        numbers = stacked.tolist()
        losses = numbers[: len(self._losses)]
        self._losses = []
        _check_finite(losses, step)
        reported = dict(zip(self._report, numbers[len(losses) : -1], strict=True))
        return {"loss": losses[-1], **reported}, numbers[-1] > 0


def _to_scalar(name: str, value: Tensor | float, like: Tensor) -> Tensor:
    if name in RESERVED:
        raise InputError(f"a report may not use the names {', '.join(RESERVED)}; given {name!r}")
    if isinstance(value, Tensor) and value.numel() != 1:
        raise InputError(f"a report has one number per name; {name!r} has shape {tuple(value.shape)}: take its mean")
    return torch.as_tensor(value, device=like.device).detach().to(like.dtype).reshape(())


def _check_finite(losses: list[float], step: int) -> None:
    bad = [step - len(losses) + 1 + index for index, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        raise RunError(
            f"the loss is not finite at step {bad[0]}: "
            "try a smaller learning rate, more precision, or a tighter tolerance"
        )
