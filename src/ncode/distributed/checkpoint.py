"""Checkpoints of a training with several processes, which resume on any number of ranks.

They are written by `torch.distributed.checkpoint`: every rank writes what it holds and reads what it needs, so that
weights may be replicated (DDP), sharded (FSDP2) or in a single process, and may change between these.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import InputError, check_count
from .agreement import is_distributed, raise_together, warn_if_alone

_COMPLETE = ".metadata"  # torch writes this file last, and renames it into place
_NAMES = "step-" + 10 * "[0-9]"
_RNG = "_rng"
_MISSING = "Missing key in checkpoint state_dict: "


def save_checkpoint(
    folder: str | Path, step: int, model: nn.Module, optimizer: Any = None, *, keep: int = 2, **more: Any
) -> None:
    """Save a training after `step` steps. Every rank must call it.

    Each checkpoint has a folder of its own, `step-...`, and counts only when it is complete: a process that is killed
    while it writes leaves the checkpoint before it intact. The states of torch's random numbers are saved as well.

    Args:
        folder: Where checkpoints are; all ranks must see the same folder.
        step: Number of steps taken.
        model: The model: plain, or wrapped by DDP or `fully_shard`.
        optimizer: Its optimiser.
        keep: Number of complete checkpoints to keep.
        more: By name, other objects with `state_dict` and `load_state_dict` whose state is equal on all ranks: a
            `BalancedBatchSampler`, a learning-rate schedule, a gradient scaler.

    >>> import tempfile, torch, ncode
    >>> from ncode.distributed import load_checkpoint, save_checkpoint
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16))
    >>> optimizer = torch.optim.Adam(block.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(load_checkpoint(folder, block, optimizer))
    ...     save_checkpoint(folder, 100, block, optimizer)
    ...     print(load_checkpoint(folder, block, optimizer))
    0
    100
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    warn_if_alone()
    folder, step, keep = Path(folder), check_count("step", step), check_count("keep", keep)
    path = folder / f"step-{step:010d}"
    with raise_together():
        if _rank() == 0:
            _make_room(folder, path)
    state = {**_state_of(model, optimizer), **more, _RNG: _gather((torch.get_rng_state(), _cuda_rng_state()))}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(state, checkpoint_id=path)
    if _rank() == 0:
        for old in _complete(folder)[:-keep]:
            _remove(old)


def load_checkpoint(folder: str | Path, model: nn.Module, optimizer: Any = None, **more: Any) -> int:
    """Load the last complete checkpoint of a folder, and return its step: 0 if there is none. Every rank must call it.

    The arguments are those of `save_checkpoint`. The number of ranks, and how the model is wrapped, may be others. On
    the same number of ranks random numbers continue as they would have; on another number each rank gets new ones.

    If the last checkpoint is damaged, and there is one before it, that one is loaded with a warning, and the damaged
    one is renamed to `damaged-step-...`. Files that were cut or lost are noticed; not every changed byte is.

    Checkpoints of torch are pickles, which can run any code: load only those that you trust.

    >>> import tempfile, torch, ncode
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ncode.distributed.load_checkpoint(folder, torch.nn.Linear(2, 2))
    0
    """
    found: list[Path] = []
    with raise_together():
        if _rank() == 0:
            found = _complete(Path(folder))
    found = _gather(found)[0]  # one rank decides: a network file system may show others less
    while found:
        path = found.pop()
        reason = _load(path, model, optimizer, more)
        if reason is None:
            return int(path.name.removeprefix("step-"))
        if not found:
            raise InputError(
                f"the checkpoint {path} is damaged ({reason}), and there is none before it. The model may hold parts of"
                " it: make a new one. Restore the checkpoint from a copy, or delete it to start anew"
            )
        with raise_together():
            if _rank() == 0:
                _set_aside(path, reason, found[-1])
    return 0


def _load(path: Path, model: nn.Module, optimizer: Any, more: dict[str, Any]) -> str | None:
    """Load one checkpoint on all ranks. Returns what is wrong with it, the same on all ranks; None if it was loaded."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    # Looked at before: torch would print two tracebacks.
    reason = _gather(_unreadable_metadata(path) if _rank() == 0 else None)[0]
    if reason is not None:
        return reason
    if optimizer is not None:
        optimizer.zero_grad()  # otherwise torch does not create the state that is to be loaded
    state = {**_state_of(model, optimizer), **more, _RNG: None}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(state, checkpoint_id=path)
        except CheckpointException as error:  # raised on all ranks together, with what failed on any of them
            return _damage(path, [failure for failure, *_ in error.failures.values()])
    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    _restore_rng(state[_RNG])
    return None


def _unreadable_metadata(path: Path) -> str | None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        FileSystemReader(path).read_metadata()
    except Exception as error:  # an unpickler can raise anything
        return f"{_COMPLETE} cannot be read: {_first_line(error)}"
    return None


def _damage(path: Path, failures: list[BaseException]) -> str:
    """What is wrong with the files of a checkpoint; raises if something else failed."""
    for error in failures:
        text = str(error)
        if text.startswith(_MISSING) or "Size mismatch" in text:
            wrong = f"it has no {text.removeprefix(_MISSING).rstrip('.')}" if text.startswith(_MISSING) else text
            raise InputError(
                f"the checkpoint {path} is not one of this training: {wrong.splitlines()[0]}. Load it with the model,"
                " the optimiser and the other objects that it was saved with, or its weights alone:"
                " load_checkpoint(folder, model)"
            ) from error
        lost = isinstance(error, FileNotFoundError)
        elsewhere = (MemoryError, torch.OutOfMemoryError, dist.DistError, *(() if lost else (OSError,)))
        if not isinstance(error, Exception) or isinstance(error, elsewhere):
            raise error
    return _first_line(failures[0])


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200].rstrip(": ")


def _set_aside(path: Path, reason: str, before: Path) -> None:
    """Rename a damaged checkpoint: `save_checkpoint` would not save earlier steps beside it."""
    renamed = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(renamed, ignore_errors=True)
    path.rename(renamed)
    warnings.warn(
        f"the checkpoint {path} is damaged ({reason}): it is now {renamed.name}, and {before.name} is loaded in its"
        " place",
        stacklevel=3,
    )


def _state_of(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return state


def _complete(folder: Path) -> list[Path]:
    """The complete checkpoints, the last one last."""
    return sorted(path for path in folder.glob(_NAMES) if (path / _COMPLETE).exists())


def _make_room(folder: Path, path: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for found in _complete(folder):
        if found > path:
            raise InputError(
                f"{folder} has a checkpoint of a later step, {found.name}: resume it with load_checkpoint, or choose"
                " another folder"
            )
    for started in folder.glob(_NAMES):
        if started == path or not (started / _COMPLETE).exists():
            _remove(started)


def _remove(checkpoint: Path) -> None:
    (checkpoint / _COMPLETE).unlink(missing_ok=True)  # first, so that what is left does not count as complete
    shutil.rmtree(checkpoint, ignore_errors=True)


def _rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def _gather(value: Any) -> list[Any]:
    """The value of each rank, on all ranks."""
    if not is_distributed():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _cuda_rng_state() -> torch.Tensor | None:
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _restore_rng(states: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    """Restore each rank's own state; on another number of ranks, derive new ones from the first rank's."""
    same = len(states) == len(_gather(None))
    cpu, cuda = states[_rank() if same else 0]
    torch.set_rng_state(cpu)
    if not same:
        torch.manual_seed(int(torch.randint(2**62, ())) + _rank())
    elif cuda is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(cuda)
