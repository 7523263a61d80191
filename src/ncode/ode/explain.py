"""`explain`: which backend a solve would take, and why not another."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from .api import outside_inference_mode, solve
from .events import check_events
from .options import SolveOptions
from .probe import probe
from .problem import Problem, make_problem
from .solver import differentiates

_PROBLEM = ("theta", "feedback", "cost", "save_at", "jump_ts", "dense", "keep_last", "callback", "save_steps")


@dataclass(frozen=True)
class Explanation:
    """The backend that a solve would take, and for each of the others a clause that says why not.

    >>> import torch, ncode
    >>> why = ncode.explain(lambda t, x, theta: -x, torch.ones(4, 2), 0.0, 1.0, step="batch", compile=True)
    >>> why.backend, why.why_not["kernel"]
    ('inductor', 'step="batch" couples the samples')
    """

    backend: str
    why_not: dict[str, str]

    def __str__(self) -> str:
        return "\n".join([f"backend: {self.backend}", *(f"not {name}: {why}" for name, why in self.why_not.items())])


@outside_inference_mode
def explain(*arguments: Any, **options: Any) -> Explanation:
    """Say which backend `solve` would take with the same arguments, and why not another. Nothing is solved.

    The dynamics are evaluated once, and traced if a kernel comes into question.

    >>> import torch, ncode
    >>> x0 = torch.ones(4, 2)
    >>> print(ncode.explain(lambda t, x, theta: x.cumsum(1), x0, 0.0, 1.0, compile=True))
    backend: inductor
    not kernel: the operation cumsum is not known to kernels
    >>> print(ncode.explain(lambda t, x, theta: -x, x0, 0.0, 1.0))
    backend: eager
    not kernel: compile=False
    not inductor: compile=False
    """
    given = inspect.signature(solve).bind(*arguments, **options)
    given.apply_defaults()
    named = given.arguments
    chosen = SolveOptions(**{it.name: named[it.name] for it in fields(SolveOptions)})
    backend = chosen.backend
    if not backend.fuses:
        reason = f"compile={named['compile']!r}"
        return Explanation(backend.name, {"kernel": reason, "inductor": reason})
    given_problem = {name: named[name] for name in _PROBLEM}
    problem = make_problem(named["dynamics"], named["x0"], named["t0"], named["t1"], chosen, **given_problem)
    problem = replace(problem, has_events=bool(check_events(named["events"] or ())))
    if problem.batch == 0:
        return Explanation(backend.name, {"kernel": "the batch is empty"})
    reason = _why_not_whole(problem)
    if reason is not None:
        return Explanation(backend.name if backend.name != "kernel" else "none", {"kernel": reason})
    return Explanation("kernel", {"inductor": "a kernel takes the solve as a whole"})


def _why_not_whole(problem: Problem) -> str | None:
    captures = probe(problem, train=torch.is_grad_enabled())
    differentiated = differentiates(problem, captures)
    with torch.no_grad():
        return problem.options.backend.why_not_whole(problem, captures, differentiated)
