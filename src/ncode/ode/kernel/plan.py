"""Which solves fit into a kernel; kernels and captures of those that do, kept for the next one; and their pullback."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import Status
from ..backends.compile_time import report_if_slow
from ..backends.graph import TRACING
from ..backends.inductor import identity_of_system, survey_system
from ..captures import Captures, autocast_modes
from ..gradients.function import (
    ForwardContext,
    InputGradients,
    Outputs,
    check_versions,
    for_backward,
    inner_product,
    isolate_captures,
)
from ..implicit_tableau import RosenbrockTableau
from ..linearise import UNROLLED
from ..problem import Problem, SampleInputs
from ..solution import Stats
from ..step import PID
from ..system import version_of, where
from ..tableau import Tableau
from .build import compiler
from .build_cuda import has_compiler
from .driver_cpp import Shape
from .emit_cpp import program_size
from .lower import Lowered
from .run import Kernel, Solved
from .run_cpu import CpuKernel
from .run_cuda import CudaKernel
from .trace import Graph, Unsupported, Wanted, trace_pullback, trace_slope, trace_step, trace_step_pullback

MOST_STATES = 64  # elements of a sample's state
MOST_VALUES = 4096  # elements of all intermediate tensors of a sample, and of its control
MOST_OPERATIONS = 65536  # on numbers, in one evaluation of a sample
MOST_STATEMENTS = 1000  # operations on tensors of an evaluation: the compiler takes longer for more
MOST_STEP_STATEMENTS = 8000  # of a traced step
_LIMIT = 64  # plans kept; the least recently used are dropped
KERNELS: dict[str, type[Kernel]] = {"cpu": CpuKernel, "cuda": CudaKernel}
"""By the type of device."""

_plans: OrderedDict[Hashable, tuple[Any, Plan | str]] = OrderedDict()
_recalled: OrderedDict[Hashable, _Recalled] = OrderedDict()


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
    kept = _plans.get(key)
    if kept is None:
        with TRACING:
            kept = _plans.get(key) or _add_plan(key, problem, captures, wanted)
    with contextlib.suppress(KeyError):  # of a plan that another thread has dropped
        _plans.move_to_end(key)
    return kept[1]


def _add_plan(key: Hashable, problem: Problem, captures: Captures, wanted: Wanted | None) -> tuple[Any, Plan | str]:
    try:
        with report_if_slow("the dynamics into loops, for a kernel"):
            found: Plan | str = _make_plan(problem, captures, wanted)
    except Unsupported as error:
        found = str(error)
    _plans[key] = kept = problem.system, found  # holding the system keeps the ids in its key from being used again
    while len(_plans) > _LIMIT:
        _plans.popitem(last=False)
    return kept


class _Recalled(NamedTuple):
    """The captures of an earlier solve, as numbers of tensors that its functions hold."""

    system: Any  # held, so that no id in the key is used again
    trained: tuple[int, ...]
    others: tuple[int, ...]
    outside: tuple[int, ...]
    uses_time: bool


def recall_captures(problem: Problem, train: bool) -> Captures | None:
    """The captures of an earlier solve by the same functions, if all of them are held by these functions.

    Functions whose fingerprints are equal use the tensors at the same places, and none that were not found before.
    """
    if problem.span.requires_grad or problem.has_events:  # which need the slope at t0
        return None
    found = _recalled.get(_recall_key(problem, train))
    if found is None:
        return None
    held = survey_system(problem.system).tensors
    trained, others, outside = (tuple(held[i] for i in part) for part in found[1:4])
    if found.uses_time:
        problem.check_resolution()
    return Captures((), trained, others, outside, tuple(map(version_of, others)), found.uses_time)


def remember_captures(problem: Problem, captures: Captures, train: bool) -> None:
    """Keep captures for `recall_captures`, if all of them are held by the functions."""
    survey = survey_system(problem.system)
    places = {id(tensor): i for i, tensor in enumerate(survey.tensors)}
    if any(id(it) not in places for it in captures.outside):
        return
    trained, others, outside = (tuple(places[id(it)] for it in part) for part in captures[1:4])
    key = _recall_key(problem, train)
    _recalled[key] = _Recalled(problem.system, trained, others, outside, captures.uses_time)
    while len(_recalled) > _LIMIT:
        _recalled.popitem(last=False)


def _recall_key(problem: Problem, train: bool) -> Hashable:
    leaves = tuple((it.shape, it.dtype, it.requires_grad) for it in (*problem.z0, *problem.control))
    device = problem.t0.device
    return identity_of_system(problem.system), leaves, train, autocast_modes(device), device


def _key(problem: Problem, captures: Captures, wanted: Wanted | None) -> Hashable:
    leaves = tuple((it.shape, it.dtype) for it in (*problem.z0, *problem.control))
    outside = tuple((it.shape, it.stride(), it.dtype, it.requires_grad) for it in captures.outside)
    places = {id(tensor): i for i, tensor in enumerate(captures.outside)}
    trained = tuple(places.get(id(tensor)) for tensor in captures.trained)
    options = problem.options
    method = options.tableau, options.dt is None, problem.system.shifted, problem.ts is None
    settings = autocast_modes(problem.t0.device), problem.t0.device  # nothing else changes what a kernel computes
    return identity_of_system(problem.system), leaves, outside, trained, method, wanted, settings


def _wanted(problem: Problem) -> Wanted:
    controls = len(problem.control)
    times = (problem.span, *problem.theta[controls:])
    return Wanted(any(it.requires_grad for it in times), tuple(it.requires_grad for it in problem.control))


def _misfit(problem: Problem, captures: Captures, differentiates: bool) -> str | None:
    """Why a problem has no kernel, whatever its dynamics are."""
    return (
        _no_compiler(problem.t0.device)
        or _not_in_kernels(problem)
        or (_no_gradient(problem) if differentiates else None)
        or _other_tensors(problem, captures)
    )


def _no_compiler(device: torch.device) -> str | None:
    if device.type not in KERNELS:
        return f"the state is on {device.type}, and kernels are for {' and '.join(KERNELS)}"
    if device.type == "cuda":
        return None if has_compiler() else "the package cuda-bindings is not installed"
    if os.name != "posix":
        return "kernels are compiled on Linux and macOS only"
    return None if compiler() else "no C++ compiler was found (g++, clang++, or that of the variable CXX)"


def _not_in_kernels(problem: Problem) -> str | None:
    """What was asked for that kernels do not do."""
    options, tolerance = problem.options, problem.tolerance
    if not isinstance(options.tableau, (Tableau, RosenbrockTableau)):
        return f"the method {options.tableau.name} has no kernel"
    if isinstance(options.tableau, RosenbrockTableau) and sum(_sizes(problem.z0)) > UNROLLED:
        return f"with {options.tableau.name}, a sample's state may have at most {UNROLLED} elements"
    if options.shared_step:
        return 'step="batch" couples the samples'
    if type(options.rule) is not PID:
        return "the step-size rule is not PID"
    if problem.ts is not None and isinstance(options.tableau, RosenbrockTableau):
        return f"save_at is given, and {options.tableau.name} has no dense output in kernels"
    if problem.ts is not None and isinstance(options.tableau, Tableau) and options.tableau.extra_c:
        return f"save_at is given, and dense output of {options.tableau.name} takes further stages"
    if problem.has_events:
        return "events are given"
    if problem.dense:
        return "dense output is asked for"
    if problem.callback is not None:
        return "a callback is given"
    if problem.save_steps:
        return "save_steps is asked for"
    if problem.system.bounded:
        return "the dynamics jump"
    if any(isinstance(it, Tensor) for it in (*tolerance.rtol, *tolerance.atol, *tolerance.others)):
        return "rtol or atol is a tensor"
    return "the batch has one sample" if problem.batch == 1 else None


def _no_gradient(problem: Problem) -> str | None:
    options, times = problem.options, (problem.ts, problem.span, *problem.theta[len(problem.control) :])
    if problem.ts is not None and any(it is not None and it.requires_grad for it in times):
        return "save_at is given, and times need gradients"
    if options.gradient != "discrete":
        return f'gradient="{options.gradient}" needs the steps in torch'
    return "checkpoint_every is given" if options.checkpoint_every != 1 else None


def _other_tensors(problem: Problem, captures: Captures) -> str | None:
    """What kernels do not know about the tensors of a problem."""
    device, dtype = problem.t0.device, problem.system.dtype
    if any(leaf.is_complex() for leaf in problem.z0):
        return "the state is complex"
    if any(leaf.dtype != dtype for leaf in problem.control):
        return "theta has another dtype than the state"
    if any(type(it) not in (Tensor, nn.Parameter) for it in (*problem.z0, *problem.control, *captures.outside)):
        return "a tensor of a subclass is used"
    if any(it.device != device for it in captures.outside):
        return "a captured tensor is on another device than the state"
    if sum(_sizes(problem.z0)) > MOST_STATES:
        return f"a sample's state has more than {MOST_STATES} elements"
    if sum(_sizes(problem.control)) > MOST_VALUES:
        return f"a sample's control has more than {MOST_VALUES} elements"
    return None


def _sizes(leaves: Any) -> tuple[int, ...]:
    return tuple(leaf.numel() // leaf.shape[0] for leaf in leaves)


def _make_plan(problem: Problem, captures: Captures, wanted: Wanted | None) -> Plan:
    system, (zero, z, theta), tableau = problem.system, problem.start, problem.options.tableau
    assert isinstance(tableau, (Tableau, RosenbrockTableau))
    t, batch = system.clock(theta, zero), problem.batch
    shape = Shape(
        states=_sizes(z),
        parts=tuple((part.start, part.stop) for part in system.parts),
        controls=_sizes(problem.control),
        tableau=tableau,
        fixed=problem.options.dt is not None,
        saved=0 if problem.ts is None else system.shown,
    )
    kernel, dtype = KERNELS[problem.t0.device.type], system.dtype
    parts = [_lower(trace_slope(system, t, z, theta), batch, dtype)]
    make_step, at = problem.options.make_step, (t, torch.full_like(t, 0.5), z, theta[: len(problem.control)])
    if isinstance(tableau, RosenbrockTableau):
        step = make_step(replace(system, shifted=False), estimate=not shape.fixed)
        parts.append(_lower(trace_step(step, *at), batch, dtype, "u"))  # pyright: ignore[reportArgumentType]
    forward = kernel(parts, shape, captures.outside, problem.t0.device)
    if wanted is None:
        return Plan(forward, None)
    context = ForwardContext(system, problem.t0.device, captures)
    isolated, stand_ins = for_backward(*isolate_captures(system, captures), context)  # a trace must call no hooks
    if isinstance(tableau, RosenbrockTableau):
        step = make_step(replace(isolated, shifted=False))
        graph = trace_step_pullback(step, *at, wanted, stand_ins, context)  # pyright: ignore[reportArgumentType]
    else:
        graph = trace_pullback(isolated, t, z, theta, wanted, stand_ins, context)
    backward = kernel([_lower(graph, batch, dtype)], shape, stand_ins.outside, problem.t0.device)
    return Plan(forward, backward)


def _lower(graph: Graph, batch: int, dtype: torch.dtype, name: str = "w") -> Lowered:
    try:
        lowered = Lowered(graph, batch, dtype, name)
    except Unsupported:
        raise
    except Exception as error:  # an operation used in a way that was not foreseen: other backends know it
        raise Unsupported(f"the traced dynamics could not be lowered ({error!r})") from error
    program = lowered.program
    terms = sum(term.factors[0].size for term in program.terms)
    what, most = ("a step", MOST_STEP_STATEMENTS) if graph.is_step else ("an evaluation", MOST_STATEMENTS)
    if program_size(program) > max(MOST_VALUES, most) or terms > 4 * MOST_VALUES:
        raise Unsupported(f"{what} has more than {max(MOST_VALUES, most)} intermediate values per sample")
    if len(program.statements) + len(program.adjoint) > most:
        raise Unsupported(f"{what} consists of more than {most} operations on tensors")
    if program.operations > MOST_OPERATIONS:
        raise Unsupported(f"an evaluation takes more than {MOST_OPERATIONS} operations per sample")
    return lowered


@dataclass(eq=False)
class KernelPullback:
    """What a compiled solve leaves behind: its tape, and the kernel that walks along it."""

    problem: Problem
    captures: Captures
    stats: Stats
    kernel: Kernel
    solved: Solved

    def __call__(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        check_versions(self.captures)
        problem, state = self.problem, self.solved.state
        with torch.no_grad():
            active = self._active()
            pairs = zip(problem.z0, grads.z, strict=True)
            end = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in pairs]
            if active is not None:
                end = where(active, end, [torch.zeros_like(leaf) for leaf in end])
            found = self.kernel.pull(problem, self.captures, self.solved, active, end, grads.saved)
            controls, theta = len(problem.control), []
            for number, need in enumerate(needed.theta):
                own = found.theta.get(number) if number < controls else found.t0
                theta.append((torch.zeros_like(problem.theta[number]) if own is None else own) if need else None)
            span = None
            if needed.span:
                still = (state.status == Status.OK) & (state.accepted == 0)
                span = found.span + torch.where(still, inner_product(end, self.captures.slope), 0)
            counted = state.accepted if active is None else torch.where(active, state.accepted, 0)
            self.stats.nfe_backward = counted * self.kernel.shape.backward_evaluations
        return InputGradients(found.z0, SampleInputs(tuple(theta), span, None), tuple(found.captures))

    def _active(self) -> Tensor | None:
        """Which samples have a result, whose gradients count; None for all."""
        if not self.solved.failed or self.problem.keep_last:
            return None
        return self.solved.state.status == Status.OK
