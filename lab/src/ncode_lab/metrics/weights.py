"""The weights of the FID network: found, read, and known again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor

from ncode import InputError

from .inception import LAYOUT, PRECISION, Inception

FILES = ("inception-2015-12-05-fp16.safetensors", "pt_inception-2015-12-05-6726825d.pth")
ADDRESS = f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{FILES[1]}"
CHECKSUM = "6726825d"  # how the SHA-256 of the published file starts
# Of the published weights, with convolutions rounded to float16: the same for both files.
FINGERPRINT = "4caed7af36b5f123f95ab0ef485442785c9ce6b4467729c6dea6f8c07bd3edd3"


def load_inception(weights: str | Path | None = None, download: bool = False, precision: str = PRECISION) -> Inception:
    """The FID network, with weights from a file; without one, from the folder that NCODE_DATA names.

    The file is a .safetensors or a .pth with the names of torchvision's Inception3; `download` fetches the published
    one (95 MB) into NCODE_DATA where it is missing. `precision` is that of convolutions on CUDA: see `Inception`.

    >>> import ncode, ncode_lab.metrics
    >>> try:
    ...     ncode_lab.metrics.load_inception("nowhere.safetensors")
    ... except ncode.InputError as error:
    ...     print(error)
    there is no file nowhere.safetensors: it should hold the weights of the FID network, ...
    """
    path = find_weights(weights, download)
    given = {name: value for name, value in _read(path).items() if not _idle(name)}
    with torch.random.fork_rng(devices=[]):
        network = Inception(precision)
    state = {name: value for name, value in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    for name in state:
        if name.endswith("bn.weight"):
            given.setdefault(name, torch.ones_like(state[name]))
    _check(path, given, state)
    network.load_state_dict({name: value.float() for name, value in given.items()}, strict=False)
    network.genuine = fingerprint(network) == FINGERPRINT
    for each in network.parameters():
        if each.dim() == 4:
            each.data = each.data.contiguous(memory_format=LAYOUT)
    return network


def find_weights(weights: str | Path | None = None, download: bool = False) -> Path:
    """The file that was named, or one of the known files under NCODE_DATA.

    >>> import tempfile, pathlib, ncode_lab.metrics
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "own.safetensors"
    ...     path.touch()
    ...     ncode_lab.metrics.find_weights(path).name
    'own.safetensors'
    """
    if weights is not None:
        if not Path(weights).is_file():
            raise InputError(f"there is no file {weights}: it should hold the weights of the FID network, {FILES[0]}")
        return Path(weights)
    root = os.environ.get("NCODE_DATA")
    if not root:
        raise InputError(
            "the FID network needs its weights: name their file with --fid-weights (in Python, load_inception(path)),"
            " or set NCODE_DATA to the folder that holds them"
        )
    places = [Path(root) / folder / name for name in FILES for folder in ("inception", ".")]
    for place in places:
        if place.is_file():
            return place
    if not download:
        raise InputError(
            f"the weights of the FID network are not in {root}: put {FILES[0]} into {places[0].parent}, or fetch"
            f" {ADDRESS} there (load_inception(download=True) does)"
        )
    return _download(Path(root) / "inception" / FILES[1])


def fingerprint(network: Inception) -> str:
    """SHA-256 of the weights, with convolutions rounded to float16, whatever file they came from.

    >>> import ncode_lab.metrics
    >>> len(ncode_lab.metrics.fingerprint(ncode_lab.metrics.Inception()))
    64
    """
    sha = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            kept = value.half() if name.endswith("conv.weight") else value.float()
            sha.update(kept.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def _idle(name: str) -> bool:
    """What published files hold beside the features."""
    return name.startswith(("fc.", "AuxLogits.")) or name.endswith("num_batches_tracked")


def _read(path: Path) -> dict[str, Tensor]:
    again = f"fetch it again, or take {FILES[0]}"
    if path.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError as error:
            raise InputError(f"reading {path} needs the package safetensors: pip install torch-ncode[hub]") from error
        try:
            return load_file(str(path))
        except SafetensorError as error:
            raise InputError(f"{path} is damaged ({error}): {again}") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are no weights can break an unpickler in any way
        raise InputError(f"{path} is damaged, or not a file of weights: {again}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path} does not hold tensors by name: {again}")
    return state


def _check(path: Path, given: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    missing, strange = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or strange:
        parts = [f"{len(missing)} tensors are missing, as {missing[0]}"] if missing else []
        parts += [f"{len(strange)} are not of this network, as {strange[0]}"] if strange else []
        raise InputError(
            f"{path} does not hold the FID network: {'; '.join(parts)}. The names must be those of torchvision's"
            f" Inception3, as in {FILES[0]}"
        )
    for name, value in wanted.items():
        if given[name].shape != value.shape:
            raise InputError(
                f"{path} does not fit the FID network: {name} must be of shape {tuple(value.shape)}, and is"
                f" {tuple(given[name].shape)}"
            )
        if not given[name].is_floating_point() or not given[name].isfinite().all():
            raise InputError(f"{path} is damaged: {name} is not made of finite numbers; fetch the file again")


def _download(path: Path) -> Path:
    """The published file, whole and checked, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(ADDRESS, str(path), hash_prefix=CHECKSUM)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the weights of the FID network could not be fetched ({error}): fetch {ADDRESS} by hand, and put it into"
            f" {path.parent}"
        ) from error
    return path
