"""What a room exports is shown at work."""

import importlib
import inspect

import pytest

ROOMS = [
    "ncode",
    "control",
    "costs",
    "dynamics",
    "solve",
    "block",
    "models",
    "compat.torchdiffeq",
    "data",
    "metrics",
    "training",
    "report",
    "experiments",
]


def documented(thing):
    """The docstrings of a thing: a class may show its use in one of its methods."""
    yield inspect.getdoc(thing) or ""
    for name, part in vars(thing).items() if inspect.isclass(thing) else ():
        if not name.startswith("_") and (part.__doc__ or ""):
            yield part.__doc__


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_an_example(room):
    module = importlib.import_module("ncode" if room == "ncode" else f"ncode.{room}")
    things = {name: getattr(module, name) for name in module.__all__}
    shown = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [name for name, thing in shown.items() if not any(">>>" in text for text in documented(thing))] == []
