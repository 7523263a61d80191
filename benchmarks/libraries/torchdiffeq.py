"""torchdiffeq's rows: as the paper writes it, and at its best."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchdiffeq import odeint, odeint_adjoint

from ..contest import Entry, Nfe, Runner, Settings, synchronise
from ..flow import Flow, Prepare, Step, TorchField, gradients, read
from ..memory import peak_bytes

Solve = Callable[[Callable[..., Any], Tensor, Sequence[Tensor]], Tensor]


def entries(flow: Flow, settings: Settings) -> list[Entry]:
    """Rows by gradient; within each, the formulation and the norm of the adjoint are searched."""

    def row(label: str, solves: dict[str, Solve], fields: dict[str, TorchField]) -> Entry:
        variants = {
            ", ".join(filter(None, (name, how))): functools.partial(
                _build, flow, settings, f, solve, flow.prepare.get(name)
            )
            for how, solve in solves.items()
            for name, f in fields.items()
        }
        return Entry("torchdiffeq", label, variants)

    fields = dict(flow.torch_fields)
    adjoints = {"seminorm": _adjoint(flow, norm="seminorm"), "": _adjoint(flow)}
    rows = [
        row("backprop", {"": _backprop(flow)}, fields),
        row("adjoint", adjoints, fields),
    ]
    if not flow.shared:
        written = {name: f for name, f in fields.items() if name not in flow.prepare}
        rows.insert(0, row("as the paper writes it", {"": _paper(flow)}, written))
    if settings.compile:
        names = list(fields) if flow.compiled is None else flow.compiled
        compiled = {name: torch.compile(fields[name]) for name in names[:1]}
        rows.append(row("backprop, f compiled", {"": _backprop(flow)}, compiled))
    if flow.our_fields is not None:
        ours = row("backprop", {"": _backprop(flow)}, dict(flow.our_fields))
        rows.append(Entry("torchdiffeq + ncode", ours.label, ours.variants))
    return rows


def _options(flow: Flow) -> dict[str, Any]:
    """Fixed steps of dopri5: the smallest step is the largest."""
    return {} if flow.dt is None else {"first_step": flow.dt, "min_step": flow.dt, "max_step": flow.dt}


def _common(flow: Flow) -> dict[str, Any]:
    return {"rtol": flow.rtol, "atol": flow.atol, "method": "dopri5", "options": _options(flow)}


def _span(flow: Flow, x0: Tensor) -> Tensor:
    return torch.tensor([0.0, flow.t1], dtype=x0.dtype, device=x0.device)


def _backprop(flow: Flow) -> Solve:
    def solve(f: Callable[..., Any], x0: Tensor, weights: Sequence[Tensor]) -> Tensor:
        return odeint(lambda t, x: f(t, x, weights), x0, _span(flow, x0), **_common(flow))[-1]

    return solve


def _adjoint(flow: Flow, **options: Any) -> Solve:
    def solve(f: Callable[..., Any], x0: Tensor, weights: Sequence[Tensor]) -> Tensor:
        return odeint_adjoint(
            lambda t, x: f(t, x, weights),
            x0,
            _span(flow, x0),
            **_common(flow),
            adjoint_params=tuple(weights),
            adjoint_options={**_options(flow), **options},
        )[-1]

    return solve


def _paper(flow: Flow) -> Solve:
    """The appendix's listing: theta is part of the state, with zero derivative."""

    def solve(f: Callable[..., Any], x0: Tensor, weights: Sequence[Tensor]) -> Tensor:
        def joint(t: Tensor, z: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x, *theta = z
            return f(t, x, theta), *(torch.zeros_like(leaf) for leaf in theta)

        z = odeint_adjoint(joint, (x0, *weights), _span(flow, x0), **_common(flow), adjoint_params=())
        return z[0][-1]

    return solve


def _build(flow: Flow, settings: Settings, f: TorchField, solve: Solve, prepare: Prepare | None) -> Runner:
    x0, weights = flow.leaves(settings.device)

    def prepared() -> Sequence[Tensor]:
        return weights if prepare is None else prepare(weights)

    def run() -> Step:
        result = gradients(solve(f, x0, prepared()), x0, weights)
        synchronise(settings.device)
        return result

    def nfe() -> Nfe:
        calls = 0

        def counted(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
            nonlocal calls
            calls += 1
            return f(t, x, theta)

        x1 = solve(counted, x0, prepared())
        forward = calls
        gradients(x1, x0, weights)
        return Nfe(forward, backward=calls - forward)

    return Runner(run, read, nfe, lambda: peak_bytes(run, settings.device))
