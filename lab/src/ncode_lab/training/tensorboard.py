"""The metrics for TensorBoard, where it is asked for."""

from __future__ import annotations

from pathlib import Path

from ncode import InputError


def check_tensorboard() -> None:
    """Say so, where TensorBoard is asked for and not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError("--tensorboard needs the package tensorboard: pip install tensorboard") from error


class Board:
    """Writes numbers where TensorBoard finds them.

    Args:
        folder: For its files.
        done: Steps that an earlier life of the run had come to; what it wrote after them is hidden.

    >>> from tempfile import TemporaryDirectory
    >>> place = TemporaryDirectory()
    >>> board = Board(Path(place.name))
    >>> board.write(1, "train", {"loss": 0.5}); board.close()
    >>> len(list(Path(place.name).iterdir()))
    1
    >>> place.cleanup()
    """

    def __init__(self, folder: Path, done: int = 0):
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        """One point a curve."""
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()
