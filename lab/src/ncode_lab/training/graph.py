"""A training step as one CUDA graph: recorded once, then replayed without Python.

A step consists of hundreds of operations; Python takes about 10 us to launch each, the GPU often less to compute it. A
replay runs the recorded operations on the recorded memory. So batches are copied to the memory of the recorded batch,
learning rates are tensors on the device, and everything else about a step must stay as it was. Random numbers are an
exception: a replay uses the current seed of the generator.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.utils import _pytree as pytree

from ncode import InputError

from .errors import RunError
from .task import Loss

WARM_UP = 3  # steps before recording: the first ones load libraries and choose kernels


class GraphedStep:
    """Takes training steps, and replays a recorded one from the fourth step with the same signature on.

    The signature consists of the shapes of the batch and the optimiser's settings other than the learning rates. One
    signature is recorded; steps with another, such as a smaller last batch, run without a graph.
    """

    def __init__(self, optimiser: Optimizer, device: torch.device):
        if "capturable" not in optimiser.defaults and not isinstance(optimiser, SGD):
            raise InputError(
                f"{type(optimiser).__name__} cannot be part of a CUDA graph: use Adam, AdamW or SGD,"
                " or leave --graph out"
            )
        self._optimiser, self._stream = optimiser, torch.cuda.Stream(device)
        # float32, which fused optimisers expect. Schedules keep working on the optimiser's own numbers.
        self._rates = [torch.zeros((), dtype=torch.float32, device=device) for _ in optimiser.param_groups]
        for state in optimiser.state.values():
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].to(device, torch.float32)
        self._signature: Any = None
        self._repeats = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recorded_signature: Any = None
        self._inputs: list[Tensor] = []
        self._loss: Loss | None = None

    def __call__(self, take_step: Callable[[Any], Loss], batch: Any) -> Loss:
        """Take a step on a batch on the device, and return its loss. Its report is valid until the next step.

        `take_step` is the whole step, from the batch to changed weights; the same function each time.
        """
        signature = self._signature_of(batch)
        self._repeats = self._repeats + 1 if signature == self._signature else 1
        self._signature = signature
        for rate, group in zip(self._rates, self._optimiser.param_groups, strict=True):
            rate.fill_(float(group["lr"]))
        if self._graph is None and self._repeats > WARM_UP:
            self._record(take_step, batch)
        if self._graph is not None and signature == self._recorded_signature:
            return self._replay(batch)
        return self._run(take_step, batch)

    def _run(self, take_step: Callable[[Any], Loss], batch: Any) -> Loss:
        """Run a step without a graph, on the recording stream: libraries keep their workspaces per stream."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), self._settings_on_device():
            loss = take_step(batch)
        current.wait_stream(self._stream)
        return loss

    def _record(self, take_step: Callable[[Any], Loss], batch: Any) -> None:
        """Record a step. Nothing is computed."""
        leaves, nesting = pytree.tree_flatten(batch)
        inputs = [each.clone() if isinstance(each, Tensor) else each for each in leaves]
        graph = torch.cuda.CUDAGraph()
        try:
            # A failed recording leaves its stream in place: the outer context restores the previous one.
            outer, inner = torch.cuda.stream(self._stream), torch.cuda.graph(graph, stream=self._stream)
            with self._settings_on_device(), outer, inner, forbid_sync():
                loss = take_step(pytree.tree_unflatten(inputs, nesting))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise RunError(
                f"a training step could not be recorded as a CUDA graph: {error_location(error)}. A recorded step may"
                " not read a value of a tensor, nor copy one from the CPU: leave --graph out"
            ) from error
        self._graph, self._recorded_signature, self._loss = graph, self._signature, loss
        self._inputs = [each for each in inputs if isinstance(each, Tensor)]

    def _replay(self, batch: Any) -> Loss:
        assert self._graph is not None and self._loss is not None
        tensors = [each for each in pytree.tree_leaves(batch) if isinstance(each, Tensor)]
        for recorded, tensor in zip(self._inputs, tensors, strict=True):
            recorded.copy_(tensor)
        self._graph.replay()
        return Loss(self._loss.value.clone(), self._loss.report)

    def _signature_of(self, batch: Any) -> Any:
        leaves, nesting = pytree.tree_flatten(batch)
        shapes = [(each.shape, each.dtype) if isinstance(each, Tensor) else each for each in leaves]
        numbers = bool | float | int | tuple
        settings = [
            {name: each for name, each in group.items() if name != "lr" and isinstance(each, numbers)}
            for group in self._optimiser.param_groups
        ]
        return nesting, shapes, settings

    @contextmanager
    def _settings_on_device(self) -> Iterator[None]:
        """Let the optimiser read learning rates from the device, and count its steps there."""
        groups = self._optimiser.param_groups
        before = [{name: group[name] for name in ("lr", "capturable") if name in group} for group in groups]
        for group, rate, settings in zip(groups, self._rates, before, strict=True):
            on_device = {"lr": rate, "capturable": True}
            group.update({name: on_device[name] for name in settings})
        try:
            yield
        finally:
            for group, settings in zip(groups, before, strict=True):
                group.update(settings)


@contextmanager
def forbid_sync() -> Iterator[None]:
    """Raise where Python waits for the GPU: CUDA would refuse it later, without saying where."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def error_location(error: BaseException) -> str:
    """The innermost line outside torch that an error comes from, and the first line of its message."""
    torch_folder = str(Path(torch.__file__).parent)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(torch_folder)]
    message = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: {message}" if frames else message
