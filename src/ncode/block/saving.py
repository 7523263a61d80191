"""Modules saved in a folder: `save_pretrained`, `from_pretrained`.

A folder can be uploaded to the Hugging Face hub as it is:

    model.safetensors    the weights; its metadata hold the configuration, and a checksum of both
    config.json          the configuration again, for people and other programs (config.py says what it contains)
    README.md            the model card (card.py)

Two files cannot be replaced at once. So the model is in the first one, whole, and renaming a new one into its place is
the moment at which a folder changes from the old model to the new one: a full disk or a killed process leaves either.
Folders of version 0.1.0 have no configuration in model.safetensors; config.json is read instead.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import InputError, check_number, optional_import
from . import card
from .config import build_module, to_data

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
CONFIG_KEY, DIGEST_KEY = "ncode.config", "ncode.sha256"  # of the metadata

MIN_MEMORY, MEMORY_PER_BYTE, MEMORY_PER_TENSOR = 2**30, 8, 2**20  # the default of max_memory
CONFIG_SHARE = 64  # the text of a configuration may have 1/64 of max_memory, since its objects take more than the text


def save_pretrained(
    module: nn.Module, folder: str | Path, notes: Mapping[str, str] | None = None, name: str | None = None
) -> None:
    """Write a module into a folder: config.json says what to build, model.safetensors holds the weights.

    Needs the package safetensors. Classes and functions of your own are named by their import path, or as given to
    `ncode.register`. If writing fails or is interrupted, a module that the folder held before stays whole.

    Args:
        module: A block, a model of `ncode.models`, or another module, such as an `nn.Sequential` of a block and layers.
        folder: The folder, made if it does not exist.
        notes: Lines of the model card, README.md, by title: {"Score": "97 % of the test images", "Data": "MNIST"}. A
            README.md that you wrote yourself is left as it is.
        name: What the model card gives to `from_pretrained`, if the folder will be elsewhere when it is read:
            "user/name" of the hub, or a path. Default: the folder's own name.

    >>> import tempfile, ncode
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(ncode.NCODE(ncode.dynamics.MLP(2)), folder)
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['README.md', 'config.json', 'model.safetensors']
    """
    safetensors = optional_import("safetensors.torch", "saving to a folder", "hub")
    folder = _as_path(folder)
    data = to_data(module)
    _check_same(module, build_module(data, None))
    _check_unshared(module)
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    header, values = _split(safetensors.save(weights))
    header["__metadata__"] = {"format": "pt", CONFIG_KEY: json.dumps(data)}
    header["__metadata__"][DIGEST_KEY] = _digest(header, values)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give the name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=2) + "\n"
    files = {folder / WEIGHTS: _join(header, values), folder / CONFIG: text.encode()}
    if card.may_replace(folder / CARD):
        files[folder / CARD] = card.model_card(module, data, name or folder.resolve().name, notes).encode()
    _replace_files(files)


def from_pretrained(
    folder: str | Path,
    revision: str | None = None,
    allow_imports: Sequence[str] = (),
    max_memory: float | None = None,
) -> nn.Module:
    """Load a module from a folder, or from a repository of the Hugging Face hub; in evaluation mode.

    Args:
        folder: A folder written by `save_pretrained`, or the name of a repository, "user/name".
        revision: The revision of a repository.
        allow_imports: Packages that the file may import classes and functions from, such as ["mypackage"]. Importing a
            package runs its code: allow only what you trust.
        max_memory: The largest number of bytes that building the module may take; what asks for more is refused before
            it is allocated. Default: 8 times the size of model.safetensors, at least 1 GiB, and 1 MiB per tensor in it.
            The text of the configuration may have 1/64 of it.

    >>> import tempfile, ncode
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(ncode.NCODE(ncode.dynamics.MLP(2), t1=2.0), folder)
    ...     from_pretrained(folder).settings.t1
    2.0
    """
    safetensors = optional_import("safetensors.torch", "loading a folder", "hub")
    path = _find_folder(folder, revision)
    limit = math.inf if max_memory is None else check_number("max_memory", max_memory, low=0.0)
    content = _read(path / WEIGHTS, limit)
    try:
        weights: dict[str, Tensor] = safetensors.load(content)
    except Exception as error:  # safetensors has exceptions of its own
        raise InputError(f"{path / WEIGHTS} is damaged: {error}") from error
    if max_memory is None:
        limit = max(MIN_MEMORY, MEMORY_PER_BYTE * len(content)) + MEMORY_PER_TENSOR * len(weights)
    config = _read_config(path, *_split(content), limit)
    allowed = [allow_imports] if isinstance(allow_imports, str) else allow_imports
    try:
        module = build_module(config, allowed, limit)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    try:
        module.load_state_dict(weights, assign=True)
    except Exception as error:  # RuntimeError, or whatever a hook raises
        raise InputError(f"{path / WEIGHTS} does not fit its configuration: {error}") from error
    # torch ignores tensors of a place where a container of modules holds None.
    if len(module.state_dict()) < len(weights):
        raise InputError(f"{path / WEIGHTS} does not fit its configuration: some of its tensors have no place in it")
    return module.eval()


def _check_same(module: nn.Module, again: nn.Module) -> None:
    """Check that the module built again has the tensors of the original."""
    old, new = ({name: tuple(v.shape) for name, v in m.state_dict().items()} for m in (module, again))
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            raise InputError(
                f"this {type(module).__name__} was changed after it was built, and cannot be built again from its"
                f" arguments: {name} is {old.get(name, 'missing')}, and would be {new.get(name, 'missing')}"
            )


def _check_unshared(module: nn.Module) -> None:
    seen: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = seen.setdefault(id(parameter), name)
        if first != name:
            raise InputError(f"{first} and {name} are one parameter, which a folder cannot express: use torch.save")


def _replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write all files under other names, and only then rename them, in this order."""
    token = secrets.token_hex(4)  # another process may save into the same folder
    temporary = {file: file.with_name(f".{file.name}.{token}.tmp") for file in contents}
    try:
        for file, content in contents.items():
            with open(temporary[file], "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())  # or the new name could reach the disk before the content
        for file in contents:
            os.replace(temporary[file], file)
            _sync_folder(file.parent)
    finally:
        for file in temporary.values():
            with suppress(OSError):
                file.unlink()


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, so that renamed files appear there in order."""
    if os.name == "posix":  # Windows cannot open a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a file in the format safetensors, which describes the tensors, and their values."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def _join(header: Mapping[str, Any], values: bytes) -> bytes:
    """The content of a file in the format safetensors. The package itself writes metadata in a random order."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + values


def _digest(header: Mapping[str, Any], values: bytes) -> str:
    """The checksum of the configuration and of the tensors: their names, types, shapes and values."""
    config = header["__metadata__"].get(CONFIG_KEY)
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    digest = hashlib.sha256(json.dumps([config, tensors], sort_keys=True).encode())
    digest.update(values)
    return digest.hexdigest()


def _read_config(path: Path, header: Mapping[str, Any], values: bytes, limit: float) -> Any:
    """The configuration of the module whose model.safetensors has this header and these values."""
    metadata = header.get("__metadata__") or {}  # null is valid too
    if CONFIG_KEY not in metadata and DIGEST_KEY not in metadata:
        return _parse(path / CONFIG, _read(path / CONFIG, limit), limit)
    text = metadata.get(CONFIG_KEY)
    if text is None or metadata.get(DIGEST_KEY) != _digest(header, values):
        raise InputError(f"{path / WEIGHTS} is damaged: it does not have the checksum with which it was saved")
    config = _parse(path / WEIGHTS, text, limit)
    with suppress(InputError, RecursionError):
        if json.dumps(_parse(path / CONFIG, _read(path / CONFIG, limit), limit)) == text:
            return config
    warnings.warn(
        f"{path / CONFIG} is ignored: it is not what {WEIGHTS} was saved with. Either saving was interrupted, or it was"
        " edited; to change a module, load it, change it and save it again",
        stacklevel=4,
    )
    return config


def _read(file: Path, limit: float) -> bytes:
    if not file.is_file():
        raise InputError(f"{file.parent} has no {file.name}: it does not hold a module saved by save_pretrained")
    try:
        size = file.stat().st_size
        if size > limit:
            raise InputError(f"{file} has {size:,} bytes, more than max_memory, {limit:,.0f}")
        return file.read_bytes()
    except (OSError, MemoryError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def _parse(file: Path, text: bytes | str, limit: float) -> Any:
    """The configuration in a file, from its text."""
    if len(text) > limit / CONFIG_SHARE:
        raise InputError(
            f"the configuration in {file} has {len(text):,} bytes, more than 1/{CONFIG_SHARE} of max_memory,"
            f" {limit:,.0f}"
        )
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError(f"{file} is damaged: its configuration is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{file} is damaged: {error}") from error


def _find_folder(folder: str | Path, revision: str | None) -> Path:
    """A folder of this machine, or a copy of a repository of the hub."""
    path = _as_path(folder)
    return path if path.is_dir() else _download(str(folder), revision)


def _as_path(folder: str | Path) -> Path:
    """The path of a name that the system can look up."""
    try:
        path = Path(folder)
        with suppress(FileNotFoundError):
            path.stat()
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{folder!r} is not the name of a folder: {error}") from error
    return path


def _download(name: str, revision: str | None) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/")):
        raise InputError(f"there is no folder {name}")
    hub = optional_import("huggingface_hub", f"there is no folder {name}; loading it from the hub", "hub")
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:  # of the connection, of the hub, or of the disk
        raise InputError(
            f"there is no folder {name}, and loading it from the Hugging Face hub failed: {error}"
        ) from error
