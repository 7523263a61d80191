"""A stand-in for Triton's language, to run kernels on a CPU: a program after another, each lane an element of a tensor.

Waits mean nothing here, since all lanes take each operation together. What a program reads and writes, and what it
makes of it, is the same.
"""

import torch

float32, float64, int32, int64 = torch.float32, torch.float64, torch.int32, torch.int64


class Pointer:
    def __init__(self, memory, offset=0):
        self.memory, self.offset = memory, offset

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)


program = 0


def program_id(axis):
    return torch.tensor(program)


def arange(low, high):
    return torch.arange(low, high)


def static_range(count):
    return range(count)


def debug_barrier():
    return None


def cast(value, dtype):
    return torch.as_tensor(value).to(dtype)


def _places(pointer, mask):
    place = torch.as_tensor(pointer.offset)
    mask = torch.as_tensor(True if mask is None else mask).expand(place.shape)
    seen = place[mask]
    assert seen.numel() == 0 or (int(seen.min()) >= 0 and int(seen.max()) < len(pointer.memory)), "out of bounds"
    return place, mask


def load(pointer, mask=None, other=0.0):
    place, mask = _places(pointer, mask)
    found = pointer.memory[torch.where(mask, place, 0)]
    return torch.where(mask, found, torch.as_tensor(other, dtype=found.dtype))


def store(pointer, value, mask=None):
    place, mask = _places(pointer, mask)
    value = torch.as_tensor(value).to(pointer.memory.dtype).expand(place.shape)
    pointer.memory[place[mask]] = value[mask]


def where(condition, one, other):
    return torch.where(condition, torch.as_tensor(one), torch.as_tensor(other))


def max(x, axis):
    return x.amax(axis)


def sum(x, axis):
    return x.sum(axis)


abs, exp, log, minimum, maximum = torch.abs, torch.exp, torch.log, torch.minimum, torch.maximum


def launch(kernel, batch, block, *arguments, **sizes):
    """In place of a launch."""
    global program
    flat = [Pointer(each.view(-1)) if isinstance(each, torch.Tensor) else each for each in arguments]
    for program in range(batch):  # noqa: B007
        kernel(*flat, **sizes)
