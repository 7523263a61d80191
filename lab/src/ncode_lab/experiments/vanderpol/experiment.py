"""Fit an oscillation with a state on the line, and learn mu."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ncode import InputError, Solution
from ncode.block import NCODE
from ncode.control import ClosedLoop, Static
from ncode.dynamics import Dynamics

from ...data import oscillation, stream
from ...training import Column, Loss, Task, Trial, TrialContext
from ..base import Experiment, Finished, Picture
from ..common import check_choices, check_positive

Model = Literal["constant", "dynamic"]
MODELS: tuple[Model, ...] = get_args(Model)

START = 2.0  # where each oscillation begins, at rest
RTOL = 1e-3
GUESS = (0.5, 2.0)  # bounds of the random value that mu starts from
GROWING = 0.6  # fraction of training in which the fitted time grows
FIRST = 0.25  # fraction of that time that is fitted at first
RELAXED = 5.0  # beyond it a period is about 1.6 mu, and the fitted time grows with mu
STIFF = 10.0  # beyond it: a method for stiff problems, double precision, and the values that follow

# A stiff oscillation jumps. Where one of two has jumped and the other has not, their distance says nothing about mu: mu
# has to be nearly right before the fitted time reaches the first jump.
STIFF_GUESS = (0.5, 2.0)  # times mu
STIFF_FIRST = 0.15  # ends before the first jump of an oscillation with half of mu
STIFF_SETTLING, STIFF_GROWN = 0.6, 0.95  # fractions of training after which the fitted time begins and ends to grow
STIFF_DECAY = 0.003  # by which the learning rate falls until then


@dataclass(frozen=True)
class VanDerPol(Experiment):
    """Fit an oscillation with a state on the line, and learn mu.

    The oscillator x'' = mu (1 - x^2) x' - x is, with Lienard's variable as the control,

        dx/dt = mu (x - x^3 / 3 - theta),    dtheta/dt = x / mu.

    "constant" has the first equation with a constant theta, and learns mu and theta; "dynamic" has both, and learns mu.
    mu starts at a random value. The fitted time grows in the first part of training: over the whole of it, an
    oscillation with a wrong period has many local minima. What follows the fitted time is held out.

    Beyond mu = 5 a period takes about 1.6 mu, so the fitted time grows with mu. Beyond mu = 10 mu starts between half
    and twice its value.
    """

    name = "vanderpol"
    line = "the Van der Pol oscillator, with a constant and with a dynamic control (figure 3)"
    question = (
        "An oscillation on the line turns back, and so no autonomous equation on the line has it as a solution: with a"
        " constant control, a NODE can only run to a fixed point. Once the control follows an equation of its own,"
        " driven by the state, can gradient descent find the one parameter µ that fits the oscillation, from a nearly"
        " harmonic regime to a stiff one? Compare the learnt µ with the true one, and look at the grey part of each"
        " curve, which was held out."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {"mus": (1.0,), "steps": 4, "points": 20, "fitted": 3.0},
        "quick": {"mus": (0.5, 2.0, 5.0), "steps": 80},
        "paper": {},
    }
    columns = (
        Column("error", "mean squared error, fitted", digits=5),
        Column("ahead", "mean squared error, ahead", digits=5),
        Column("mu", "learnt µ", digits=3),
        Column("mu error", "error of µ, %", digits=2, scale=100),
    )
    retired: ClassVar[Mapping[str, Any]] = {"guess": GUESS, "rtol": RTOL}

    models: tuple[Model, ...] = MODELS
    """Models to train."""
    mus: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    """Regimes: mu of each oscillation, up to 1000. Those beyond 10 are solved by a method for stiff problems."""
    fitted: float = 12.0
    """Length of the fitted part of a trajectory, times mu / 5 beyond mu = 5. The held-out part is as long again."""
    points: int = 60
    """Times per training step at which the trajectories are compared."""
    steps: int = 200
    """Training steps."""
    lr: float = 0.1
    """Learning rate of Adam; it falls to 0 in the last part of training."""

    def __post_init__(self) -> None:
        check_choices("model", self.models, MODELS)
        check_positive(self, "mus", "fitted", "points", "steps", "lr")
        if not self.mus:
            raise InputError("mus must hold at least one regime, such as 5.0")
        if len(set(self.mus)) < len(self.mus):
            raise InputError(f"mus must be named once each; given {', '.join(map(str, self.mus))}")

    def fitted_time(self, mu: float) -> float:
        """Length of the fitted part of a regime's trajectory."""
        return self.fitted * max(1.0, mu / RELAXED)

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        return [
            Trial(model, f"mu={mu:g}", seed, {"mu": float(mu)})
            for mu in self.mus
            for model in self.models
            for seed in seeds
        ]

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        task = FitOscillation(self, trial)
        model = context.fit(task)
        assert isinstance(model, Oscillator)
        context.save_model(model)
        context.save_tensors("fit", **_fit(model, task.record))
        mu, true = float(model.mu.detach()), trial.about["mu"]
        return {**score(model, task.record), "mu": mu, "mu error": abs(mu - true) / true}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Figure 3 for each regime, of the first seed; and mu during training, of all seeds."""
        from .figures import Fit, draw_learning, draw_vanderpol

        regimes: dict[float, dict[str, Any]] = {}
        learning: dict[float, list[dict[str, list[float]]]] = {}
        for done in finished:
            mu, model = done.trial.about["mu"], done.trial.model
            fits = regimes.setdefault(mu, {})
            if model not in fits:
                fits[model] = Fit(**done.load("fit"), seen=self.fitted_time(mu), mu=done.result.metrics["mu"])
            if model == "dynamic" and "train mu" in done.result.curves:
                learning.setdefault(mu, []).append(done.result.curves)
        pictures = [Picture("oscillations", draw_vanderpol(regimes), _OSCILLATIONS)] if regimes else []
        if learning:
            pictures.append(Picture("learning", draw_learning(learning), _LEARNING))
        return pictures


_OSCILLATIONS = (
    "Blue: the oscillation to be fitted, in each regime. Red: with a constant control, which can only run to a fixed"
    " point, whatever it learns. Black: with a control that the state drives. Grey ground: not fitted to."
    " Right: state and control, from where they start (white dot)."
)
_LEARNING = "The µ of the dynamic control while it is trained, one line per seed; dashed: the true one."


class Lienard(Dynamics):
    """dx/dt = mu (x - x^3 / 3 - theta), where theta is the control and mu > 0 is learnt.

    `drive` is the oscillator's other half, dtheta/dt = x / mu, for a closed loop.
    """

    shared_control = True

    def __init__(self, mu: float = 1.0):
        super().__init__()
        self.control_shapes, self.state_shape = {"theta": (1,)}, (1,)
        # As a logarithm it stays positive, and a step is relative to its size.
        self.log_mu = nn.Parameter(torch.tensor(math.log(mu)))

    @property
    def mu(self) -> Tensor:
        return self.log_mu.exp()

    def forward(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
        return self.mu * (x - x**3 / 3 - theta["theta"])

    def drive(self, t: Tensor, x: Tensor, theta: Any) -> dict[str, Tensor]:
        return {"theta": x / self.mu}


class Oscillator(nn.Module):
    """Lienard's equation with a constant or a dynamic control, started at rest.

    If `stiff`, it is solved by an implicit method in double precision: the two terms of dx/dt nearly cancel.
    """

    def __init__(self, model: str, mu: float, stiff: bool = False):
        super().__init__()
        self.model, self.dynamic, self.stiff, field = model, model == "dynamic", stiff, Lienard(mu)
        controller = ClosedLoop(field.drive, initial="zero") if self.dynamic else Static()
        method = "rodas5p" if stiff else "dopri5"
        self.block = NCODE(field, controller, method=method, rtol=RTOL, atol=1e-3 * RTOL)
        if stiff:
            self.double()

    def config(self) -> dict[str, Any]:
        return {"model": self.model, "mu": float(self.mu.detach()), "stiff": self.stiff}

    @property
    def mu(self) -> Tensor:
        field = self.block.dynamics
        assert isinstance(field, Lienard)
        return field.mu

    def solve(self, ts: Tensor, **changes: Any) -> Solution:
        """The solution from 0 to the last of the times."""
        x0 = ts.new_full((1, 1), START)
        theta = {"theta": x0 - x0**3 / 3} if self.dynamic else None
        return self.block.solve(x0, theta=theta, save_at=ts, t1=ts[-1], **changes)


class Record(NamedTuple):
    """An oscillation: times (T,), states (T,), and the number of leading points that are fitted."""

    t: Tensor
    x: Tensor
    fitted: int


class FitOscillation(Task):
    """Mean squared error at times of a span that grows."""

    def __init__(self, settings: VanDerPol, trial: Trial):
        self.settings, self.steps, self.lr = settings, settings.steps, settings.lr
        mu = trial.about["mu"]
        self.stiff = mu > STIFF
        self.first, guess = (STIFF_FIRST, [mu * it for it in STIFF_GUESS]) if self.stiff else (FIRST, GUESS)
        self.growing = (STIFF_SETTLING, STIFF_GROWN) if self.stiff else (0.0, GROWING)
        low, high = (math.log(bound) for bound in guess)
        share = float(torch.rand((), generator=stream(trial.seed, "vanderpol", "guess")))
        torch.manual_seed(trial.seed)
        self.model = Oscillator(trial.model, math.exp(low + share * (high - low)), self.stiff)
        self.record = record(settings, mu)

    def batch(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The same number of times in every step, spread over the span: devices share them."""
        begin, end = (share * self.steps for share in self.growing)
        grown = self.first + (1 - self.first) * max(0.0, step - begin) / max(1.0, end - begin)
        last = min(1.0, grown) * (self.record.fitted - 1)
        chosen = torch.linspace(0, last, self.settings.points).round().long()
        return {"t": self.record.t[chosen], "x": self.record.x[chosen]}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        assert isinstance(model, Oscillator)
        sol = model.solve(batch["t"])
        assert sol.xs is not None
        error = (sol.xs[0, :, 0] - batch["x"]).square().mean()
        report = {"error": error.detach(), "mu": model.mu.detach(), "nfe": sol.stats.nfe.float().mean()}
        return Loss(error, report | {"rejected": sol.stats.rejected.sum()})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Oscillator)
        return score(model, self.record)

    def schedule(self, optimiser: Optimizer) -> LRScheduler:
        """Constant while the span grows, then falling to 0; in stiff regimes falling until the span grows."""
        settled = STIFF_SETTLING * self.steps
        if self.stiff:
            return LambdaLR(optimiser, lambda step: STIFF_DECAY ** min(1.0, step / settled))
        left = (1 - GROWING) * self.steps
        return LambdaLR(optimiser, lambda step: min(1.0, (self.steps - step) / max(left, 1.0)))


