"""The kept graph of a short solve: the "discrete" gradient without a second evaluation of the steps.

Where memory allows, the loop computes its states with autograd, from leaves that stand for the inputs of the solve, and
backward differentiates this graph at once. Step sizes and decisions are constants in it, so that the gradient is the
one of a walk along the tape. The tape is kept, too: it takes over where the graph is not safe to use, since other than
the tape it contains rejected steps and failed samples, at which the dynamics may have no finite derivative.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._torch_private import has_saved_tensor_hooks
from ..arguments import all_finite
from ..captures import Captures, Probe
from ..integrate import LoopStart
from ..problem import Problem, SampleInputs
from ..record import Passed, StepRecord, mask_like
from ..system import State, expand_like, tensors_of
from ..unknown import refuse_unknown
from .function import InputGradients, Outputs, computed_from_others, has_hooks

MEMORY = 256 * 2**20
"""Bytes that the graphs of all solves which wait for backward may take with keep="auto"."""


class _Held:
    """Bytes of the graphs that are kept at present. Graphs are freed in any thread, even in the midst of `add`."""

    def __init__(self) -> None:
        self.bytes, self.lock = 0.0, threading.RLock()

    def add(self, count: float, limit: float = math.inf) -> bool:
        """Add bytes, unless there would be more than the limit."""
        with self.lock:
            fits = self.bytes + count <= limit
            self.bytes += count if fits else 0.0
        return fits


HELD = _Held()


class KeptGraph:
    """The graph of a forward pass, from the leaves of `probe` to what a solve returns.

    Args:
        probe: The evaluation at t0, with which the graph begins.
        trained: The captures that require a gradient.
        sample_bytes: An estimate of the bytes that one attempt of one sample takes.
        limit: The bytes that all kept graphs may take.
    """

    def __init__(self, probe: Probe, trained: Sequence[Tensor], sample_bytes: float, limit: float):
        self.probe, self.trained, self.sample_bytes, self.limit = probe, trained, sample_bytes, limit
        self.bytes, self.dropped = 0.0, False
        self.z: State = ()  # at the end
        self.passed: list[Passed] = []  # values at saved times
        self.records: list[StepRecord] = []  # of dense output

    def enter(self, start: LoopStart) -> LoopStart:
        """The start of a loop with the leaves of the graph, and the slope of the probe, in place of its values."""
        state, slope = start.state, self.probe.slope
        state = state._replace(z=self.probe.z, slope=None if state.slope is None else slope)
        return start._replace(state=state)

    def reserve(self, samples: int) -> bool:
        """Whether one more attempt fits into memory; if not, the graph is dropped."""
        more = samples * self.sample_bytes
        if not HELD.add(more, self.limit):
            self.drop()
            return False
        self.bytes += more
        return True

    def drop(self) -> None:
        self.dropped = True
        self.z = ()
        self.passed.clear()
        self.records.clear()
        HELD.add(-self.bytes)
        self.bytes = 0.0

    def __del__(self) -> None:
        HELD.add(-self.bytes)

    def add(self, record: StepRecord) -> None:
        """Keep one attempt of a solve with dense output."""
        self.records.append(record)

    def pull(self, problem: Problem, needed: SampleInputs, grads: Outputs, again: bool) -> InputGradients | None:
        """Gradients of all inputs, None where they are not finite; `again` keeps the graph for another time."""
        (t, z, theta, _), trained = self.probe, self.trained
        pairs = [(out, grad) for out, grad in self._pairs(grads) if grad is not None and out.requires_grad]
        refuse_unknown([out for out, _ in pairs], (t, *z, *theta, *trained))
        wanted = [leaf for leaf, given in zip(z, problem.z0, strict=True) if given.requires_grad]
        wanted += [leaf for leaf, need in zip(theta, needed.theta, strict=True) if need]
        found: Sequence[Tensor | None] = [None] * (len(wanted) + len(trained))
        if pairs and found:
            outputs, cotangents = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, [*wanted, *trained], cotangents, retain_graph=again, allow_unused=True)
        there = [grad for grad in found if grad is not None]
        if there and not all_finite(there):
            return None
        rest = iter(found)
        by_z = [_or_zeros(next(rest), leaf) if leaf.requires_grad else None for leaf in problem.z0]
        pairs_of_theta = zip(theta, needed.theta, strict=True)
        by_theta = tuple(_or_zeros(next(rest), leaf) if need else None for leaf, need in pairs_of_theta)
        return InputGradients(tuple(by_z), SampleInputs(by_theta, None, None), tuple(rest))

    def _pairs(self, grads: Outputs) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Ends of the graph, with the gradients that arrive there."""
        yield from zip(self.z, grads.z, strict=True)
        for rows, (low, high, inside, _), values in self.passed:
            for value, grad in zip(values, grads.saved, strict=True):
                if grad is not None:
                    some = (grad if rows is None else grad[rows])[:, low:high]
                    yield value, torch.where(mask_like(inside, value[:, 0]), some, 0)
        for n, record in enumerate(self.records):
            yield from zip(record.z, (grad if grad is None else grad[n] for grad in grads.states), strict=False)
            for value, grad in zip(record.dense or (), grads.powers, strict=True):
                if grad is not None:
                    yield value, torch.where(expand_like(record.h != 0, (value,))[0], grad[n], 0)


