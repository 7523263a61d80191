"""See some bit patterns, then complete one of them from a part of its bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ncode import InputError
from ncode.models import PlasticMemory

from ...data import Episodes, episodes, stream
from ...metrics import bit_error_rate
from ...training import Column, Loss, Reported, Result, Task, Trial, TrialContext
from ...training.schedules import cosine
from ..base import Experiment, Finished, Picture
from ..common import check_choices, check_positive
from .models import (
    HOLD,
    MODELS,
    PAPER_MODELS,
    QUERY_TIME,
    RULE_MODELS,
    SOLVER_STEPS,
    Model,
    NearestPattern,
    build_memory,
    evaluations,
)

if TYPE_CHECKING:
    from .figures import Line, Point

LEARNED = 0.01  # an error rate below this counts as having learned the task
WINDOW = 100  # episodes that the error is averaged over for that
SCALE = 1e-3  # of the weights of ncode, data-control and ode-rnn at first
MICONI_LR = 3e-5
RULE_LR, RULE_BATCH = 0.05, 16  # of the models with six numbers
SHARPNESS = 4.0  # of their loss
STILL_FALLING = 1e-3  # an error that falls by more than this over a fifth of training has not converged
LSTMS = ("lstm", "lstm-miconi")
_SMOKE = {"episodes": 16, "rival_episodes": 16, "batch": 4, "units": 24, "evaluation": 8}
_QUICK = {"episodes": 800, "rival_episodes": 1600, "units": 128}


@dataclass(frozen=True)
class Memory(Experiment):
    """See some patterns of +1 and -1 twice in random order, then complete one of them from a part of its bits.

    An episode is one sequence of patterns and a query. A training step takes a batch of episodes, and curves count
    episodes. data-control and ode-rnn are trained at the first degradation only, and LSTMs at the first number of
    patterns only.

    The models beyond the paper learn six numbers for all neurons. They are delta, the delta rule with the paper's
    episodes; hebb-held, oja-held and delta-held, where bits are held while they are shown, theta is constant during the
    query, and the query is longer; and nearest, the pattern that agrees best with the query, which is the optimum.
    """

    name = "memory"
    line = "bit patterns remembered in fast weights, and recalled from a part (figure 6)"
    question = (
        "Patterns of random bits are shown twice for half a second each; then one of them comes back with most of its"
        " bits set to zero, and is to be completed. The patterns are new in every episode, so no fixed weights know"
        " them. How many episodes does it take to learn to learn them, for weights that grow where both of their ends"
        " are active (plastic N-CODE), and for models that can only keep them in their state? An error is a bit of the"
        " wrong sign, over all bits: with half of them given, guessing the rest leaves 25 %."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {**_SMOKE, "n": (20,), "patterns": (2,), "degradation": (0.5,)},
        "quick": {**_QUICK, "n": (100,), "patterns": (3,), "degradation": (0.5,)},
        "full": {"models": MODELS},
        "paper": {},
    }
    columns = (
        Column("error", "error, %", digits=2, scale=100),
        Column("episodes", "episodes to stay below 1 %", digits=0),
        Column("nfe", "evaluations per episode", digits=0),
    )
    paper = tuple(
        Reported(model, f"n={n} patterns={patterns} degradation={degradation}", "error", error, note)
        for n, patterns, degradation in product((100, 1000), (2, 3, 5, 10), (0.5, 0.7, 0.9))
        for model, error, note in (
            ("ncode", 0.01, "below 1 % at every setting; figure A.3 shows n = 1,000"),
            ("data-control", 0.175, "number of patterns not given"),
            ("ode-rnn", 0.175, "number of patterns not given"),
            ("lstm", 0.25, "slightly better than chance; number of patterns not given"),
        )
        if model == "ncode" or (degradation == 0.5 and (model != "lstm" or patterns == 2))
    )

    retired: ClassVar[Mapping[str, Any]] = {
        "everywhere": False,
        "miconi_lr": MICONI_LR,
        "solver_steps": SOLVER_STEPS,
        "scale": SCALE,
        "hold": HOLD,
    }

    models: tuple[Model, ...] = PAPER_MODELS
    """Models to train. ncode, data-control and ode-rnn have 2 n^2 parameters each, delta and those held have six."""
    n: tuple[int, ...] = (100, 1000)
    """Bits of a pattern."""
    patterns: tuple[int, ...] = (2, 3, 5, 10)
    """Patterns per episode."""
    degradation: tuple[float, ...] = (0.5, 0.7, 0.9)
    """Fraction of the query's bits that is set to zero."""
    episodes: int = 2400
    """Training episodes of ncode, delta and those held."""
    rival_episodes: int = 8000
    """Training episodes of the other models."""
    batch: int = 8
    """Episodes per training step."""
    lr: float = 3e-4
    """Learning rate of Adam. lstm-miconi uses 3e-5, delta and those held 0.05 with a cosine schedule."""
    units: int = 5000
    """Hidden units of the LSTMs."""
    evaluation: int = 200
    """Episodes of the final evaluation."""
    query_time: float = QUERY_TIME
    """Seconds of the query in hebb-held, oja-held and delta-held; the paper's is 0.5."""
    capacity: tuple[int, ...] = (2, 5, 10, 15, 20, 30, 40, 50)
    """Further numbers of patterns to test delta, those held and nearest with, if trained with the most patterns."""

    def __post_init__(self) -> None:
        check_choices("model", self.models, MODELS)
        for name in ("n", "patterns", "degradation"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name} must hold at least one value, and each once; given {values}")
        if max(self.degradation) >= 1:
            raise InputError(f"degradation must be below 1, or nothing is left to recall by; given {self.degradation}")
        check_positive(self, "n", "patterns", "degradation", "episodes", "rival_episodes")
        check_positive(self, "batch", "lr", "units", "evaluation", "query_time", "capacity")
        if "lstm-miconi" in self.models and self.units < max(self.n):
            raise InputError(f"lstm-miconi needs a unit for each bit; given units={self.units} for n={max(self.n)}")

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*super().metrics, *(f"error at {count}" for count in self.capacity))

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        trials = []
        for n, patterns, degradation in product(self.n, self.patterns, self.degradation):
            about = {"n": n, "patterns": patterns, "degradation": degradation}
            label = " ".join(f"{name}={value}" for name, value in about.items())
            models = [model for model in self.models if self._is_trained(model, patterns, degradation)]
            trials += [Trial(model, label, seed, about) for model in models for seed in seeds]
        return trials

    def trains(self, trial: Trial) -> bool:
        return trial.model != "nearest"

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        task = Remember(self, trial)
        if trial.model == "nearest":
            context.parameters = 0
            task.to(context.device)
            return {**task.evaluate(task.model), **self._capacity(task, task.model)}
        with few_threads(context.device, trial.about["n"]):
            model = context.fit(task)
        context.save_model(model, build_memory, **task.arguments)
        if trial.model == "ncode" and isinstance(model, PlasticMemory) and self._is_drawn(trial):
            shown = task.draw(1, stream(trial.seed, "episode")).to(context.device)
            context.save_tensors("episode", **_episode(model, shown))
        curves = context.curves(max_points=task.steps)
        learned = episodes_to_learn(curves["train step"], curves["train error"], task.episodes_per_step)
        more = {} if learned is None else {"episodes": learned}
        return {**context.final, **more, **self._capacity(task, model)}

    def _capacity(self, task: Remember, model: nn.Module) -> dict[str, float]:
        """The error with other numbers of patterns than the model was trained with."""
        if task.about["patterns"] != max(self.patterns) or not isinstance(model, PlasticMemory | NearestPattern):
            return {}
        if task.trial.model == "ncode":
            return {}
        with torch.no_grad(), few_threads(task.device, task.about["n"]):
            return {f"error at {count}": task.error(model, count, self.evaluation // 5 or 1) for count in self.capacity}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        from .figures import draw_episode

        shown = [done for done in finished if done.trial.model == "ncode" and self._is_drawn(done.trial)]
        episode = [Picture("episode", draw_episode(**done.load("episode")), EPISODE) for done in shown[:1]]
        return [*episode, *self.redraw([done.result for done in finished])]

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """Figure 6 and figure A.3 from result files, which may come from several runs."""
        from .figures import draw_capacity, draw_plastic, draw_rivals

        lines = [_line(result) for result in results if result.curves.get("train error")]
        pictures = []
        if lines:
            pictures.append(Picture("error", draw_rivals(lines), RIVALS))
        if len({line[1:4] for line in lines if line.model == "ncode"}) > 1:
            pictures.append(Picture("settings", draw_plastic(lines), PLASTIC))
        if points := _points(results):
            pictures.append(Picture("capacity", draw_capacity(points), CAPACITY))
        return pictures

    @classmethod
    def remark(cls, results: Sequence[Result]) -> str:
        """Say of models that are compared with ours if their error was still falling at the end."""
        falls = [_last_fall(result) for result in results if result.model in PAPER_MODELS and result.model != "ncode"]
        return "not trained to the end" if falls and sum(falls) / len(falls) > STILL_FALLING else ""

    def _is_trained(self, model: str, patterns: int, degradation: float) -> bool:
        if model == "ncode" or model not in PAPER_MODELS:
            return True
        return degradation == self.degradation[0] and (model not in LSTMS or patterns == self.patterns[0])

    def _is_drawn(self, trial: Trial) -> bool:
        """Whether an episode of this trial is drawn: one small enough to follow."""
        patterns = 3 if 3 in self.patterns else min(self.patterns)
        return trial.about == {"n": min(self.n), "patterns": patterns, "degradation": self.degradation[0]}


EPISODE = (
    "One episode of the trained plastic N-CODE, one row per bit, blue for +1 and red for −1. Each pattern is shown"
    " twice: x starts from it and runs free for half a second. The query has lost some of its bits (white), and the"
    " weights that grew while the patterns were shown fill them in. Right: the signs at the end, the pattern to recall,"
    " and where they differ. Rows are sorted by whether the bit was lost, and by its value."
)
RIVALS = (
    "Error rate in training against episodes seen, one panel per setting. Lines: means over seeds; bands: minimum to"
    " maximum; each point is a mean over some steps. Dotted: copying the query and guessing the bits that are lost."
    " Dashed: 1 %."
)
PLASTIC = (
    "Plastic N-CODE alone: error rate against episodes for each fraction of lost bits and each number of patterns."
    " Lines: means over seeds; bands: minimum to maximum. Dashed: 1 %."
)
CAPACITY = (
    "Error rate against the number of patterns, one panel per setting, for models that were trained with ten patterns."
    " Lines: means over seeds; bands: minimum to maximum. Black: the nearest of the patterns, the optimum. Dashed: 1 %."
)


class Remember(Task):
    """One model, at one setting."""

    def __init__(self, settings: Memory, trial: Trial):
        self.settings, self.trial, self.about = settings, trial, trial.about
        self.six_numbers = trial.model in RULE_MODELS
        self.lr = MICONI_LR if trial.model == "lstm-miconi" else RULE_LR if self.six_numbers else settings.lr
        self.episodes_per_step = RULE_BATCH if self.six_numbers else settings.batch
        total = settings.episodes if trial.model == "ncode" or self.six_numbers else settings.rival_episodes
        self.steps = max(1, round(total / self.episodes_per_step))
        sizes = {"scale": SCALE, "units": settings.units, "query_time": settings.query_time}
        self.arguments = {"name": trial.model, "n": self.about["n"], **sizes}
        self.model: nn.Module = build_memory(**self.arguments)
        self.nfe = evaluations(trial.model, 2 * self.about["patterns"], settings.query_time)
        self.device = torch.device("cpu")

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        return cosine(optimiser, self.steps) if self.six_numbers else None

    def draw(self, count: int, generator: torch.Generator, patterns: int = 0) -> Episodes:
        n, usual, degradation = (self.about[name] for name in ("n", "patterns", "degradation"))
        return episodes(count, n, patterns or usual, degradation=degradation, generator=generator)

    def batch(self, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        drawn = self.draw(self.episodes_per_step, generator)
        return drawn.stimuli, drawn.query, drawn.target

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Loss:
        stimuli, query, target = batch
        answer = model(stimuli, query)
        # As bit_error_rate, without its checks, which would synchronise with the GPU.
        wrong = answer.detach().sign() != target
        return Loss(self._value(answer, target), {"error": wrong.float().mean(), "nfe": self.nfe})

    def _value(self, answer: Tensor, target: Tensor) -> Tensor:
        """The squared error or, where x has no natural size, a smooth count of wrong signs."""
        if not self.six_numbers:
            return (answer - target).square().mean()
        return nn.functional.softplus(-SHARPNESS * answer * target / answer.detach().abs().mean()).mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The error rate on fresh episodes, the same for all models of a seed."""
        return {"error": self.error(model, 0, self.settings.evaluation), "nfe": self.nfe}

    def error(self, model: nn.Module, patterns: int, count: int) -> float:
        """The error rate on this many fresh episodes, with another number of patterns unless that is 0."""
        name = ("evaluation", str(patterns)) if patterns else ("evaluation",)
        fresh = self.draw(count, stream(self.trial.seed, *name), patterns).to(self.device)
        parts = zip(*(part.split(50) for part in (fresh.stimuli, fresh.query)), strict=True)
        answer = torch.cat([model(stimuli, query) for stimuli, query in parts])
        return float(bit_error_rate(answer.float(), fresh.target))

    def to(self, device: torch.device) -> None:
        self.device = device


def _line(result: Result) -> Line:
    from .figures import Line

    batch, curves = RULE_BATCH if result.model in RULE_MODELS else result.settings["batch"], result.curves
    episodes = tuple(step * batch for step in curves["train step"])
    return Line(result.model, **result.about, episodes=episodes, errors=tuple(curves["train error"]))


def _points(results: Sequence[Result]) -> list[Point]:
    """The errors at other numbers of patterns, of the models that were trained with the most patterns."""
    from .figures import Point

    most, prefix = max((result.about["patterns"] for result in results), default=0), "error at "
    return [
        Point(result.model, about["n"], about["degradation"], int(name.removeprefix(prefix)), result.seed, value)
        for result in results
        if (about := result.about)["patterns"] == most
        for name, value in result.metrics.items()
        if name.startswith(prefix)
    ]


def _last_fall(result: Result) -> float:
    """By how much the error fell from the last but one fifth of training to the last."""
    errors = result.curves.get("train error", [])
    fifth = len(errors) // 5
    return (sum(errors[-2 * fifth : -fifth]) - sum(errors[-fifth:])) / fifth if fifth else 0.0


def episodes_to_learn(steps: Sequence[float], errors: Sequence[float], batch: int) -> float | None:
    """Number of episodes after which the error, a mean over 100 episodes, stays below 1 %; None if it does not."""
    means = [
        sum(near) / len(near)
        for last in steps
        if (near := [error for step, error in zip(steps, errors, strict=True) if 0 <= (last - step) * batch < WINDOW])
    ]
    above = [place for place, mean in enumerate(means) if not mean < LEARNED]
    first = above[-1] + 1 if above else 0
    return steps[first] * batch if first < len(steps) else None


@contextmanager
def few_threads(device: torch.device, n: int) -> Iterator[None]:
    """Use one thread on the CPU if vectors are too short to share among several."""
    before = torch.get_num_threads()
    if device.type == "cpu" and n <= 200:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def trajectory(model: PlasticMemory, stimuli: Tensor, query: Tensor, points: int = 11) -> tuple[Tensor, Tensor]:
    """Times (T,) and states (batch, T, n) through an episode, with steps small enough to plot: `points` per pattern."""
    duration, theta = model.presentation_time, None
    inside = torch.linspace(0, duration, points, device=query.device)
    ts, xs = [], []
    for number, x in enumerate([*stimuli.unbind(1), query]):
        sol = model.block.solve(x, theta=theta, save_at=inside, dt=duration / (points - 1))
        ts.append(number * duration + inside)
        xs.append(sol.xs)
        theta = sol.theta
    return torch.cat(ts), torch.cat(xs, 1)


def _episode(model: PlasticMemory, shown: Episodes) -> dict[str, Tensor]:
    ts, xs = trajectory(model, shown.stimuli, shown.query)
    about = {"query": shown.query[0], "target": shown.target[0], "order": shown.order[0], "asked": shown.asked}
    return {"ts": ts, "xs": xs[0], **about}
