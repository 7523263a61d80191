"""The model card: README.md beside the weights, which says what a model is and how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._version import __version__
from ..errors import InputError, format_value
from .config import CLASS
from .settings import Settings

FRONT = "---\nlibrary_name: torch-ncode\ntags:\n- neural-ode\n- pytorch\n---"  # for the Hugging Face hub
MARK = "<!-- Written by save_pretrained, which leaves a README.md without this line as it is. -->"


def may_replace(file: Path) -> bool:
    """Whether there is no README.md, or one that `save_pretrained` wrote."""
    return not file.exists() or MARK in file.read_text(encoding="utf-8", errors="replace")


def model_card(module: nn.Module, data: Any, name: str, notes: Mapping[str, str] | None = None) -> str:
    """Return the text of a model card.

    Args:
        module: The model. Its method `card_lines`, if it has one, returns further lines by title.
        data: Its configuration, as `to_data` returns it.
        name: Its folder or repository, as `from_pretrained` takes it. The last part is the title.
        notes: Further lines, by title.

    >>> import ncode
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2, controlled=()), method="rk4", dt=0.5)
    >>> print(model_card(block, {"class": "ncode.NCODE"}, "springs", {"Data": "two springs"}).partition("-->")[2])
    <BLANKLINE>
    # springs
    ...
    model = ncode.from_pretrained("springs")
    ...
    - **NCODE**: dx/dt = MLP(t, x); t from 0.0 to 1.0, method='rk4', dt=0.5
    - **Parameters**: ...
    - **Versions**: torch-ncode ...
    - **Data**: two springs
    <BLANKLINE>
    """
    imports = sorted(set(_packages(data)))
    arguments = json.dumps(_check_name(name)) + (f", allow_imports={json.dumps(imports)}" if imports else "")
    code = ["```python", "import ncode", "", f"model = ncode.from_pretrained({arguments})", "```"]
    own = getattr(module, "card_lines", dict)()
    lines = {**_blocks(module), **own, **_size_and_versions(module), **_check_notes(notes)}
    listed = [f"- **{title}**: {' '.join(text.split())}" for title, text in lines.items()]
    return "\n".join([FRONT, MARK, "", f"# {Path(name).name}", "", *code, "", *listed]) + "\n"


def _packages(data: Any) -> Iterator[str]:
    """The packages of the import paths in a configuration."""
    if isinstance(data, dict):
        name = data.get(CLASS)
        if isinstance(name, str) and ":" in name:
            yield name.partition(":")[0].partition(".")[0]
    for child in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _packages(child)


def _blocks(module: nn.Module) -> dict[str, str]:
    """How each block is solved."""
    blocks = {
        path: part for path, part in module.named_modules() if isinstance(getattr(part, "settings", None), Settings)
    }
    return {
        type(block).__name__ + (f" `{path}`" if path else ""): block.extra_repr().replace("\n", "; ")
        for path, block in blocks.items()
    }


def _size_and_versions(module: nn.Module) -> dict[str, str]:
    parameters = list(module.parameters())
    dtypes = " and ".join(sorted({str(it.dtype).removeprefix("torch.") for it in parameters}))
    count = f"{sum(it.numel() for it in parameters):,}" + (f", {dtypes}" if dtypes else "")
    torch_version = torch.__version__.partition("+")[0]
    return {"Parameters": count, "Versions": f"torch-ncode {__version__}, torch {torch_version}"}


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise InputError(f"name must be a text, such as 'user/name'; given {format_value(name)}")
    return name


def _check_notes(notes: Any) -> Mapping[str, str]:
    notes = {} if notes is None else notes
    if not isinstance(notes, Mapping) or not all(isinstance(it, str) for pair in notes.items() for it in pair):
        raise InputError(f"notes must be a dict of texts by title; given {format_value(notes)}")
    return notes
