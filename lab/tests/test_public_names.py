"""The public names of the lab's packages: each exists and is explained."""

import importlib
import inspect

import pytest


@pytest.mark.parametrize("package", ["data", "metrics", "training", "report", "experiments"])
def test_every_public_name_exists_and_has_a_docstring(package):
    module = importlib.import_module(f"ncode_lab.{package}")
    things = {name: getattr(module, name) for name in module.__all__}
    explained = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert explained
    # Python gives a dataclass without a docstring its signature as one.
    undocumented = [name for name, it in explained.items() if not it.__doc__ or it.__doc__.startswith(f"{name}(")]
    assert undocumented == []
