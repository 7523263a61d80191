"""Imports point down only, and the lab uses the library as any other client would: by its public names."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from importlinter import cli as import_linter

ROOT = Path(__file__).parents[2]
FOLDERS = ("lab/src", "lab/examples", "lab/scripts", "benchmarks/lab")
FILES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
PUBLIC = {
    "ncode",
    "ncode.block",
    "ncode.closed_forms",
    "ncode.compat",
    "ncode.compat.torchdiffeq",
    "ncode.control",
    "ncode.costs",
    "ncode.dynamics",
    "ncode.errors",
    "ncode.models",
}


def private_names(source: str) -> Iterator[str]:
    """Names of the library that a file uses and that are not public."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            used = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            used = [ast.unparse(node)]
        else:
            continue
        yield from (name for name in used if name.partition(".")[0] == "ncode" and not is_public(name))


def is_public(name: str) -> bool:
    """Whether a dotted name leads through public packages, and through their `__all__` only."""
    path, *rest = name.split(".")
    for part in rest:
        package = importlib.import_module(path)
        path = f"{path}.{part}"
        if path in PUBLIC:
            continue
        # What follows a class or function is its own business.
        return part in getattr(package, "__all__", ()) and not isinstance(getattr(package, part), ModuleType)
    return True


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_lab_uses_public_names_of_the_library_only(file):
    assert sorted(set(private_names(file.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import ncode\nncode.control.OpenLoop\nncode.NCODE.family().names", []),
        ("from ncode.models import AutoNCODE\nfrom ncode import costs, solve", []),
        ("from ncode.compat.torchdiffeq import odeint", []),
        ("from .ncode import anything", []),
        ("import ncode.ode", ["ncode.ode"]),
        ("import ncode\nncode.ode.solve", ["ncode.ode", "ncode.ode.solve"]),
        ("from ncode.models.auto_ncode import AutoNCODE", ["ncode.models.auto_ncode.AutoNCODE"]),
        ("from ncode.control import base", ["ncode.control.base"]),
        ("from ncode.dynamics._convolution import sample_conv2d", ["ncode.dynamics._convolution.sample_conv2d"]),
    ],
)
def test_private_names_are_found(source, private):
    assert sorted(private_names(source)) == private


def test_imports_point_down_only(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    status = import_linter.lint_imports(no_cache=True, no_logo=True)
    assert status == import_linter.EXIT_STATUS_SUCCESS, capsys.readouterr().out
