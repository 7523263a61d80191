"""Integrates (x, theta) for a batch; knows nothing of tasks, layers or files.

To read it, follow a solve from the call to the last Runge-Kutta stage:

    api.py       `solve`: which gradient was asked for, and the way through the rest
    problem.py   `check`: arguments become a `Problem`, with f, g and the cost as one `Field` on z (field.py)
    forward.py   `look` evaluates the field once and finds what it touches (touched.py); `run` integrates
    begin.py     every sample at its start, with a first step to try (stepsize.py)
    loop.py      `integrate`: attempts until all samples are done; an `Attempt` accepts or refuses a step of each
    step.py      `Step`: the stages of one step, by the coefficients of tableau.py
    record.py    what watches the loop: saved times and dense output; for gradients, the tape (tape.py)

Then its gradients: join.py is where a solve meets autograd; discrete.py and unrolled.py take the steps of the tape
again (retake.py), adjoint.py solves backward in time. compiled.py and layout.py are what `compile=True` adds.
ambient.py brings autocast and the like back for backward, apart.py gives it stand-ins for tensors that were computed
from others, once.py refuses second derivatives. Linear flows (exponential.py) and Hebbian control (plastic.py) do
without the loop.
"""

from ..errors import InputError, SolveError, Status
from .api import solve
from .solution import Dense, Solution, Stats
from .stepsize import PID
from .tableau import METHODS, Tableau

__all__ = [
    "METHODS",
    "PID",
    "Dense",
    "InputError",
    "Solution",
    "SolveError",
    "Stats",
    "Status",
    "Tableau",
    "solve",
]