def record(settings: VanDerPol, mu: float, points: int = 600) -> Record:
    """The oscillation of a regime, over twice the fitted time."""
    dtype = torch.float64 if mu > STIFF else torch.float32
    ts = torch.arange(2 * points + 1, dtype=dtype) * (settings.fitted_time(mu) / points)
    seen = oscillation(ts, mu=float(mu), x0=(START, 0.0), dtype=dtype)
    return Record(seen.t, seen.x[:, 0], points + 1)


@torch.no_grad()
def score(model: Oscillator, seen: Record) -> dict[str, float]:
    """Mean squared errors, at tolerances so small that the model's error is shown and not the solver's."""
    seen = _like(seen, model)
    sol = model.solve(seen.t, rtol=1e-6, atol=1e-8)
    assert sol.xs is not None
    squares = (sol.xs[0, :, 0] - seen.x).square()
    return {"error": float(squares[: seen.fitted].mean()), "ahead": float(squares[seen.fitted :].mean())}


def _like(seen: Record, model: Oscillator) -> Record:
    """On the device and in the precision of the model."""
    return Record(seen.t.to(model.mu), seen.x.to(model.mu), seen.fitted)


@torch.no_grad()
def _fit(model: Oscillator, seen: Record) -> dict[str, Tensor]:
    seen = _like(seen, model)
    sol = model.solve(seen.t)
    assert sol.xs is not None
    return {"ts": seen.t, "target": seen.x, "x": sol.xs[0, :, 0], "theta": sol.thetas["theta"][0, :, 0]}
