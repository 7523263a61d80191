"""`RunOptions`: what every run may be told, whatever the experiment."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ncode import InputError

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["32", "bf16", "16", "64"]


@dataclass(frozen=True)
class RunOptions:
    """How to run: seeds, devices, and where the files go. What is run is for the experiment to say."""

    seed: int = 0
    """Seed of the first trial: of its weights, its data and all that is random in a step."""
    seeds: int = 1
    """How many seeds to run each model with: seed, seed + 1, ..."""
    device: Device = "auto"
    """Where to train. auto: on CUDA where there is one, on the CPU otherwise."""
    devices: int = 1
    """Devices a node. Each takes an equal share of every batch."""
    nodes: int = 1
    """Machines that take part. Start the same command on each, or let Slurm do it."""
    precision: Precision = "32"
    """bf16 and 16 are mixed precision: 32-bit weights, 16-bit arithmetic where it is safe."""
    out: Path = Path("runs")
    """Folder that run folders are made in."""
    resume: bool = False
    """Go on with the latest run of this experiment that has not finished."""
    deterministic: bool = False
    """Only operations that give the same bits each time; an operation that cannot is an error."""
    graph: bool = False
    """On one CUDA device: record a training step as a CUDA graph and replay it. For tasks whose steps have fixed shapes
    and never look at a value."""
    quiet: bool = False
    """Print nothing but warnings and errors."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too."""
    save: bool = False
    """Keep each trained model as a folder that `from_pretrained` reads."""
    save_every: int = 0
    """Steps between two checkpoints. 0: every 30 seconds, and at the end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", Path(self.out))
        _check_choice("device", self.device, get_args(Device))
        _check_choice("precision", self.precision, get_args(Precision))
        for name, least in (("seed", 0), ("seeds", 1), ("devices", 1), ("nodes", 1), ("save_every", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}; given {value!r}")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds to run.

        >>> RunOptions(seed=3, seeds=2).all_seeds
        (3, 4)
        """
        return tuple(range(self.seed, self.seed + self.seeds))


def _check_choice(name: str, value: Any, valid: tuple[str, ...]) -> None:
    if value in valid:
        return
    near = difflib.get_close_matches(str(value), valid, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"there is no {name} {value!r}; choose one of: {', '.join(valid)}{hint}")
