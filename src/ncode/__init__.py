"""Neural ODEs whose parameters depend on the data, for PyTorch: dx/dt = f(t, x, theta) with a control theta.

Three nouns: a *dynamics* f, a *controller* that sets theta and may drive it, and `solve`, which integrates both for a
batch, with a step size, a status and gradients per sample. `NCODE(dynamics, controller)` is a module of all three.

Solve
    solve               a batch of initial value problems, with any functions; returns a `Solution`
    Event               a condition that ends a sample, is recorded, or resets its state
    Solution, Stats     the result, and its evaluations and steps; `Status` says how a sample ended
    explain             which backend a solve would take, and why not another
    SolveOptions        method, tolerances and gradient, checked; `PID`, the rule of step sizes
    paths               inputs u(t) through data: `linear`, `hermite`, `constant`, `rectilinear`
    costs               running costs along trajectories: `KineticEnergy`, `JacobianNorm`, ...

Build models
    NCODE               the module; `NCODE.family()` lists the models of the paper
    save_pretrained     a model in a folder with its model card; `from_pretrained` loads it
    dynamics            vector fields with a control: `MLP`, `Linear`, `ConvBlock`, `CDE`, `Function`, ...
    control             controllers, the most used of them also here: `Static`, `OpenLoop`, `ClosedLoop`, `Hebbian`,
                        `DataControl`, `InputControl`, `TimeVarying`
    models              networks made of blocks: `AutoNCODE`, `Classifier`, `PlasticMemory`, ...
    flows               continuous normalising flows: `Flow` has `log_prob`, `sample` and `rsample`
    closed_forms        flows that need no solver: `linear_flow`, `plastic_episode`

Around them
    plot                pictures of trajectories and vector fields (needs matplotlib)
    distributed         training with several processes: `BalancedBatchSampler`, `save_checkpoint`, ...
    compat              the interfaces of others: `from ncode.compat.torchdiffeq import odeint`; `torchcde`
    InputError          invalid arguments; `SolveError`: a sample failed

Extend
    Tableau, StepSizeRule, Backend, control.Controller, dynamics.Dynamics: see the table in docs/architecture.md
    register            names classes of your own in saved models
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from . import closed_forms, control, costs, dynamics, paths
from ._version import __version__
from .block import NCODE, from_pretrained, register, save_pretrained
from .control import ClosedLoop, DataControl, Hebbian, InputControl, OpenLoop, Static, TimeVarying
from .errors import InputError, SolveError, Status, nearest
from .ode import PID, Backend, Event, Solution, SolveOptions, Stats, StepSizeRule, Tableau, explain, solve

if TYPE_CHECKING:
    from . import compat, distributed, flows, models, plot

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
    "explain",
    "flows",
    "from_pretrained",
    "models",
    "paths",
    "plot",
    "register",
    "save_pretrained",
    "solve",
]


def __getattr__(name: str) -> ModuleType:
    """Import the packages that `import ncode` leaves out, on first use."""
    if name in ("compat", "distributed", "flows", "models", "plot"):
        return import_module(f".{name}", __name__)
    hint = ": from ncode.compat.torchdiffeq import odeint" if name.startswith("odeint") else nearest(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
