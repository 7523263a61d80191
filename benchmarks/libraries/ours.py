"""ncode's rows."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

import ncode

from ..contest import Entry, Nfe, Runner, Settings, synchronise
from ..flow import Flow, Step, TorchField, gradients, read
from ..memory import peak_bytes

# What differs between our rows; a workload may add its own.
ROWS: dict[str, dict[str, Any]] = {
    "eager": {},
    "eager, one step size": {"step": "batch"},
    "compiled": {"compile": True},
    "compiled, one step size": {"compile": True, "step": "batch"},
}


def entries(flow: Flow, settings: Settings) -> list[Entry]:
    """Our rows: each searches the formulations of the dynamics for the fastest."""
    usual = {label: how for label, how in ROWS.items() if flow.generic is None or label in flow.generic}
    rows = {**usual, **flow.ours}
    return [
        Entry("ncode", label, _variants(flow, settings, arguments))
        for label, arguments in rows.items()
        if settings.compile or not arguments.get("compile")
    ]


def _variants(flow: Flow, settings: Settings, arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = fields_of(flow)
    if arguments.get("compile") and flow.compiled is not None and flow.our_fields is None:
        names = flow.compiled
    return {name: functools.partial(_build, flow, settings, arguments, name) for name in names}


def _build(flow: Flow, settings: Settings, arguments: Mapping[str, Any], name: str) -> Runner:
    x0, weights = flow.leaves(settings.device)
    f = fields_of(flow)[name]
    known = {"rtol": flow.rtol, "atol": flow.atol, "dt": flow.dt, **arguments}
    dynamics = _closed(f, weights) if flow.shared else f

    prepare = flow.prepare.get(name, lambda given: given)

    def solve() -> ncode.Solution:
        theta = None if flow.shared else prepare(weights)
        return ncode.solve(dynamics, x0, 0.0, flow.t1, theta=theta, **known)

    def run() -> Step:
        result = gradients(solve().x, x0, weights)
        synchronise(settings.device)
        return result

    def nfe() -> Nfe:
        sol = solve()
        gradients(sol.x, x0, weights)
        forward, backward = sol.stats.nfe.double(), sol.stats.nfe_backward
        back = None if backward is None else float(backward.double().mean())
        return Nfe(float(forward.mean()), float(forward.max()), back)

    return Runner(run, read, nfe, lambda: peak_bytes(run, settings.device))


def fields_of(flow: Flow) -> Mapping[str, TorchField]:
    """The dynamics as we enter them."""
    return flow.torch_fields if flow.our_fields is None else flow.our_fields


def _closed(f: TorchField, weights: tuple[Tensor, ...]) -> Any:
    """Shared weights are caught in a closure, as a module's parameters are."""
    return lambda t, x, _: f(t, x, weights)
