"""Which solves fit into a kernel, and the kernels of those that do, kept for the next solve of the same kind."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..backends.inductor import identity_of_system
from ..captures import Captures, torch_settings
from ..gradients.function import (
    ForwardContext,
    InputGradients,
    Outputs,
    Pullback,
    for_backward,
    inner_product,
    isolate_captures,
)
from ..problem import Problem, SampleInputs
from ..step import PID
from ..system import expand_like
from ..tableau import Tableau
from .build import compiler
from .build_cuda import has_compiler
from .driver_cpp import Shape
from .emit_cpp import program_size
from .lower import Lowered
from .run import Kernel
from .run_cpu import CpuKernel
from .run_cuda import CudaKernel
from .trace import Graph, Unsupported, Wanted, trace_pullback, trace_slope

MOST_STATES = 64  # elements of a sample's state
MOST_VALUES = 4096  # elements of all intermediate tensors of a sample, and of its control
MOST_OPERATIONS = 65536  # on numbers, in one evaluation of a sample
MOST_STATEMENTS = 1000  # operations on tensors: the compiler takes longer for more
_LIMIT = 64  # plans kept; the least recently used are dropped
KERNELS: dict[str, type[Kernel]] = {"cpu": CpuKernel, "cuda": CudaKernel}
"""By the type of device."""

_plans: OrderedDict[Hashable, tuple[Any, Plan | str]] = OrderedDict()


@dataclass(frozen=True)
class Plan:
    """The kernels of a solve: forward, and its pullback if it has gradients."""

    forward: Kernel
    backward: Kernel | None


def find_plan(problem: Problem, captures: Captures, differentiates: bool) -> Plan | str:
    """The plan of a solve, not compiled yet; or a clause that says why it has none."""
    reason = _misfit(problem, captures, differentiates)
    if reason is not None:
        return reason
    wanted = _wanted(problem) if differentiates else None
    key = _key(problem, captures, wanted)
    if key not in _plans:
        try:
            found: Plan | str = _make_plan(problem, captures, wanted)
        except Unsupported as error:
            found = str(error)
        _plans[key] = problem.system, found  # holding the system keeps the ids in its key from being used again
        while len(_plans) > _LIMIT:
            _plans.popitem(last=False)
    _plans.move_to_end(key)
    return _plans[key][1]


def _key(problem: Problem, captures: Captures, wanted: Wanted | None) -> Hashable:
    leaves = tuple((it.shape, it.dtype) for it in (*problem.z0, *problem.control))
    outside = tuple((it.shape, it.stride(), it.dtype, it.requires_grad) for it in captures.outside)
    places = {id(tensor): i for i, tensor in enumerate(captures.outside)}
    trained = tuple(places.get(id(tensor)) for tensor in captures.trained)
    options = problem.options
    method = options.tableau, options.dt is None, problem.system.shifted
    settings = torch_settings(problem.t0.device), problem.t0.device
    return identity_of_system(problem.system), leaves, outside, trained, method, wanted, settings


def _wanted(problem: Problem) -> Wanted:
    controls = len(problem.control)
    times = (problem.span, *problem.theta[controls:])
    return Wanted(any(it.requires_grad for it in times), tuple(it.requires_grad for it in problem.control))


def _misfit(problem: Problem, captures: Captures, differentiates: bool) -> str | None:
    """Why a problem has no kernel, whatever its dynamics are."""
    options, tolerance = problem.options, problem.tolerance
    numbers = (*tolerance.rtol, *tolerance.atol, *tolerance.others)
    tensors, device = (*problem.z0, *problem.control, *captures.outside), problem.t0.device
    reasons = (
        (device.type not in KERNELS, f"the state is on {device.type}, and kernels are for {' and '.join(KERNELS)}"),
        (device.type == "cpu" and os.name != "posix", "kernels are compiled on Linux and macOS only"),
        (device.type == "cpu" and compiler() is None, "no C++ compiler was found (g++, clang++, or the variable CXX)"),
        (device.type == "cuda" and not has_compiler(), "the package cuda-bindings is not installed"),
        (not isinstance(options.tableau, Tableau), f"the method {options.tableau.name} is implicit"),
        (options.shared_step, 'step="batch" couples the samples'),
        (type(options.rule) is not PID, "the step-size rule is not PID"),
        (problem.ts is not None, "save_at is given"),
        (problem.dense, "dense output is asked for"),
        (problem.callback is not None, "a callback is given"),
        (problem.save_steps, "save_steps is asked for"),
        (problem.system.bounded, "the dynamics jump"),
        (any(isinstance(it, Tensor) for it in numbers), "rtol or atol is a tensor"),
        (differentiates and options.gradient != "discrete", f'gradient="{options.gradient}" needs the steps in torch'),
        (differentiates and options.checkpoint_every != 1, "checkpoint_every is given"),
        (problem.batch == 1, "the batch has one sample"),
        (any(leaf.is_complex() for leaf in problem.z0), "the state is complex"),
        (any(leaf.dtype != problem.system.dtype for leaf in problem.control), "theta has another dtype than the state"),
        (any(type(it) not in (Tensor, nn.Parameter) for it in tensors), "a tensor of a subclass is used"),
        (any(it.device != device for it in captures.outside), "a captured tensor is on another device than the state"),
        (sum(_sizes(problem.z0)) > MOST_STATES, f"a sample's state has more than {MOST_STATES} elements"),
        (sum(_sizes(problem.control)) > MOST_VALUES, f"a sample's control has more than {MOST_VALUES} elements"),
        (torch.is_inference_mode_enabled() and differentiates, "inference mode is on"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _sizes(leaves: Any) -> tuple[int, ...]:
    return tuple(leaf[0].numel() for leaf in leaves)


def _make_plan(problem: Problem, captures: Captures, wanted: Wanted | None) -> Plan:
    system, (zero, z, theta), tableau = problem.system, problem.start, problem.options.tableau
    assert isinstance(tableau, Tableau)
    t, batch = system.clock(theta, zero), problem.batch
    shape = Shape(
        states=_sizes(z),
        parts=tuple((part.start, part.stop) for part in system.parts),
        controls=_sizes(problem.control),
        tableau=tableau,
        fixed=problem.options.dt is not None,
        shifted=system.shifted,
    )
    graph = trace_slope(system, t, z, theta)
    kernel = KERNELS[problem.t0.device.type]
    forward = kernel(_lower(graph, batch, system.dtype), shape, captures.outside)
    if wanted is None:
        return Plan(forward, None)
    context = ForwardContext(system, problem.t0.device, captures)
    isolated, stand_ins = for_backward(*isolate_captures(system, captures), context)  # a trace must call no hooks
    graph = trace_pullback(isolated, t, z, theta, wanted, stand_ins, context)
    backward = kernel(_lower(graph, batch, system.dtype), shape, stand_ins.outside)
    return Plan(forward, backward)


def _lower(graph: Graph, batch: int, dtype: torch.dtype) -> Lowered:
    try:
        lowered = Lowered(graph, batch, dtype)
    except Unsupported:
        raise
    except Exception as error:  # an operation used in a way that was not foreseen: other backends know it
        raise Unsupported(f"the traced dynamics could not be lowered ({error!r})") from error
    program = lowered.program
    terms = sum(term.factors[0].size for term in program.terms)
    if program_size(program) > MOST_VALUES or terms > 4 * MOST_VALUES:
        raise Unsupported(f"an evaluation has more than {MOST_VALUES} intermediate values per sample")
    if len(program.statements) + len(program.adjoint) > MOST_STATEMENTS:
        raise Unsupported(f"an evaluation consists of more than {MOST_STATEMENTS} operations on tensors")
    if program.operations > MOST_OPERATIONS:
        raise Unsupported(f"an evaluation takes more than {MOST_OPERATIONS} operations per sample")
    return lowered


@dataclass(eq=False)
class KernelPullback(Pullback):
    """What a compiled solve leaves behind: its tape, and the kernel that walks along it."""

    kernel: Kernel = field(kw_only=True)
    tape: Any = field(kw_only=True)

    def pull(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        problem, ends = self.problem, self.ends
        end = [
            torch.zeros_like(leaf) if grad is None else torch.where(mask, grad, 0)
            for leaf, grad, mask in zip(problem.z0, grads.z, expand_like(ends.kept, problem.z0), strict=True)
        ]
        found = self.kernel.pull(problem, self.captures, self.tape, ends.replayed, end)
        controls, theta = len(problem.control), []
        for number, need in enumerate(needed.theta):
            own = found.theta.get(number) if number < controls else found.t0
            theta.append((torch.zeros_like(problem.theta[number]) if own is None else own) if need else None)
        span = None
        if needed.span:
            still = ends.kept & ~ends.moved & ends.ok
            span = found.span + torch.where(still, inner_product(end, self.captures.slope), 0)
        self.stats.nfe_backward = torch.where(ends.replayed, self.stats.steps, 0) * self.kernel.shape.tableau.stages
        return InputGradients(found.z0, SampleInputs(tuple(theta), span, None), tuple(found.captures))
