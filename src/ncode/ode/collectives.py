"""No communication inside of a solve.

Ranks of a distributed training take different numbers of steps. If the dynamics communicated, one rank would wait for
others that have finished; and FSDP2 would lose the gradients of a module that is called again and again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .._torch_private import TorchDispatchMode, has_other_ranks
from ..errors import InputError


class ForbidCollectives(TorchDispatchMode):
    """A context in which communication with other ranks raises `InputError`, before any has taken place."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") in ("c10d", "_c10d_functional"):
            raise InputError(
                f"the dynamics communicate with other ranks ({func}), which take other numbers of steps and would wait"
                " forever: give the module that calls solve, such as the whole NCODE block, to DDP or fully_shard, not"
                " the dynamics alone, and use no SyncBatchNorm in the dynamics"
            )
        return func(*args, **(kwargs or {}))


def without_communication() -> AbstractContextManager[Any]:
    """`ForbidCollectives` where there are other ranks."""
    return ForbidCollectives() if has_other_ranks() else nullcontext()
