"""The training loop."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ncode import InputError, SolveError

from .checkpoint import BestWeights, Checkpoint, Checkpoints
from .devices import broadcast, derive_seed, seed_step, shard_batch
from .engine import Engine, LossBuffer
from .errors import RunError, Stopped, solve_failed
from .progress import TensorBoardLog
from .task import Loss, Task

if TYPE_CHECKING:
    from .trial_context import TrialContext

SECONDS_BETWEEN_CHECKPOINTS = 30.0
SECONDS_BETWEEN_READINGS = 0.1
MIN_READINGS = 200  # per fit, however fast its steps are: the points of a curve


def fit(task: Task, context: TrialContext, name: str) -> dict[str, float]:
    """Train a task's model in place, from the last checkpoint of the fit `name` if there is one.

    Returns the metrics of the last evaluation, or of the best one if the task keeps the best weights.
    """
    _check(task, name)
    loop = _Loop(task, context, name)
    if loop.step == task.steps:
        return loop.evaluation
    if context.options.tensorboard and context.fabric.is_global_zero:
        loop.tensorboard = TensorBoardLog(context.folder / "tensorboard" / name, loop.step)
    title = context.trial.name if name == "model" else f"{context.trial.name} {name}"
    context.progress.start(title, task.steps, loop.step)
    try:
        with StopRequest() as stop:
            loop.run(stop)
    finally:
        context.progress.finish()
        if loop.tensorboard is not None:
            loop.tensorboard.close()
    return loop.evaluation


def _check(task: Task, name: str) -> None:
    if not isinstance(task.steps, int) or task.steps < 1:
        raise InputError(f"a task needs at least 1 step; given steps={task.steps!r}")
    if not any(each.requires_grad for each in task.model.parameters()):
        raise InputError("the model has no parameters to train")
    if task.keep_best and not task.evaluate_every:
        raise InputError(
            f"keep_best={task.keep_best!r} chooses among evaluations, but there is only one: set evaluate_every"
        )
    if not name or name != Path(name).name or name.startswith("."):
        raise InputError(f"the name of a fit must be a valid folder name; given {name!r}")


class StopRequest:
    """Handles Ctrl-C and SIGTERM within a `with` block: the first signal sets `requested`, the second stops at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may handle signals.
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._handle) for each in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class _Loop:
    """A fit in progress. `step` counts the steps taken; `evaluation` holds the metrics of the last evaluation."""

    def __init__(self, task: Task, context: TrialContext, name: str):
        self.task, self.model, self.fabric = task, task.model, context.fabric
        self.log, self.clock, self.progress = context.log, context.clock, context.progress
        self.checkpoints = Checkpoints(context.folder / "checkpoints" / name, self.progress.warn)
        self.step = 0
        self.evaluation: dict[str, float] = {}
        self.tensorboard: TensorBoardLog | None = None
        self._best = BestWeights(task.keep_best) if task.keep_best else None
        self._key, self._save_every = (context.trial.seed, name), context.options.save_every
        self._saved_step, self._saved_at = -1, time.monotonic()
        self._losses, self._read_every, self._read_at = LossBuffer(), 1, time.monotonic()
        # Several processes must stop at the same step, and checking synchronises with a GPU: these check at readings.
        self._checks_each_step = self.fabric.world_size == 1 and self.fabric.device.type == "cpu"
        self._engine = Engine(task, self.fabric, context.options.graph)
        self._restore()

    def run(self, stop: StopRequest) -> None:
        """Take the remaining steps."""
        self.model.train()
        while self.step < self.task.steps:
            self._take_step()
            stopped = self._read(stop.requested)
            if self._at_end or (self.task.evaluate_every and self.step % self.task.evaluate_every == 0):
                self._evaluate()
            if stopped:
                self._stop()
            if self._at_end or self._checkpoint_due():
                self._save()
        if self._any_process(stop.requested):
            self._stop()

    @property
    def _at_end(self) -> bool:
        return self.step == self.task.steps

    def _take_step(self) -> None:
        batch, step = self._batch(), self.step + 1
        with self._explained(f"in step {step} of {self.task.steps}", step):
            self._engine.step(batch, self._add_loss)
        self.step = step

    @contextmanager
    def _explained(self, where: str, step: int) -> Iterator[None]:
        """Turn errors that training has caused into a `RunError`; note in others where they occurred."""
        try:
            yield
        except RunError:
            raise
        except Exception as error:
            # Losses or weights that were not finite before are the likely cause, and the better message.
            self._losses.check(step)
            self._check_weights()
            if isinstance(error, SolveError):
                raise solve_failed(error, where) from error
            if isinstance(error, InputError) and self.step:
                # The first step has worked with the same inputs: what has changed are the weights.
                raise RunError(f"{error}; this happened {where}: try a smaller learning rate") from error
            error.add_note(where)
            raise

    def _add_loss(self, loss: Loss) -> None:
        self._losses.add(loss)
        if self._checks_each_step:
            self._losses.check(self.step + 1, last=1)

    def _batch(self) -> Any:
        seed_step(*self._key, "step", self.step)
        generator = torch.Generator().manual_seed(derive_seed(*self._key, "batch", self.step))
        batch = self.task.batch(self.step, generator)
        part = shard_batch(batch, self.fabric.global_rank, self.fabric.world_size)
        if self.fabric.world_size > 1:
            # Each device has its own random numbers in the loss, but not in the batch.
            seed_step(*self._key, "step", self.step, self.fabric.global_rank)
        return self.fabric.to_device(part)

    def _read(self, stop: bool) -> bool:
        """Read and log the losses when it is time. Returns whether to stop."""
        if self._at_end or self.step % self._read_every == 0:
            values, stop = self._losses.read(self.step, stop, self.fabric)
            self._log("train", values)
            self.progress.update(self.step, values)
            self._adapt_reading_interval()
            return stop
        return stop and self.fabric.world_size == 1

    def _adapt_reading_interval(self) -> None:
        """Read about ten times per second, and at least often enough for a curve."""
        now = time.monotonic()
        elapsed, self._read_at = now - self._read_at, now
        longest = max(1, self.task.steps // MIN_READINGS)
        if elapsed < SECONDS_BETWEEN_READINGS / 2:
            self._read_every = min(2 * self._read_every, longest)
        elif elapsed > 4 * SECONDS_BETWEEN_READINGS:
            self._read_every = max(self._read_every // 2, 1)
        self._read_every = broadcast(self._read_every, self.fabric)

    def _log(self, kind: str, values: dict[str, float]) -> None:
        self.log.write(self.step, kind, self._key[1], values)
        if self.tensorboard is not None:
            self.tensorboard.write(self.step, kind, values)

    def _evaluate(self) -> None:
        """Evaluate the model in the first process, and send the metrics to the others."""
        values: dict[str, float] = {}
        if self.fabric.is_global_zero:
            self.model.eval()
            seed_step(*self._key, "evaluation", self.step)
            where = self._explained(f"in the evaluation after step {self.step}", self.step)
            with where, torch.no_grad(), self.fabric.autocast():
                values = {name: float(value) for name, value in self.task.evaluate(self.model).items()}
            self.model.train()
        self.evaluation = broadcast(values, self.fabric)
        self._log("evaluation", self.evaluation)
        self.progress.evaluated(self.step, self.evaluation)
        if self._best is not None:
            self._best.update(self.step, self.evaluation, self._engine.weights)
            if self._at_end:
                # Buffers may differ between processes: take those that were evaluated.
                weights = broadcast(self._best.weights, self.fabric)
                if weights is not None:
                    self._engine.load_weights(weights)
                self.evaluation = self._best.evaluation(self.evaluation)

    def _any_process(self, stop: bool) -> bool:
        """Whether any process was requested to stop."""
        if self.fabric.world_size == 1:
            return stop
        total = self.fabric.all_reduce(torch.tensor(float(stop), device=self.fabric.device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total.item() > 0

    def _stop(self) -> None:
        self._save()
        self.fabric.barrier()
        command = ["ncode", *sys.argv[1:], *([] if "--resume" in sys.argv else ["--resume"])]
        self.progress.finish()
        self.progress.warn(f"stopped after step {self.step} of {self.task.steps}; resume with: {shlex.join(command)}")
        # Lightning kills the first process if another one ends with an error.
        raise Stopped(130 if self.fabric.is_global_zero else 0)

    def _checkpoint_due(self) -> bool:
        if self._save_every:
            return self.step % self._save_every == 0
        return time.monotonic() - self._saved_at > SECONDS_BETWEEN_CHECKPOINTS

    def _save(self) -> None:
        if not self.fabric.is_global_zero or self._saved_step == self.step:
            return
        self._losses.check(self.step)
        self._check_weights()
        weights, state = self._engine.weights(), self._engine.state()
        state |= {"evaluation": self.evaluation, "seconds": self.clock.seconds}
        if self._best is not None and not self._at_end:
            state["best"] = self._best.state
        self.log.sync()
        self.checkpoints.write(Checkpoint(self.step, weights, state))
        self._saved_step, self._saved_at = self.step, time.monotonic()

    def _check_weights(self) -> None:
        for name, parameter in self.model.named_parameters():
            if not torch.isfinite(parameter).all():
                raise RunError(f"{name} is not finite after step {self.step}: try a smaller learning rate")

    def _restore(self) -> None:
        # Read by one process, so that all continue from the same checkpoint.
        checkpoint = broadcast(self.checkpoints.load() if self.fabric.is_global_zero else None, self.fabric)
        if checkpoint is not None:
            self.step = checkpoint.step
            self._load(checkpoint)
        self.log.cut(self._key[1], self.step)

    def _load(self, checkpoint: Checkpoint) -> None:
        if checkpoint.step > self.task.steps:
            raise InputError(
                f"{self.checkpoints.folder} holds step {checkpoint.step} of a run that now has {self.task.steps} steps:"
                " resume with the settings of the original run, or start a new one without --resume"
            )
        try:
            self._engine.load(checkpoint.weights, checkpoint.state)
            self.evaluation, self._saved_step = dict(checkpoint.state["evaluation"]), checkpoint.step
            # Absent from checkpoints written before the clock existed.
            self.clock.resume(float(checkpoint.state.get("seconds", 0.0)))
            if self._best is not None:
                self._best.state = checkpoint.state.get("best")
        # What the state holds may be anything, and torch's optimisers do not check it.
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(
                f"the checkpoint in {self.checkpoints.folder} does not fit the model: resume with the settings of the"
                f" original run, or start a new one without --resume ({type(error).__name__}: {error})"
            ) from error
