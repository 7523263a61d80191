"""Compiled solves: what a library's functions read and write, as tensors."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..captures import Captures
from ..integrate import LoopState
from ..problem import Problem
from ..step import PID
from ..system import State
from .backward_cpp import backward_source, sum_sizes
from .build import start_build
from .driver_cpp import Shape
from .forward_cpp import forward_source
from .lower import Lowered

_POINTERS = "z0 theta shared z1 theta_gradient t0 span reached size t0_gradient span_gradient"
_MORE_POINTERS = "status accepted rejected nfe active sums rtol atol"
_NUMBERS = "dt low high stretch safety smallest largest now before earlier"
_COUNTS = "batch attempts chunks threads"
_CHUNKS = 4  # per thread: fixed parts of a batch, so that sums do not depend on which thread is faster


class Settings(ctypes.Structure):
    """`Settings` of driver_cpp.py."""

    _fields_ = [
        *[(name, c_void_p) for name in f"{_POINTERS} {_MORE_POINTERS}".split()],
        *[(name, c_double) for name in _NUMBERS.split()],
        *[(name, c_int64) for name in _COUNTS.split()],
        ("tape", c_void_p),
    ]


class Call:
    """The arguments of one call; holds the tensors whose memory they point to."""

    def __init__(self, batch: int, block: int):
        self.settings, self.held = Settings(), []
        blocks, threads = -(-batch // block), torch.get_num_threads()
        self.settings.batch = batch
        self.settings.threads = min(threads, blocks)
        self.settings.chunks = min(blocks, _CHUNKS * threads) if threads > 1 else 1

    def point(self, **tensors: Tensor | Sequence[Tensor] | None) -> None:
        """Pointers to tensors, or to a list of pointers."""
        for name, value in tensors.items():
            if value is None:
                continue
            if isinstance(value, Tensor):
                address: Any = value.data_ptr()
            else:
                value = list(value)
                address = (c_void_p * max(len(value), 1))(*[leaf.data_ptr() for leaf in value])
                self.held.append(address)
                address = ctypes.addressof(address)
            self.held.append(value)
            setattr(self.settings, name, address)

    def numbers(self, name: str, values: Sequence[Any]) -> None:
        """A pointer to numbers."""
        array = (c_double * len(values))(*values)
        self.held.append(array)
        setattr(self.settings, name, ctypes.addressof(array))

    def set(self, **numbers: float) -> None:
        for name, value in numbers.items():
            setattr(self.settings, name, value)

    def run(self, function: Any) -> None:
        if function(ctypes.byref(self.settings)):
            raise MemoryError("a compiled solve ran out of memory")


class Tape:
    """The steps of a solve, in the memory of its library."""

    def __init__(self, library: ctypes.CDLL, batch: int):
        library.make_tape.restype, library.make_tape.argtypes = c_void_p, [c_int64]
        library.free_tape.restype, library.free_tape.argtypes = None, [c_void_p]
        self.address = library.make_tape(batch)
        if not self.address:
            raise MemoryError("a compiled solve ran out of memory")
        weakref.finalize(self, library.free_tape, self.address)


class Gradients(NamedTuple):
    """What a pullback returns; times in the precision of time."""

    z0: State
    theta: dict[int, Tensor]  # by the number of the constant
    t0: Tensor
    span: Tensor
    captures: list[Tensor | None]


class Kernel:
    """A lowered graph of a solve or its pullback, compiled."""

    def __init__(self, lowered: Lowered, shape: Shape, outside: Sequence[Tensor]):
        self.lowered, self.shape, self.dtype = lowered, shape, lowered.dtype
        self.source = (forward_source if lowered.graph.wanted is None else backward_source)(lowered, shape, self.dtype)
        places = {id(tensor): i for i, tensor in enumerate(outside)}
        module = lowered.graph.module
        attributes = [str(node.target) for node in module.graph.nodes if node.op == "get_attr"]
        self.names = {it: place for it in attributes if (place := places.get(id(getattr(module, it)))) is not None}
        self.block = 64 // self.dtype.itemsize
        self.building = None

    @property
    def library(self) -> ctypes.CDLL:
        self.start()
        return self.building.result()  # pyright: ignore[reportOptionalMemberAccess]

    def start(self) -> None:
        """Begin to compile."""
        self.building = self.building or start_build(self.source)

    def call(self, problem: Problem, captures: Captures, batch: int) -> Call:
        call, theta = Call(batch, self.block), problem.theta
        named = {name: captures.outside[place] for name, place in self.names.items()}
        controls = [leaf.detach().contiguous() for leaf in problem.control]
        t0 = theta[-1].detach().contiguous() if problem.system.shifted else None
        call.point(theta=controls, shared=self.lowered.run_prologue(named), t0=t0)
        call.point(span=problem.span.detach().contiguous())
        tolerance, leaves = problem.tolerance, len(problem.z0)
        rest = leaves - len(tolerance.rtol)
        call.numbers("rtol", (*tolerance.rtol, *[tolerance.others[0]] * rest))
        call.numbers("atol", (*tolerance.atol, *[tolerance.others[1]] * rest))
        return call

    def solve(self, problem: Problem, captures: Captures, record: bool) -> tuple[LoopState, Tensor, Tape | None]:
        """The end of the loop, the number of evaluations, and the tape."""
        options, batch = problem.options, problem.batch
        rule, order, low_high = options.rule, options.tableau.error_order + 1, options.limits
        assert isinstance(rule, PID)
        call = self.call(problem, captures, batch)
        z0 = [leaf.detach().contiguous() for leaf in problem.z0]
        z1 = tuple(map(torch.empty_like, z0))
        t, h = torch.empty(2, batch, dtype=torch.float64).unbind()
        status, accepted, rejected, nfe = torch.empty(4, batch, dtype=torch.int32).unbind()
        call.point(z0=z0, z1=z1, reached=t, size=h, status=status, accepted=accepted, rejected=rejected, nfe=nfe)
        tape = Tape(self.library, batch) if record else None
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
        call.settings.tape = None if tape is None else tape.address
        call.run(self.library.solve)
        alive = torch.zeros_like(status, dtype=torch.bool)
        return LoopState(t, h, z1, None, h, h, alive, status, accepted, rejected), nfe, tape  # ratios are not kept

    def pull(
        self, problem: Problem, captures: Captures, tape: Tape, active: Tensor, end: Sequence[Tensor]
    ) -> Gradients:
        """The gradients of the inputs, from that of the end; only active samples take part."""
        call, program, batch = self.call(problem, captures, problem.batch), self.lowered.program, problem.batch
        sizes = sum_sizes(program)
        theta, z0 = {i: _like(problem.control[i]) for i in program.own_terms}, tuple(map(_like, problem.z0))
        everything = [theta.get(i, torch.empty(0)) for i in range(len(problem.control))]
        t0, span = torch.empty(2, batch, dtype=torch.float64).unbind()
        sums = torch.empty(call.settings.chunks, sum(sizes), dtype=self.dtype)
        call.point(z0=[leaf.contiguous() for leaf in end], z1=z0, theta_gradient=everything, active=active.int())
        call.point(t0_gradient=t0, span_gradient=span, sums=sums)
        call.settings.tape = tape.address
        call.run(self.library.pull)
        terms = zip(sums.sum(0).split(sizes), program.shared_terms, strict=True)
        shaped = [total.reshape(term.shape) for total, term in terms]
        named = {name: captures.outside[place] for name, place in self.names.items()}
        return Gradients(z0, theta, t0, span, self._of_captures(shaped, named))

    def _of_captures(self, sums: Sequence[Tensor], named: dict[str, Tensor]) -> list[Tensor | None]:
        nodes = zip(self.lowered.sums, sums, strict=True)
        shaped = [total.reshape(node.meta["val"].shape) for node, total in nodes]
        return self.lowered.run_epilogue(shaped, named)


def _like(leaf: Tensor) -> Tensor:
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)