def _or_zeros(grad: Tensor | None, leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if grad is None else grad


def start_graph(problem: Problem, captures: Captures, probe: Probe | None) -> KeptGraph | None:
    """A graph that begins with the probe; None where there is none, or where the tape does better.

    A graph cannot give a parameter with hooks a stand-in, as backward along the tape does: hooks must see the sum of
    all steps, once. With hooks on saved tensors (activation checkpointing, say) the user has decided what is kept.
    """
    options = problem.options
    if probe is None or options.keep == "states" or options.gradient != "discrete" or options.checkpoint_every > 1:
        return None
    if (
        options.implicit
        or problem.system.bounded
        or not options.backend.differentiable
        or computed_from_others(captures.trained)
    ):
        return None
    if any(time is not None and time.requires_grad for time in problem.inputs[1:]):
        return None
    if any(map(has_hooks, captures.trained)) or has_saved_tensor_hooks():
        return None
    step = options.make_step(problem.system, estimate=options.dt is None, dense=problem.interpolates)
    evaluation = saved_bytes(probe.slope, [probe.t, *probe.theta, *captures.outside])
    limit = {"auto": MEMORY, "graph": math.inf}.get(options.keep, options.keep)  # pyright: ignore
    sample_bytes = evaluation * step.evaluations / problem.batch
    if (problem.fixed_count or 1) * sample_bytes * problem.batch > limit:
        return None
    return KeptGraph(probe, captures.trained, sample_bytes, limit)


def saved_bytes(outputs: Sequence[Tensor], known: Sequence[Tensor]) -> int:
    """Bytes of the tensors that a graph has saved, apart from known ones."""
    ends = {tensor.grad_fn for tensor in known}
    stack: list[Any] = [node for output in outputs if (node := output.grad_fn) is not None]
    visited, found = {*stack, *ends}, {}
    while stack:
        node = stack.pop()
        found.update(map(_memory, _saved_by(node)))
        for after, _ in node.next_functions:
            if after is not None and after not in visited:
                visited.add(after)
                stack.append(after)
    for place, _ in map(_memory, known):
        found.pop(place, None)
    return sum(found.values())


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor lies, and the bytes there; of one that has no memory of its own, its name and size."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):
        return id(tensor), tensor.numel() * tensor.element_size()


def _saved_by(node: Any) -> list[Tensor]:
    saved: list[Any] = list(getattr(node, "saved_tensors", ()))  # of a function written in Python
    for name in _saved_names(type(node)):
        with contextlib.suppress(RuntimeError):  # of what was changed in place since
            saved.append(getattr(node, name))
    return tensors_of(tuple(saved))


@functools.lru_cache(maxsize=4096)
def _saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_") and "_sym_" not in name)
