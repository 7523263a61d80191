"""The Inductor backend: `compile=True`.

The start, an attempt and the pullback of a step are traced once per shape and compiled by TorchInductor; on CUDA the
last two are replayed as CUDA graphs. Python values that the dynamics read are constants of the graph, which is made
anew when they change; tensors are arguments.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

from ..captures import IsolatedFunction, torch_settings
from ..held_values import Survey, survey
from ..system import RightHandSide, System, tensors_of
from . import Backend, TensorFunction
from .compile_time import report_if_slow
from .graph import TRACING, CompiledFunction
from .layout import to_batch_last

BUCKET = 8  # compiled batches shrink by this factor: every size is a shape of its own
_LIMIT = 64  # compiled functions kept; the least recently used are dropped
_caches = threading.Lock()
_checked: OrderedDict[Hashable, Any] = OrderedDict()
_compiled: OrderedDict[Hashable, tuple[Any, CompiledFunction]] = OrderedDict()


class Inductor(Backend):
    """Compiles functions by TorchInductor, once per shape; on CUDA records them as CUDA graphs."""

    name = "inductor"
    fuses = True

    def why_not_whole(self, problem: Any, captures: Any, differentiates: bool) -> str | None:
        return 'compile="inductor"'

    def run(self, function: TensorFunction, inputs: Any, captures: Sequence[Tensor]) -> Any:
        tensors = tensors_of(inputs)
        size = len(tensors[0])
        if size not in function.cache:
            function.cache[size] = _find(function, inputs, tensors, captures)
        return function.cache[size](tensors, captures)

    def check(self, system: RightHandSide, inputs: Any, check: Callable[[], None]) -> None:
        key = identity_of_system(system), tuple((it.shape, it.dtype) for it in tensors_of(inputs))
        if key not in _checked:
            check()
            _keep(_checked, key, system)

    def has_changed(self, system: RightHandSide) -> bool:
        assert isinstance(system, System)
        before = system.memo.get("survey")
        return before is None or before.fingerprint != _survey(system).fingerprint

    def prepare(self, tensor: Tensor) -> Tensor:
        return to_batch_last(tensor)

    def bucket_size(self, batch: int, alive: int) -> int:
        while -(-batch // BUCKET) >= alive and batch > BUCKET:
            batch = -(-batch // BUCKET)
        return batch


INDUCTOR = Inductor()


def _find(
    function: TensorFunction, inputs: Any, tensors: Sequence[Tensor], captures: Sequence[Tensor]
) -> CompiledFunction:
    """The compiled form of a function for these shapes, from the cache if it is there."""
    shapes = tuple((it.shape, it.dtype, it.device) for it in tensors)
    outside = tuple((it.shape, it.stride(), it.dtype, it.device) for it in captures)
    what = type(function).__name__, identity_of_system(function.system), function.signature
    key = what, shapes, _structure(inputs), outside, torch_settings(tensors[0].device)
    if (made := _kept(key)) is not None:
        return made
    with TRACING:
        if (made := _kept(key)) is not None:  # by another thread, meanwhile
            return made
        with report_if_slow(f"{what[0].lower()} for {len(tensors[0])} samples (inductor)"):
            made = CompiledFunction(function, inputs, captures)
        _keep(_compiled, key, (function.system, made))
    return made


def _kept(key: Hashable) -> CompiledFunction | None:
    with _caches:
        if key not in _compiled:
            return None
        _compiled.move_to_end(key)
        return _compiled[key][1]


def _keep(cache: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Add a value, which holds the system of its key, so that no id in the key is used again."""
    with _caches:
        cache[key] = value
        while len(cache) > _LIMIT:
            cache.popitem(last=False)


def _structure(tree: Any) -> Hashable:
    if isinstance(tree, tuple):
        return tuple(map(_structure, tree))
    return "tensor" if isinstance(tree, Tensor) else tree


def identity_of_system(system: Any) -> Hashable:
    """What the system's functions do; found once per solve, since it takes a while."""
    if system is None:
        return None
    assert isinstance(system, System)
    isolated = any(isinstance(it, IsolatedFunction) for it in system.functions)
    shape = str(system.spec), str(system.x_spec), system.dtype, system.shifted, system.bounded
    return survey_system(system).fingerprint, isolated, *shape


def survey_system(system: System) -> Survey:
    """What the system's functions hold, found once per solve."""
    if "survey" not in system.memo:
        system.memo["survey"] = _survey(system)
    return system.memo["survey"]


def _survey(system: System) -> Survey:
    return survey([it.function if isinstance(it, IsolatedFunction) else it for it in system.functions])
