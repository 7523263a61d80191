"""What all ranks must agree on before they go on: whether every rank succeeded, and whether every rank has compiled."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import InputError, Status

Group = Any  # a torch.distributed.ProcessGroup, or None for all ranks


def is_distributed() -> bool:
    """Whether this process is one of a group."""
    return dist.is_available() and dist.is_initialized()


def warn_if_alone() -> None:
    """Warn, once per process, if a launcher started several processes that do not know of each other."""
    ranks = os.environ.get("WORLD_SIZE", "")
    if not is_distributed() and ranks.isdecimal() and int(ranks) > 1:
        _warn_of(int(ranks))


@cache
def _warn_of(ranks: int) -> None:
    warnings.warn(
        f"{ranks} processes were started (WORLD_SIZE), but they are not a group: each of them trains alone, on all"
        " samples. Call torch.distributed.init_process_group() before ncode.distributed is used",
        stacklevel=4,
    )


def collective_device(group: Group = None) -> torch.device:
    """The device on which tensors must be so that the group can exchange them."""
    if not is_distributed() or "cpu:" in dist.get_backend_config(group):
        return torch.device("cpu")
    device = torch.accelerator.current_accelerator()
    return torch.device("cpu") if device is None else device


class RankError(RuntimeError):
    """An error of one or more ranks, raised on all of them; `errors` has their messages by rank.

    >>> import ncode
    >>> str(ncode.distributed.RankError({2: "SolveError: 1 of 64 samples did not reach t1"}))
    'rank 2: SolveError: 1 of 64 samples did not reach t1'
    """

    def __init__(self, errors: dict[int, str]):
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(f"rank {rank}: {message}" for rank, message in self.errors.items())


def all_ok(outcome: Any, group: Group = None) -> bool:
    """Whether the outcome is good on all ranks: the same answer on each of them. Every rank must call it.

    Args:
        outcome: A `Solution` (or anything else with `ok`), a `Status` or several, codes or booleans per sample, or a
            bool.
        group: The ranks that take part. Default: all.

    >>> import torch, ncode
    >>> x0 = torch.tensor([[0.1], [9.0]])
    >>> sol = ncode.solve(lambda t, x, theta: x * x, x0, 0.0, 1.0, throw=False)  # blows up at t = 1 / x0
    >>> if not ncode.distributed.all_ok(sol):  # every rank leaves out this batch, or none does
    ...     print("skipped")
    skipped
    """
    flag = torch.tensor(int(_is_ok(outcome)), device=collective_device(group))
    if is_distributed():
        dist.all_reduce(flag, dist.ReduceOp.MIN, group)
    return bool(flag)


def _is_ok(outcome: Any) -> bool:
    if isinstance(outcome, bool):
        return outcome
    if isinstance(outcome, Tensor):
        return bool((outcome if outcome.dtype == torch.bool else outcome == Status.OK).all())
    if isinstance(outcome, Status):
        return outcome is Status.OK
    if (ok := getattr(outcome, "ok", None)) is not None:
        return _is_ok(ok)
    if isinstance(outcome, (tuple, list)):
        return all(map(_is_ok, outcome))
    raise InputError(
        f"all_ok takes a Solution, a Status, a tensor of codes or booleans, or a bool; given {type(outcome).__name__}"
    )


@contextmanager
def raise_together(group: Group = None) -> Iterator[None]:
    """Run a block on every rank; if it raises on one of them, raise `RankError` on all.

    Without it the other ranks would wait in their next collective operation, until it times out, for a rank that has
    failed. The block itself should not communicate: a forward pass is fine, a backward pass of DDP is not.

    Args:
        group: The ranks that take part. Default: all.

    >>> import torch, ncode
    >>> try:
    ...     with ncode.distributed.raise_together():
    ...         ncode.solve(lambda t, x, theta: x * x, torch.tensor([[9.0]]), 0.0, 1.0)
    ... except ncode.distributed.RankError as error:
    ...     print(str(error).splitlines()[0][:49])
    rank 0: SolveError: 1 of 1 samples did not reach
    """
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    if all_ok(error is None, group):
        return
    message = None if error is None else f"{type(error).__name__}: {error}"
    ranks, messages = [0], [message]
    if is_distributed():
        ranks = dist.get_process_group_ranks(group)
        messages = [None] * len(ranks)
        dist.all_gather_object(messages, message, group)
    raise RankError({rank: each for rank, each in zip(ranks, messages, strict=True) if each is not None}) from error


def warm_up(module: nn.Module, *inputs: Any, timeout: timedelta = timedelta(hours=1)) -> None:
    """Run a module forward and backward once on each rank, then wait until all ranks have done so.

    With `compile=True` the first call compiles, which can take longer than the other ranks wait in an all-reduce. Call
    this before DDP or `fully_shard` wraps the module, once for each batch size. Gradients, buffers and random numbers
    stay as they are. An error on one rank is a `RankError` on all.

    Args:
        module: The module, not yet wrapped.
        inputs: What it is called with: a batch like those of the training.
        timeout: How long ranks wait for the slowest.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16))
    >>> ncode.distributed.warm_up(block, torch.zeros(32, 2))
    """
    warn_if_alone()
    # A group of its own, since a timeout holds for all operations of a group. It is made while no rank compiles yet:
    # making it waits for all ranks too.
    group: Group = dist.new_group(backend="gloo", timeout=timeout) if is_distributed() else None
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with raise_together(group), torch.random.fork_rng(devices):
            _forward_and_backward(module, inputs)
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)
        if group is not None:
            dist.destroy_process_group(group)


def _forward_and_backward(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if isinstance(module, nn.parallel.DistributedDataParallel) or any(map(_is_sharded, module.parameters())):
        raise InputError("warm_up runs a module without communication: call it before DDP or fully_shard wraps it")
    with torch.enable_grad():
        outputs = [output for output in _tensors_in(module(*inputs)) if output.requires_grad]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if outputs and parameters:
        # Not backward(): it would add to the gradients of the parameters.
        torch.autograd.grad(outputs, parameters, [torch.ones_like(it) for it in outputs], allow_unused=True)


def _is_sharded(parameter: Tensor) -> bool:
    return type(parameter).__name__ == "DTensor"  # imported only where it is used


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in nested tuples, lists, mappings and dataclasses such as `Solution`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        yield from (tensor for item in value for tensor in _tensors_in(item))
    elif isinstance(value, Mapping):
        yield from _tensors_in(list(value.values()))
    elif is_dataclass(value):
        yield from _tensors_in(list(vars(value).values()))
