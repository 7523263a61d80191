"""The training loop."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ncode import InputError

from .best import Best
from .checkpoint import Checkpoints, Saved
from .clock import TrialClock
from .engine import Engine
from .errors import RunError, Stopped
from .log import MetricsLog
from .options import RunOptions
from .progress import Progress
from .readings import Readings
from .seeds import generator, seed_step
from .share import share
from .stop import StopRequest
from .task import Loss, Task
from .tensorboard import Board

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SECONDS_BETWEEN_CHECKPOINTS = 30.0
SECONDS_BETWEEN_READINGS = 0.1
# However fast the steps are, a curve has so many points.
READINGS = 200


def fit(
    task: Task,
    fabric: Fabric,
    folder: Path,
    *,
    seed: int,
    name: str,
    title: str,
    options: RunOptions,
    log: MetricsLog,
    clock: TrialClock,
    progress: Progress,
) -> dict[str, float]:
    """Train a task's model in place, from its last checkpoint where it has one.

    Args:
        task: What to train.
        fabric: On what.
        folder: Of the trial.
        seed: Of all that is random.
        name: Of this fit within the trial.
        title: The same for the user's eyes.
        options: How to run.
        log: Where the numbers go.
        clock: That counts the seconds of the trial.
        progress: Who tells the user.

    Returns:
        What the last evaluation gave, or the best one where the task keeps the best weights.
    """
    _check(task, name)
    checkpoints = Checkpoints(folder / "checkpoints" / name, progress.warn)
    loop = _Loop(task, fabric, checkpoints, (seed, name), options, log, clock, progress)
    if loop.step == task.steps:
        return loop.evaluation
    if options.tensorboard and fabric.is_global_zero:
        loop.board = Board(folder / "tensorboard" / name, loop.step)
    progress.start(title, task.steps, loop.step)
    try:
        with StopRequest() as stop:
            loop.run(stop)
    finally:
        progress.finish()
        if loop.board is not None:
            loop.board.close()
    return loop.evaluation


def _check(task: Task, name: str) -> None:
    if not isinstance(task.steps, int) or task.steps < 1:
        raise InputError(f"a task is trained for at least 1 step; given steps={task.steps!r}")
    if not any(each.requires_grad for each in task.model.parameters()):
        raise InputError("the model has no parameters to train")
    if task.keep_best and not task.evaluate_every:
        raise InputError(
            f"keep_best={task.keep_best!r} chooses among evaluations, and there is one: set evaluate_every"
        )
    if not name or name != Path(name).name or name.startswith("."):
        raise InputError(f"a fit needs a name that can be a folder's; given {name!r}")


class _Loop:
    """A fit under way. `step` counts the steps that are done; `evaluation` is what the weights gave when last tried."""

    def __init__(
        self,
        task: Task,
        fabric: Fabric,
        checkpoints: Checkpoints,
        key: tuple[int, str],
        options: RunOptions,
        log: MetricsLog,
        clock: TrialClock,
        progress: Progress,
    ):
        self.task, self.fabric, self.model = task, fabric, task.model
        self.log, self.clock, self.progress, self.checkpoints = log, clock, progress, checkpoints
        self.step = 0
        self.evaluation: dict[str, float] = {}
        self.board: Board | None = None
        self._best = Best(task.keep_best) if task.keep_best else None
        self._key, self._save_every = key, options.save_every
        self._saved_step, self._saved_at = -1, time.monotonic()
        self._readings, self._every, self._read_at = Readings(), 1, time.monotonic()
        # Several processes must stop at the same step, and a GPU should not wait: these look at each reading only.
        self._looks_at_each_step = fabric.world_size == 1 and fabric.device.type == "cpu"
        self._engine = Engine(task, fabric, options.graph)
        self._restore()

    def run(self, stop: StopRequest) -> None:
        """Take the steps that are left."""
        self.model.train()
        while self.step < self.task.steps:
            self._take_step()
            stopped = self._read(stop.asked)
            if self._last or (self.task.evaluate_every and self.step % self.task.evaluate_every == 0):
                self._evaluate()
            if stopped:
                self._stop()
            if self._last or self._due():
                self._save()
        if self._anyone(stop.asked):
            self._stop()

    @property
    def _last(self) -> bool:
        return self.step == self.task.steps

    def _take_step(self) -> None:
        batch = self._batch()
        try:
            self._engine.step(batch, self._note)
        except RunError:
            raise
        except Exception as error:
            # A loss that was not finite a few steps ago explains whatever went wrong now.
            self._readings.check(self.step + 1)
            error.add_note(f"in step {self.step + 1} of {self.task.steps}")
            raise
        self.step += 1

    def _note(self, loss: Loss) -> None:
        self._readings.add(loss)
        if self._looks_at_each_step:
            self._readings.check(self.step + 1, last=1)

    def _batch(self) -> Any:
        place = "cpu" if self.task.draws == "cpu" else self.fabric.device
        seed_step(*self._key, "step", self.step)
        whole = self.task.batch(self.step, generator(place, *self._key, "batch", self.step))
        part = share(whole, self.fabric.global_rank, self.fabric.world_size)
        if self.fabric.world_size > 1:
            # Each device has random numbers of its own in the loss, but not in the batch.
            seed_step(*self._key, "step", self.step, self.fabric.global_rank)
        return self.fabric.to_device(part)

    def _read(self, asked: bool) -> bool:
        """Read and log the numbers when it is time; whether to stop."""
        if self._last or self.step % self._every == 0:
            values, stop = self._readings.read(self.step, asked, self.fabric)
            self._tell("train", values)
            self.progress.update(self.step, values)
            self._pace()
            return stop
        return asked and self.fabric.world_size == 1

    def _pace(self) -> None:
        """Read about ten times a second, or often enough for a curve."""
        now = time.monotonic()
        spent, self._read_at = now - self._read_at, now
        most = max(1, self.task.steps // READINGS)
        if spent < SECONDS_BETWEEN_READINGS / 2:
            self._every = min(2 * self._every, most)
        elif spent > 4 * SECONDS_BETWEEN_READINGS:
            self._every = max(self._every // 2, 1)
        if self.fabric.world_size > 1:
            self._every = self.fabric.broadcast(self._every)

    def _tell(self, kind: str, values: dict[str, float]) -> None:
        self.log.write(self.step, kind, self._key[1], values)
        if self.board is not None:
            self.board.write(self.step, kind, values)

    def _evaluate(self) -> None:
        """On one device, for all."""
        values: dict[str, float] = {}
        if self.fabric.is_global_zero:
            self.model.eval()
            seed_step(*self._key, "evaluation", self.step)
            with torch.no_grad(), self.fabric.autocast():
                values = {name: float(value) for name, value in self.task.evaluate(self.model).items()}
            self.model.train()
        self.evaluation = self.fabric.broadcast(values) if self.fabric.world_size > 1 else values
        self._tell("evaluation", self.evaluation)
        self.progress.evaluated(self.step, self.evaluation)
        if self._best is not None:
            self._best.see(self.step, self.evaluation, self._engine.weights)
            if self._last:
                self._put_back(self._best)

    def _put_back(self, best: Best) -> None:
        # Statistics may differ from process to process: those that were evaluated count.
        weights = self.fabric.broadcast(best.weights) if self.fabric.world_size > 1 else best.weights
        if weights is not None:
            self._engine.put_back(weights)
        self.evaluation = best.evaluation(self.evaluation)

    def _anyone(self, asked: bool) -> bool:
        """Whether any process was asked to stop."""
        if self.fabric.world_size == 1:
            return asked
        together = self.fabric.all_reduce(torch.tensor(float(asked), device=self.fabric.device), reduce_op="sum")
        assert isinstance(together, Tensor)
        return together.item() > 0

    def _stop(self) -> None:
        self._save()
        self.fabric.barrier()
        again = sys.argv[1:] + ([] if "--resume" in sys.argv else ["--resume"])
        self.progress.finish()
        self.progress.warn(
            f"stopped after step {self.step} of {self.task.steps}; go on with: {shlex.join(['ncode', *again])}"
        )
        # Lightning kills the first process where another one ends with an error.
        raise Stopped(130 if self.fabric.is_global_zero else 0)

    def _due(self) -> bool:
        if self._save_every:
            return self.step % self._save_every == 0
        return time.monotonic() - self._saved_at > SECONDS_BETWEEN_CHECKPOINTS

    def _save(self) -> None:
        if not self.fabric.is_global_zero or self._saved_step == self.step:
            return
        self._readings.check(self.step)
        weights, state = self._engine.weights(), self._engine.state()
        for name, _ in self.model.named_parameters():
            if not torch.isfinite(weights[name]).all():
                raise RunError(f"{name} is not finite after step {self.step}: try a smaller learning rate")
        state |= {"evaluation": self.evaluation, "seconds": self.clock.seconds}
        if self._best is not None and not self._last:
            state["best"] = self._best.kept
        self.checkpoints.write(Saved(self.step, weights, state))
        self._saved_step, self._saved_at = self.step, time.monotonic()

    def _restore(self) -> None:
        saved = self.checkpoints.load() if self.fabric.is_global_zero else None
        if self.fabric.world_size > 1:
            # Read by one, so that all go on from the same one.
            saved = self.fabric.broadcast(saved)
        self.step = 0 if saved is None else saved.step
        if saved is not None:
            self._load(saved)
        self.log.cut(self._key[1], self.step)

    def _load(self, saved: Saved) -> None:
        if saved.step > self.task.steps:
            raise InputError(
                f"{self.checkpoints.folder} holds step {saved.step} of a run that now has {self.task.steps} steps: "
                "go on with the settings it was started with, or start anew without --resume"
            )
        try:
            self._engine.load(saved.weights, saved.state)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"the checkpoint in {self.checkpoints.folder} does not fit the model: go on with the settings "
                f"it was made with, or start anew without --resume ({error})"
            ) from error
        self.evaluation, self._saved_step = saved.state["evaluation"], saved.step
        self.clock.go_on(saved.state.get("seconds", 0.0))
        if self._best is not None:
            self._best.kept = saved.state.get("best")
