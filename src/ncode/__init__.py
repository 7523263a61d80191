"""Neural ODEs whose parameters depend on the data, for PyTorch: dx/dt = f(t, x, theta) with a control theta.

Three nouns: a *dynamics* f, a *controller* that sets theta and may drive it, and `solve`, which integrates both for a
batch, with a step size, a status and gradients per sample.

    ncode.solve             solve a batch of initial value problems; `Event`, `Solution`, `Stats`, `Status`, ...
    ncode.NCODE             a module of a dynamics and a controller; `NCODE.family()` lists the models of the paper
    ncode.dynamics          vector fields with a control: `MLP`, `Linear`, `ConvBlock`, `CDE`, `Function`, ...
    ncode.control           controllers: `Static`, `OpenLoop`, `ClosedLoop`, `InputControl`, `TimeVarying`, ...
    ncode.paths             inputs u(t) through data: `linear`, `hermite`, `constant`, `rectilinear`
    ncode.costs             running costs along trajectories: `KineticEnergy`, `JacobianNorm`, ...
    ncode.flows             continuous normalising flows: `Flow` has `log_prob`, `sample` and `rsample`
    ncode.models            networks made of blocks: `AutoNCODE`, `Classifier`, `PlasticMemory`, ...
    ncode.closed_forms      flows that need no solver: `linear_flow`, `plastic_episode`
    ncode.compat            the interfaces of torchdiffeq and torchcde: `from ncode.compat.torchdiffeq import odeint`
    ncode.distributed       training with several processes: `BalancedBatchSampler`, `save_checkpoint`, ...

To extend it: `Tableau` (a method), `StepSizeRule`, `Backend`, `control.Controller`, `dynamics.Dynamics`; `register`
names classes of your own in saved models. Invalid arguments raise `InputError`, a failed solve `SolveError`.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from . import closed_forms, control, costs, dynamics, paths
from ._version import __version__
from .block import NCODE, register
from .control import ClosedLoop, DataControl, Hebbian, InputControl, OpenLoop, Static, TimeVarying
from .errors import InputError, SolveError, Status
from .ode import PID, Backend, Event, Solution, SolveOptions, Stats, StepSizeRule, Tableau, solve

if TYPE_CHECKING:
    from . import compat, distributed, flows, models

__all__ = [
    "NCODE",
    "PID",
    "Backend",
    "ClosedLoop",
    "DataControl",
    "Event",
    "Hebbian",
    "InputControl",
    "InputError",
    "OpenLoop",
    "Solution",
    "SolveError",
    "SolveOptions",
    "Static",
    "Stats",
    "Status",
    "StepSizeRule",
    "Tableau",
    "TimeVarying",
    "__version__",
    "closed_forms",
    "compat",
    "control",
    "costs",
    "distributed",
    "dynamics",
    "flows",
    "models",
    "paths",
    "register",
    "solve",
]


def __getattr__(name: str) -> ModuleType:
    """Import the packages that `import ncode` leaves out, on first use."""
    if name in ("compat", "distributed", "flows", "models"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
