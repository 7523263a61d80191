"""The network behind FID: Inception-v3 as TensorFlow published it on 2015-12-05, and its weights.

It differs from today's Inception-v3 in three places: average pooling does not count the padding, the last block pools
by the maximum, and the resize starts its grid at the corner of the image. Each of them changes the score.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ncode import InputError
from ncode.errors import check_choice

from ..precision import tf32
from .checks import check_images

SIDE = 299
Kernel = int | tuple[int, int]
Chain = list[tuple[int, Kernel]]  # (channels out, kernel) of one convolution after the other

ROW, COLUMN = (1, 7), (7, 1)

PRECISIONS = ("ieee", "tf32")
_UNUSED = re.compile(r"fc\.|AuxLogits\.|.*num_batches_tracked")

FILE = "inception-2015-12-05-fp16.safetensors"
# Of the published weights, with convolutions rounded to float16: the same for the file of pytorch-fid.
FINGERPRINT = "4caed7af36b5f123f95ab0ef485442785c9ce6b4467729c6dea6f8c07bd3edd3"


class Inception(nn.Module):
    """Maps uint8 images (n, 3, height, width) to features (n, 2048), always in float32 and in evaluation mode.

    `load_inception` returns one with the published weights; a new one has random weights. `genuine` says which: scores
    with other weights are not called FID. `precision` is that of convolutions on CUDA, "ieee" or "tf32", which rounds
    factors to 10 bits and takes a fraction of the time; the settings of a training loop have no influence.

    >>> import torch, ncode_lab.metrics
    >>> network = ncode_lab.metrics.Inception()
    >>> network(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([1, 2048])
    >>> network.genuine
    False
    """

    def __init__(self, precision: str = "ieee") -> None:
        super().__init__()
        self.genuine = False
        self.precision = check_choice("precision", precision, PRECISIONS)
        self.Conv2d_1a_3x3 = _Unit(3, 32, 3, stride=2, padding=0)
        self.Conv2d_2a_3x3 = _Unit(32, 32, 3, padding=0)
        self.Conv2d_2b_3x3 = _Unit(32, 64, 3)
        self.Conv2d_3b_1x1 = _Unit(64, 80, 1)
        self.Conv2d_4a_3x3 = _Unit(80, 192, 3, padding=0)
        self.Mixed_5b = _Mixed(192, _first(), pool=32)
        self.Mixed_5c = _Mixed(256, _first(), pool=64)
        self.Mixed_5d = _Mixed(288, _first(), pool=64)
        self.Mixed_6a = _Mixed(288, {"branch3x3": [(384, 3)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3)]}, halve=True)
        self.Mixed_6b = _Mixed(768, _second(128), pool=192)
        self.Mixed_6c = _Mixed(768, _second(160), pool=192)
        self.Mixed_6d = _Mixed(768, _second(160), pool=192)
        self.Mixed_6e = _Mixed(768, _second(192), pool=192)
        seven = [(192, 1), (192, ROW), (192, COLUMN), (192, 3)]
        self.Mixed_7a = _Mixed(768, {"branch3x3": [(192, 1), (320, 3)], "branch7x7x3": seven}, halve=True)
        self.Mixed_7b = _Mixed(1280, _third(), pool=192, fork=True)
        self.Mixed_7c = _Mixed(2048, _third(), pool=192, fork=True, pool_by_maximum=True)
        # In float32, whatever the default dtype is.
        self.requires_grad_(False).eval().float()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features before the last layer, averaged over positions."""
        x = resize(check_images(images).float())
        # A score must not depend on the precision that a training loop has chosen.
        with torch.autocast(x.device.type, enabled=False), tf32(self.precision == "tf32"):
            x = ((x - 128) / 128).contiguous(memory_format=torch.channels_last)
            x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
            x = functional.max_pool2d(x, 3, 2)
            x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))
            x = functional.max_pool2d(x, 3, 2)
            for name, block in self.named_children():
                if name.startswith("Mixed"):
                    x = block(x)
        return x.mean((2, 3))

    def train(self, mode: bool = True) -> Inception:
        """Stay in evaluation mode: updated batch norms would make it another network."""
        return super().train(False)


def resize(images: Tensor, side: int = SIDE) -> Tensor:
    """Resize bilinearly to side x side on the grid of the original: pixel i takes its value at i * size / side."""
    for dim in (2, 3):
        size = images.shape[dim]
        # In float32, as the original: its rounding decides which pixels are interpolated.
        place = torch.arange(side, device=images.device, dtype=torch.float32) * (size / side)
        low = place.floor().long().clamp(max=size - 1)
        part = (place - low).to(images.dtype).view(-1, *[1] * (3 - dim))
        lower, upper = images.index_select(dim, low), images.index_select(dim, (low + 1).clamp(max=size - 1))
        images = lower + (upper - lower) * part
    return images


def _first() -> dict[str, Chain]:
    return {"branch1x1": [(64, 1)], "branch5x5": [(48, 1), (64, 5)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3)]}


def _second(inner: int) -> dict[str, Chain]:
    return {
        "branch1x1": [(192, 1)],
        "branch7x7": [(inner, 1), (inner, ROW), (192, COLUMN)],
        "branch7x7dbl": [(inner, 1), (inner, COLUMN), (inner, ROW), (inner, COLUMN), (192, ROW)],
    }


def _third() -> dict[str, Chain]:
    return {"branch1x1": [(320, 1)], "branch3x3": [(384, 1)], "branch3x3dbl": [(448, 1), (384, 3)]}


