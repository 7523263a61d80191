"""A task that takes milliseconds, and has all that a resumed run could get wrong.

As a script: `python -m tests.training.tiny '{"folder": ..., "steps": 6}'` trains it in that folder, or goes on there.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from ncode_lab.training import Loss, Progress, Result, RunFolder, RunOptions, Task, Trial, TrialContext
from ncode_lab.training.devices import start_fabric
from torch import nn


class Tiny(Task):
    """Momentum, a schedule, running statistics, noise in the batch and noise in the loss.

    With `scores`, one an evaluation, the weights of the highest are kept.
    """

    evaluate_every = 3

    def __init__(self, steps=6, rows=8, noisy=True, pause=0.0, at_step=None, scores=()):
        layers = [nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)]
        self.model = nn.Sequential(*([nn.BatchNorm1d(2), nn.Dropout(0.2)] if noisy else []), *layers)
        # Of the share of the batch that a process has seen: what differs from process to process.
        self.model.register_buffer("mean", torch.zeros(()))
        self.scores, self.keep_best = scores, "score" if scores else ""
        self.steps, self.rows, self.pause = steps, rows, pause
        self.at_step = at_step or {}
        self.seen = []

    def batch(self, step, generator):
        self.seen.append(step)
        self.at_step.get(step, lambda: None)()
        x = torch.randn(self.rows, 2, generator=generator)
        return {"x": x, "y": x[:, :1] * x[:, 1:]}

    def loss(self, model, batch):
        time.sleep(self.pause)
        model.mean.copy_(batch["x"].mean())
        error = (model(batch["x"]) - batch["y"]).square().mean()
        return Loss(error, {"nfe": 12, "control norm": batch["x"].norm()})

    def evaluate(self, model):
        x = torch.randn(16, 2, device=next(model.parameters()).device)
        score = {"score": self.scores[self.seen[-1] // self.evaluate_every]} if self.scores else {}
        return {"error": (model(x) - x[:, :1] * x[:, 1:]).square().mean(), **score}

    def optimiser(self, parameters):
        return torch.optim.AdamW(parameters, lr=0.01)

    def schedule(self, optimiser):
        warm = torch.optim.lr_scheduler.LinearLR(optimiser, 0.1, total_iters=2)
        step = torch.optim.lr_scheduler.MultiStepLR(optimiser, [2, 4])
        return torch.optim.lr_scheduler.SequentialLR(optimiser, [warm, step], [2])


def context_at(folder, progress=None, **options):
    options = RunOptions(**{"device": "cpu", "quiet": True, "save_every": 2, **options})
    fabric = start_fabric(options)
    progress = progress or Progress(quiet=options.quiet, prints=fabric.is_global_zero)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return TrialContext(fabric, folder, Trial("tiny", "products"), options, progress)


def train(folder, progress=None, options=None, **task):
    """A life of the run; the weights that it ends with."""
    context = context_at(folder, progress, **(options or {}))
    model = context.fit(Tiny(**task))
    return {name: value.clone() for name, value in model.state_dict().items()}


def script(name, *arguments):
    """How to start a script of this folder."""
    command = [sys.executable, "-m", f"tests.training.{name}", *map(str, arguments)]
    return {"args": command, "cwd": Path(__file__).parents[2], "text": True}


def logged(folder):
    """The lines of a trial's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def main(folder, options=None, stop_at=None, **task):
    torch.set_num_threads(1)
    context = context_at(folder, **(options or {}))
    if stop_at is not None and context.fabric.is_global_zero:
        task["at_step"] = {stop_at: lambda: os.kill(os.getpid(), signal.SIGTERM)}
    model = context.fit(Tiny(**task))
    context.save_tensors("weights", **model.state_dict())
    context.save_tensors("after", drawn=torch.rand(3))
    run = RunFolder.create(context.folder / "runs", "tiny", {}, context.fabric)
    run.write_result("tiny", Result("tiny", "", "", "", 0, {}, context.final, 0, 0.0, "", {}, "", ""))
    run.close()
    found = RunFolder.open(run.path, context.fabric)
    sums = {name: value.sum().item() for name, value in model.state_dict().items()}
    told = {"rank": context.fabric.global_rank, "sums": sums, "run": run.path.name, "found": found.path.name}
    line = json.dumps({**told, "final": context.final, "result": found.result("tiny").metrics})
    os.write(1, f"{line}\n".encode())  # in one piece: the processes share their output


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
