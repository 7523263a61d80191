"""Training with several processes, one per device, under torch's DDP or FSDP2: see docs/guides/distributed.md.

A solve never communicates: ranks take as many steps as their samples need. What ranks must agree on is here.

    all_ok, raise_together     a failure on one rank is seen by all
    warm_up                    compile before ranks wait for each other
    BalancedBatchSampler       batches that cost each rank the same
    save_checkpoint, load_checkpoint
                               checkpoints that resume on another number of ranks

Everything works in a single process too, where there is nothing to agree on.
"""

from .agreement import RankError, all_ok, raise_together, warm_up
from .checkpoint import load_checkpoint, save_checkpoint
from .sampler import BalancedBatchSampler

__all__ = [
    "BalancedBatchSampler",
    "RankError",
    "all_ok",
    "load_checkpoint",
    "raise_together",
    "save_checkpoint",
    "warm_up",
]
