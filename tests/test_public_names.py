"""The public names of the library: how many there are, and that each is shown in an example."""

import importlib
import inspect
import subprocess
import sys

import pytest

PACKAGES = [
    "ncode",
    "ncode.control",
    "ncode.dynamics",
    "ncode.paths",
    "ncode.costs",
    "ncode.models",
    "ncode.flows",
    "ncode.plot",
    "ncode.distributed",
    "ncode.block",
    "ncode.ode",
    "ncode.closed_forms",
    "ncode.compat.torchcde",
    "ncode.compat.torchdiffeq",
]


def public(package):
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


def documented(thing):
    """The docstrings of a thing: a class may show its use in one of its methods."""
    yield inspect.getdoc(thing) or ""
    for name, part in vars(thing).items() if inspect.isclass(thing) else ():
        if not name.startswith("_") and (part.__doc__ or ""):
            yield part.__doc__


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package):
    things = public(package)
    shown = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [name for name, thing in shown.items() if not any(">>>" in text for text in documented(thing))] == []


def test_there_are_few_public_names():
    things = [thing for package in PACKAGES for thing in public(package).values() if not inspect.ismodule(thing)]
    assert len({id(thing) for thing in things}) <= 110


def test_models_and_compat_are_imported_on_first_use():
    code = """
import sys, ncode
print([name for name in ("ncode.models", "ncode.compat") if name in sys.modules])
print(ncode.models.AutoNCODE.__name__, ncode.compat.torchdiffeq.odeint.__name__, "models" in dir(ncode))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "AutoNCODE odeint True"]
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = importlib.import_module("ncode").no_such_name
