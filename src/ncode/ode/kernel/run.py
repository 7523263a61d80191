"""A kernel called with tensors: the settings of a call, and the gradients that come back."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attempt import LoopState
from ..captures import Captures
from ..problem import Problem
from ..step import PID
from ..system import State
from .backward_cpp import backward_source
from .driver_cpp import Machine, Shape, shared_buffers, sum_sizes
from .forward_cpp import forward_source
from .lower import Lowered

_POINTERS = "t0 span reached size t0_gradient span_gradient status accepted rejected nfe active sums"
_NUMBERS = "dt low high stretch safety smallest largest now before earlier"


def _settings_type(shape: Shape, shared: int, more: Sequence[tuple[str, Any]]) -> type[ctypes.Structure]:
    """`Settings` of driver_cpp.py."""
    leaves, controls = len(shape.states), max(len(shape.controls), 1)
    lists = {"z0": leaves, "theta": controls, "shared": max(shared, 1), "z1": leaves, "theta_gradient": controls}
    fields = [(name, c_void_p * count) for name, count in lists.items()]
    fields += [(name, c_void_p) for name in _POINTERS.split()]
    fields += [(name, c_double * leaves) for name in ("rtol", "atol")]
    fields += [("ts", c_void_p), ("saved", c_void_p * leaves), ("saved_gradient", c_void_p * leaves)]
    fields += [(name, c_double) for name in _NUMBERS.split()]
    fields += [(name, c_int64) for name in ("batch", "attempts", "times")]
    return type("Settings", (ctypes.Structure,), {"_fields_": [*fields, *more]})


class Call:
    """The arguments of one call; holds the tensors whose memory they point to."""

    def __init__(self, settings: Any):
        self.settings, self.held = settings, []

    def point(self, **tensors: Tensor | Sequence[Tensor | None] | None) -> None:
        """Pointers to tensors, or lists of pointers."""
        for name, value in tensors.items():
            if isinstance(value, Tensor):
                setattr(self.settings, name, value.data_ptr())
            elif value is not None:
                place = getattr(self.settings, name)
                for i, leaf in enumerate(value):
                    place[i] = None if leaf is None else leaf.data_ptr()
            self.held.append(value)

    def set(self, **numbers: Any) -> None:
        for name, value in numbers.items():
            place = getattr(self.settings, name)
            if isinstance(value, (int, float)):
                setattr(self.settings, name, value)
            else:
                place[:] = value


class Gradients(NamedTuple):
    """What a pullback returns; times in the precision of time."""

    z0: State
    theta: dict[int, Tensor]  # by the number of the constant
    t0: Tensor
    span: Tensor
    captures: list[Tensor | None]


class Solved(NamedTuple):
    """The end of a solve, and what its pullback needs of it."""

    state: LoopState
    nfe: Tensor
    failed: int  # number of failed samples
    tape: Any
    saved: State  # the first leaves of z at the saved times


class Kernel(ABC):
    """A lowered graph of a solve or its pullback, compiled for a machine."""

    machine: Machine
    more_settings: Sequence[tuple[str, Any]]

    def __init__(self, parts: Sequence[Lowered], shape: Shape, outside: Sequence[Tensor], device: torch.device):
        self.parts, self.shape, self.device = tuple(parts), shape, device
        self.lowered, self.dtype = parts[0], parts[0].dtype
        make_source = forward_source if self.lowered.graph.wanted is None else backward_source
        self.source = make_source(parts, shape, self.dtype, self.machine)
        places = {id(tensor): i for i, tensor in enumerate(outside)}
        self.names = [_names_of_captures(part, places) for part in parts]
        self.settings_type = _settings_type(shape, len(shared_buffers(parts)), self.more_settings)

    @abstractmethod
    def start(self) -> None:
        """Begin to compile."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until it is compiled; raise Unsupported if that failed."""

    @abstractmethod
    def run_forward(self, call: Call, record: bool, outputs: LoopState) -> tuple[int, Any]:
        """Solve; return the number of samples that failed, and a tape if it is asked for."""

    @abstractmethod
    def run_backward(self, call: Call, tape: Any) -> Tensor:
        """Walk back along a tape; return the sums over samples, in several rows that are to be added."""

    def call(self, problem: Problem, captures: Captures) -> Call:
        call, theta = Call(self.settings_type()), problem.theta
        pairs = zip(self.parts, self.names, strict=True)
        shared = [it for part, names in pairs for it in part.run_prologue(_named(names, captures))]
        controls = [leaf.detach().contiguous() for leaf in problem.control]
        t0 = theta[-1].detach().contiguous() if problem.system.shifted else None
        call.point(theta=controls, shared=shared, t0=t0)
        call.point(span=problem.span.detach().contiguous())
        tolerance, leaves = problem.tolerance, len(problem.z0)
        rest = leaves - len(tolerance.rtol)
        rtol, atol = (*tolerance.rtol, *[tolerance.others[0]] * rest), (*tolerance.atol, *[tolerance.others[1]] * rest)
        call.set(batch=problem.batch, rtol=rtol, atol=atol)
        if problem.ts is not None:
            call.point(ts=problem.ts.detach().contiguous())
            call.set(times=problem.ts.shape[1])
        return call

    def solve(self, problem: Problem, captures: Captures, record: bool) -> Solved:
        """The end of the loop, the number of evaluations, and the tape."""
        options, batch, device = problem.options, problem.batch, problem.t0.device
        rule, order, low_high = options.rule, options.tableau.error_order + 1, options.limits
        assert isinstance(rule, PID)
        call = self.call(problem, captures)
        z0 = [leaf.detach().contiguous() for leaf in problem.z0]
        z1 = tuple(map(torch.empty_like, z0))
        t, h = torch.empty(2, batch, dtype=torch.float64, device=device).unbind()
        status, accepted, rejected, nfe = torch.empty(4, batch, dtype=torch.int32, device=device).unbind()
        call.point(z0=z0, z1=z1, reached=t, size=h, status=status, accepted=accepted, rejected=rejected, nfe=nfe)
        saved = self._saved(problem)
        call.point(saved=saved)
        fixed, count = options.dt is not None, problem.fixed_count
        call.set(
            dt=options.dt or 0.0,
            low=low_high.low,
            high=low_high.high,
            stretch=1 + 1e-9 if fixed else rule.stretch,
            safety=rule.safety,
            smallest=rule.smallest,
            largest=rule.largest,
            now=-(rule.p + rule.i + rule.d) / order,
            before=(rule.p + 2 * rule.d) / order,
            earlier=-rule.d / order,
            attempts=options.max_steps if count is None else count,
        )
        state = LoopState(t, h, z1, None, h, h, status, status, accepted, rejected)  # ratios and alive are not kept
        failed, tape = self.run_forward(call, record, state)
        return Solved(state, nfe, failed, tape, saved)

    def _saved(self, problem: Problem) -> State:
        """Memory for values at saved times: nan, where a sample does not come so far."""
        if problem.ts is None:
            return ()
        batch, count = problem.ts.shape
        leaves = problem.z0[: self.shape.saved]
        return tuple(leaf.new_full((batch, count, *leaf.shape[1:]), torch.nan) for leaf in leaves)

    def pull(
        self,
        problem: Problem,
        captures: Captures,
        solved: Solved,
        active: Tensor | None,
        end: Sequence[Tensor],
        saved: Sequence[Tensor | None] = (),
    ) -> Gradients:
        """The gradients of the inputs, from those of the end and of saved values; only active samples (None: all)."""
        call, program, batch = self.call(problem, captures), self.lowered.program, problem.batch
        theta, z0 = {i: _like(problem.control[i]) for i in program.own_terms}, tuple(map(_like, problem.z0))
        unused = torch.empty(0)
        everything = [theta.get(i, unused) for i in range(len(problem.control))]
        t0, span = torch.empty(2, batch, dtype=torch.float64, device=problem.t0.device).unbind()
        call.point(z0=[leaf.contiguous() for leaf in end], z1=z0, theta_gradient=everything)
        call.point(t0_gradient=t0, span_gradient=span, active=None if active is None else active.int())
        call.point(saved_gradient=[None if it is None else it.contiguous() for it in saved], reached=solved.state.t)
        sums = self.run_backward(call, solved.tape)
        if not program.shared_terms:
            return Gradients(z0, theta, t0, span, self._of_captures((), captures))
        terms = zip(sums.sum(0).split(sum_sizes(program)), program.shared_terms, strict=True)
        return Gradients(
            z0, theta, t0, span, self._of_captures([total.reshape(term.shape) for total, term in terms], captures)
        )

    def _of_captures(self, sums: Sequence[Tensor], captures: Captures) -> list[Tensor | None]:
        nodes = zip(self.lowered.sums, sums, strict=True)
        shaped = [total.reshape(node.meta["val"].shape) for node, total in nodes]
        return self.lowered.run_epilogue(shaped, _named(self.names[0], captures))


def _names_of_captures(part: Lowered, places: dict[int, int]) -> dict[str, int]:
    """The attributes of a graph that are captures, with their numbers."""
    module = part.graph.module
    attributes = [str(node.target) for node in module.graph.nodes if node.op == "get_attr"]
    return {it: place for it in attributes if (place := places.get(id(getattr(module, it)))) is not None}


def _named(names: dict[str, int], captures: Captures) -> dict[str, Tensor]:
    return {name: captures.outside[place] for name, place in names.items()}


def _like(leaf: Tensor) -> Tensor:
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)
