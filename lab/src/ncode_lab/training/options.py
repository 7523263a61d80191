"""`RunOptions`: options that every run has, whatever the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ncode import InputError
from ncode.errors import check_choice

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["32", "bf16", "16", "64"]
MAX_SEEDS = 100_000


@dataclass(frozen=True)
class RunOptions:
    """How to run: seeds, devices and output. What to run is defined by the experiment."""

    seed: int = 0
    """Seed of the first trial: of its weights, its data and all randomness within a step."""
    seeds: int = 1
    """Number of seeds per model: seed, seed + 1, ..."""
    device: Device = "auto"
    """Where to train. auto: on CUDA if available, otherwise on the CPU. CUDA_VISIBLE_DEVICES chooses the GPU."""
    devices: int = 1
    """Devices per node. Each takes an equal share of every batch."""
    nodes: int = 1
    """Number of machines. Start the same command on each, or let Slurm do it."""
    precision: Precision = "32"
    """bf16 and 16 are mixed precision: 32-bit weights, 16-bit arithmetic where it is safe."""
    out: Path = Path("runs")
    """Folder in which run folders are created."""
    resume: bool = False
    """Resume the latest unfinished run of this experiment in --out, or the run whose own folder --out gives."""
    deterministic: bool = False
    """Use only operations that give the same bits each time; an operation that cannot raises an error."""
    graph: bool = False
    """On one CUDA device: record a training step as a CUDA graph and replay it. For tasks whose steps have fixed shapes
    and never read a value of a tensor on the CPU."""
    quiet: bool = False
    """Print only warnings and errors."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""
    save: bool = False
    """Save each trained model in the folder pretrained/ of its trial, which
    `ncode.from_pretrained(folder, allow_imports=["ncode_lab"])` reads."""
    save_every: int = 0
    """Steps between two checkpoints. 0: every 30 seconds, and at the end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", Path(self.out))
        check_choice("device", self.device, get_args(Device))
        check_choice("precision", self.precision, get_args(Precision))
        for name in ("resume", "deterministic", "graph", "quiet", "tensorboard", "save"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False; given {getattr(self, name)!r}")
        for name, low in (("seed", 0), ("seeds", 1), ("devices", 1), ("nodes", 1), ("save_every", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InputError(f"{name} must be a whole number of at least {low}; given {value!r}")
        if self.seed + self.seeds > 2**63 or self.seeds > MAX_SEEDS:
            raise InputError(
                f"there are at most {MAX_SEEDS:,} seeds, below 2**63; given seed={self.seed} and seeds={self.seeds}"
            )

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds to run.

        >>> RunOptions(seed=3, seeds=2).all_seeds
        (3, 4)
        """
        return tuple(range(self.seed, self.seed + self.seeds))
