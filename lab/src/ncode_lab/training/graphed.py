"""A training step as one CUDA graph: recorded once, and then replayed without the Python in between.

A step is hundreds of operations, each of which Python takes 10 us or so to launch, and a GPU a few to compute. What is
replayed is what was recorded: the same operations, on the same memory. So batches are copied to where the recorded one
lay, learning rates are numbers on the device, and all else that a step is made of must stay as it was. Random numbers
are none of this: a replay takes the seed that the generator has by then.
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

WARM_UP = 3  # steps of a kind before it is recorded: libraries are loaded and kernels chosen in the first of them


class GraphedStep:
    """Takes training steps, and from the fourth of a kind on replays it.

    Steps are of a kind where the batches have the same shapes and the optimiser the same settings, learning rates
    aside. One kind is recorded; those that differ, such as a smaller last batch, are taken as they come.

    Args:
        optimiser: Who changes the weights in a step.
        device: A CUDA device.
    """

    def __init__(self, optimiser: Optimizer, device: torch.device):
        if "capturable" not in optimiser.defaults and not isinstance(optimiser, SGD):
            raise InputError(
                f"{type(optimiser).__name__} cannot be part of a CUDA graph: use Adam, AdamW or SGD,"
                " or leave --graph out"
            )
        self._optimiser, self._stream = optimiser, torch.cuda.Stream(device)
        # What fused optimisers read them as. Schedules go on with the numbers of the optimiser.
        self._rates = [torch.zeros((), dtype=torch.float32, device=device) for _ in optimiser.param_groups]
        for state in optimiser.state.values():
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].to(device, torch.float32)
        self._kind: Any = None
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recorded: Any = None
        self._inputs: list[Tensor] = []
        self._loss: Loss | None = None

    def __call__(self, take: Callable[[Any], Loss], batch: Any) -> Loss:
        """Take a step on a batch.

        Args:
            take: The whole step, from the batch to changed weights; the same function each time.
            batch: On the device.

        Returns:
            Its loss. The report is good until the next step.
        """
        kind = self._kind_of(batch)
        self._seen = self._seen + 1 if kind == self._kind else 1
        self._kind = kind
        for rate, group in zip(self._rates, self._optimiser.param_groups, strict=True):
            rate.fill_(float(group["lr"]))
        if self._graph is None and self._seen > WARM_UP:
            self._record(take, batch)
        return self._replay(batch) if self._graph is not None and kind == self._recorded else self._take(take, batch)

    def _take(self, take: Callable[[Any], Loss], batch: Any) -> Loss:
        """A step as it comes. On the stream that records: what is set up for one stream is not for another."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream), self._on_device():
            loss = take(batch)
        here.wait_stream(self._stream)
        return loss

    def _record(self, take: Callable[[Any], Loss], batch: Any) -> None:
        """Record a step. Nothing is computed."""
        leaves, nesting = pytree.tree_flatten(batch)
        mine = [each.clone() if isinstance(each, Tensor) else each for each in leaves]
        graph = torch.cuda.CUDAGraph()
        try:
            # A recording that fails leaves its stream in place: the one around it puts back what was there.
            around, inside = torch.cuda.stream(self._stream), torch.cuda.graph(graph, stream=self._stream)
            with self._on_device(), around, inside, no_looking():
                loss = take(pytree.tree_unflatten(mine, nesting))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise RunError(
                f"a training step could not be recorded as a CUDA graph: {where(error)}. A step that is recorded may"
                " not look at a value of a tensor, nor bring one from the CPU: leave --graph out"
            ) from error
        self._graph, self._recorded, self._loss = graph, self._kind, loss
        self._inputs = [each for each in mine if isinstance(each, Tensor)]

    def _replay(self, batch: Any) -> Loss:
        assert self._graph is not None and self._loss is not None
        given = [each for each in pytree.tree_leaves(batch) if isinstance(each, Tensor)]
        for mine, each in zip(self._inputs, given, strict=True):
            mine.copy_(each)
        self._graph.replay()
        return Loss(self._loss.value.clone(), self._loss.report)

    def _kind_of(self, batch: Any) -> Any:
        """What must be the same for a recorded step to be the right one."""
        leaves, nesting = pytree.tree_flatten(batch)
        shapes = [(each.shape, each.dtype) if isinstance(each, Tensor) else each for each in leaves]
        numbers = bool | float | int | tuple
        settings = [
            {name: each for name, each in group.items() if name != "lr" and isinstance(each, numbers)}
            for group in self._optimiser.param_groups
        ]
        return nesting, shapes, settings

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Let the optimiser take the learning rates from the device, and keep its counts there."""
        groups = self._optimiser.param_groups
        told = [{name: group[name] for name in ("lr", "capturable") if name in group} for group in groups]
        for group, rate, numbers in zip(groups, self._rates, told, strict=True):
            recorded = {"lr": rate, "capturable": True}
            group.update({name: recorded[name] for name in numbers})
        try:
            yield
        finally:
            for group, numbers in zip(groups, told, strict=True):
                group.update(numbers)


@contextmanager
def no_looking() -> Iterator[None]:
    """Make it an error to wait for the GPU: CUDA would refuse it later, and not say where."""
    before = torch.cuda.get_sync_debug_mode()
    _set_debug_mode("error")
    try:
        yield
    finally:
        _set_debug_mode(before)


def where(error: BaseException) -> str:
    """The place that an error comes from, outside of torch, and the first line of what it says.

    >>> try:
    ...     torch.zeros(2).reshape(3)
    ... except RuntimeError as error:
    ...     print(where(error).partition(": ")[2])
    shape '[3]' is invalid for input of size 2
    """
    torch_itself = str(Path(torch.__file__).parent)
    places = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(torch_itself)]
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{Path(places[-1].filename).name}, line {places[-1].lineno}: {line}" if places else line


def _set_debug_mode(mode: str | int) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)