class _Unit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, channels: int, out: int, kernel: Kernel, stride: int = 1, padding: int | None = None):
        super().__init__()
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        around = (sides[0] // 2, sides[1] // 2) if padding is None else (padding, padding)
        self.conv = nn.Conv2d(channels, out, sides, stride, around, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        conv, bn = self.conv, self.bn
        # The norm is a factor and an offset: as part of the kernel, it costs no pass over the image.
        assert bn.running_mean is not None and bn.running_var is not None
        scale = bn.weight / (bn.running_var + bn.eps).sqrt()
        offset = bn.bias - bn.running_mean * scale
        kernel = conv.weight * scale.view(-1, 1, 1, 1)
        return functional.relu_(functional.conv2d(x, kernel, offset, conv.stride, conv.padding))


class _Mixed(nn.Module):
    """Parallel branches; the last one pools.

    With `halve` each branch ends with a stride of 2. With `fork` branches of more than one kernel end in a row and a
    column kernel in parallel.
    """

    def __init__(
        self,
        channels: int,
        branches: dict[str, Chain],
        pool: int | None = None,
        *,
        halve: bool = False,
        fork: bool = False,
        pool_by_maximum: bool = False,
    ):
        super().__init__()
        self.halve, self.pool_by_maximum = halve, pool_by_maximum
        self.chains: list[list[str]] = []
        self.forks: dict[str, tuple[str, str]] = {}  # by the first name of a chain
        for name, chain in branches.items():
            self._add(name, channels, chain, fork and name != "branch1x1")
        if pool is not None:
            self.branch_pool = _Unit(channels, pool, 1)

    def _add(self, name: str, channels: int, chain: Chain, fork: bool) -> None:
        names = [name] if len(chain) == 1 and not fork else [f"{name}_{i}" for i in range(1, len(chain) + 1)]
        for unit, (out, kernel) in zip(names, chain, strict=True):
            last = self.halve and unit == names[-1]
            setattr(self, unit, _Unit(channels, out, kernel, 2, 0) if last else _Unit(channels, out, kernel))
            channels = out
        self.chains.append(names)
        if fork:
            row, column = (f"{name}_{len(chain) + 1}{letter}" for letter in "ab")
            self.forks[names[0]] = (row, column)
            setattr(self, row, _Unit(channels, channels, (1, 3)))
            setattr(self, column, _Unit(channels, channels, (3, 1)))

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for names in self.chains:
            part = x
            for name in names:
                part = getattr(self, name)(part)
            ends = self.forks.get(names[0], ())
            parts += [getattr(self, end)(part) for end in ends] or [part]
        return torch.cat([*parts, self._pooled(x)], 1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.halve:
            return functional.max_pool2d(x, 3, 2)
        if self.pool_by_maximum:
            return self.branch_pool(functional.max_pool2d(x, 3, 1, 1))
        return self.branch_pool(functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False))


def load_inception(weights: str | Path, precision: str = "ieee") -> Inception:
    """Load the FID network with weights from a file, which `ncode_lab.data.find("inception")` finds.

    The file is a .safetensors or a .pth with the names of torchvision's Inception3. `precision` is that of
    convolutions on CUDA: see `Inception`.

    >>> import ncode, ncode_lab.metrics
    >>> try:
    ...     ncode_lab.metrics.load_inception("nowhere.safetensors")
    ... except ncode.InputError as error:
    ...     print(error)
    there is no file nowhere.safetensors: it should hold the weights of the FID network, ...
    """
    path = Path(weights)
    if not path.is_file():
        raise InputError(f"there is no file {path}: it should hold the weights of the FID network, {FILE}")
    given = {name: value for name, value in _read(path).items() if not _UNUSED.match(name)}
    with torch.random.fork_rng(devices=[]):
        network = Inception(precision)
    state = {name: value for name, value in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    for name in state:
        if name.endswith("bn.weight"):
            given.setdefault(name, torch.ones_like(state[name]))
    _check(path, given, state)
    network.load_state_dict({name: value.float() for name, value in given.items()}, strict=False)
    network.genuine = fingerprint(network) == FINGERPRINT
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


def fingerprint(network: Inception) -> str:
    """Return the SHA-256 of the weights, with convolutions rounded to float16, whatever file they came from."""
    sha = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            rounded = value.half() if name.endswith("conv.weight") else value.float()
            sha.update(rounded.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def _read(path: Path) -> dict[str, Tensor]:
    advice = f"fetch it again, or use {FILE}"
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(str(path))
        except SafetensorError as error:
            raise InputError(f"{path} is damaged ({error}): {advice}") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # other bytes can make an unpickler raise anything
        raise InputError(f"{path} is damaged, or not a file of weights: {advice}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path} does not hold tensors by name: {advice}")
    return state


def _check(path: Path, given: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    missing, unknown = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or unknown:
        parts = [f"{len(missing)} tensors are missing, as {missing[0]}"] if missing else []
        parts += [f"{len(unknown)} are not of this network, as {unknown[0]}"] if unknown else []
        raise InputError(
            f"{path} does not hold the FID network: {'; '.join(parts)}. The names must be those of torchvision's"
            f" Inception3, as in {FILE}"
        )
    for name, value in wanted.items():
        if given[name].shape != value.shape:
            raise InputError(
                f"{path} does not fit the FID network: {name} must be of shape {tuple(value.shape)}, and is"
                f" {tuple(given[name].shape)}"
            )
        if not given[name].is_floating_point() or not given[name].isfinite().all():
            raise InputError(f"{path} is damaged: {name} is not made of finite numbers; fetch the file again")
