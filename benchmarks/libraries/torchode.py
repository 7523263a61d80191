"""torchode's rows: one step size per sample, backpropagation through the solver, eager and compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchode
from torch import Tensor

from ..contest import Entry, Nfe, Runner, Settings, Skip, synchronise
from ..flow import Flow, Prepare, Step, TorchField, gradients, read
from ..memory import peak_bytes


def entries(flow: Flow, settings: Settings) -> list[Entry]:
    """Its solver is as it is fastest: integral control, no gradient through step sizes, no statistics."""
    if flow.x0.dim() != 2:
        raise Skip("its state must be (batch, features)")
    fields = dict(flow.torch_fields)
    rows = [Entry("torchode", "backprop", _variants(flow, settings, fields, compile=False))]
    if settings.compile:
        names = list(fields) if flow.compiled is None else flow.compiled
        compiled = {name: fields[name] for name in names}
        rows.append(Entry("torchode", "backprop, compiled", _variants(flow, settings, compiled, compile=True)))
    return rows


def _variants(flow: Flow, settings: Settings, fields: dict[str, TorchField], compile: bool) -> dict[str, Any]:
    return {
        name: functools.partial(_build, flow, settings, f, compile, flow.prepare.get(name))
        for name, f in fields.items()
    }


def _solver(flow: Flow, f: Callable[..., Any]) -> torchode.AutoDiffAdjoint:
    term = torchode.ODETerm(f, with_args=True, with_stats=False)
    if flow.dt is None:
        controller = torchode.IntegralController(atol=flow.atol, rtol=flow.rtol, term=term)
    else:
        controller = torchode.FixedStepController()
    method = torchode.Dopri5(term=term)
    return torchode.AutoDiffAdjoint(method, controller, backprop_through_step_size_control=False)


def _build(flow: Flow, settings: Settings, f: TorchField, compile: bool, prepare: Prepare | None) -> Runner:
    x0, weights = flow.leaves(settings.device)
    t0 = torch.zeros(len(x0), device=x0.device)
    t1 = torch.full_like(t0, flow.t1)
    dt0 = None if flow.dt is None else torch.full_like(t0, flow.dt)
    solve = _solver(flow, f).solve
    if compile:
        solve = torch.compile(solve)

    def end(solve: Callable[..., Any]) -> Tensor:
        problem = torchode.InitialValueProblem(y0=x0, t_start=t0, t_end=t1)
        return solve(problem, dt0=dt0, args=weights if prepare is None else prepare(weights)).ys[:, -1]

    def run() -> Step:
        result = gradients(end(solve), x0, weights)
        synchronise(settings.device)
        return result

    def nfe() -> Nfe:
        calls = 0

        def counted(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
            nonlocal calls
            calls += 1
            return f(t, x, theta)

        end(_solver(flow, counted).solve)
        return Nfe(calls, backward=0)

    return Runner(run, read, nfe, lambda: peak_bytes(run, settings.device))
