"""The solver: integrates (x, theta) for a batch; knows nothing of modules, tasks or files.

To read it, follow one solve from the call to the last Runge-Kutta stage:

    api.py         `solve`: its arguments, and the solution that it returns
    options.py     `SolveOptions`: how a problem is solved
    problem.py     `make_problem`: arguments, checked (arguments.py), become a `Problem`
    chain.py       with events (events.py): a chain of solves, each watched (watch.py, root_finding.py) and ended by an
                   event
    solver.py      `solve_problem`: an evaluation at t0 (probe.py), the forward pass (forward.py), then whatever the
                   gradient needs; planned.py takes steps that are known in advance
    system.py      f, g and the cost as one `System` on z = (x, theta, cost); trees of tensors
    jumps.py       times at which the dynamics jump: steps end there, and see one side only
    last_state.py  the state that `keep_last` keeps of a sample that fails
    captures.py    the outside tensors that f, g and the cost use, found by one evaluation and by what functions hold
                   (held_values.py); unknown.py refuses one that was not found; independence.py refuses samples that
                   depend on each other
    integrate.py   `start_loop`, then `integrate`: attempts until all samples are done
    attempt.py     `Attempt`: one step per sample, accepted or rejected
    methods.py     methods by name; `make_step`
    step.py        `Step`: the stages of one step (coefficients: tableau.py), its error, and the size of the next one
    tolerance.py   `Tolerance`: what an error is measured against
    implicit.py    the steps of stiff methods (coefficients: implicit_tableau.py), with the Jacobians of linearise.py,
                   the linear systems of linear_solver.py and Newton's method of newton.py; auto.py chooses, step by
                   step, between these and explicit ones
    record.py      what the loop leaves behind: saved times, dense output; for gradients, the tape (tape.py)
    solution.py    what `solve` returns
    backends/      how the pure functions start, attempt and pullback are executed: eager, or compiled
    kernel/        small systems: the whole solve in one compiled call; explain.py says whether a solve takes it

Gradients (gradients/): function.py is where a solve meets autograd; discrete.py and unrolled.py replay the steps of the
tape (replay.py), unless the graph of a short solve was kept (kept.py); adjoint.py solves backward in time
(adjoint_system.py, and for stiff methods trajectory.py).
"""

from .api import solve
from .backends import Backend
from .events import Event
from .explain import Explanation, explain
from .options import SolveOptions
from .solution import DenseOutput, EventRecord, Solution, Stats
from .step import PID, StepSizeRule
from .tableau import METHODS, Tableau

__all__ = [
    "METHODS",
    "PID",
    "Backend",
    "DenseOutput",
    "Event",
    "EventRecord",
    "Explanation",
    "Solution",
    "SolveOptions",
    "Stats",
    "StepSizeRule",
    "Tableau",
    "explain",
    "solve",
]
