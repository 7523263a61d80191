"""What surrounds an evaluation besides its arguments: the autocast mode."""

from __future__ import annotations

from contextlib import ExitStack

import torch


class Ambient:
    """Remembers the autocast mode of the forward pass; a context in which backward evaluates the dynamics again."""

    def __init__(self, device: torch.device):
        kinds = {device.type, "cpu"}
        self.modes = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in sorted(kinds)]
        self.stack = ExitStack()

    def __enter__(self) -> None:
        self.stack = ExitStack()
        for kind, dtype, enabled in self.modes:
            if enabled or torch.is_autocast_enabled(kind):
                self.stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))

    def __exit__(self, *error: object) -> None:
        self.stack.close()
