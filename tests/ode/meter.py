"""A meter of live tensor memory."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Meter(TorchDispatchMode):
    """Counts the bytes of storages that operations make while the meter is on, for as long as they live.

    Every operation passes the dispatcher, those of backward too. A storage counts once however many tensors look at
    it, and stops counting when the last of them is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.made: list[int] = []  # the size of each storage, in the order of their making
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        old = {id(leaf.untyped_storage()) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage(), old)
        return result

    def _add(self, storage: Any, old: set[int]) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known or key in old:
            return

        def gone(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.made.append(size)
        self.peak = max(self.peak, self.live)
