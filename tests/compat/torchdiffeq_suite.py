"""Run torchdiffeq's own test suite through the drop-in.

    python tests/compat/torchdiffeq_suite.py SNAPSHOT [test ...]

SNAPSHOT is a checkout of github.com/rtqichen/torchdiffeq. Its tests import a module `torchdiffeq` that holds the
functions of `ncode.compat.torchdiffeq`. Calls with a method that the drop-in refuses (docs/torchdiffeq.md lists them)
are counted, and answered by the snapshot itself, so that the rest of a test still runs. Exit status 1 if a test fails
that passes with torchdiffeq itself.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import types
import unittest
from collections import Counter
from pathlib import Path

from ncode import InputError
from ncode.compat import torchdiffeq as drop_in
from ncode.compat.torchdiffeq.methods import NOT_AVAILABLE

MODULES = ("api_tests", "event_tests", "gradient_tests", "norm_tests", "odeint_tests")


def load_snapshot(folder: Path) -> types.ModuleType:
    """torchdiffeq itself, under another name."""
    path = folder / "torchdiffeq" / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "torchdiffeq_snapshot", path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_shim(snapshot: types.ModuleType, refused: Counter[str], calls: Counter[str]) -> types.ModuleType:
    """A module `torchdiffeq` with the functions of the drop-in."""
    shim = types.ModuleType("torchdiffeq")

    def through(name):
        def call(func, *args, method=None, **kwargs):
            calls[name] += 1
            try:
                return getattr(drop_in, name)(func, *args, method=method, **kwargs)
            except InputError as error:
                if method not in NOT_AVAILABLE or "is not available" not in str(error):
                    raise
                refused[method] += 1
                return getattr(snapshot, name)(func, *args, method=method, **kwargs)

        return call

    for name in drop_in.__all__:
        setattr(shim, name, through(name))
    return shim


def names_of(result: unittest.TestResult) -> dict[str, str]:
    """The failed tests and subtests, with their tracebacks."""
    return {str(test): text for test, text in (*result.errors, *result.failures)}


def main(folder: Path, names: list[str]) -> int:
    refused, calls = Counter(), Counter()
    snapshot = load_snapshot(folder)
    shim = sys.modules["torchdiffeq"] = make_shim(snapshot, refused, calls)
    sys.path.insert(0, str(folder / "tests"))
    load = unittest.defaultTestLoader.loadTestsFromNames
    result = unittest.TextTestRunner(verbosity=2, warnings="ignore").run(load(names or list(MODULES)))
    print(f"calls: {dict(calls)}")
    print(f"refused, and answered by the snapshot: {dict(refused)}")
    failed = names_of(result)
    if failed:  # do they fail with torchdiffeq itself, on this machine?
        for name in drop_in.__all__:
            setattr(shim, name, getattr(snapshot, name))
        tests = sorted({test.id() for test, _ in (*result.errors, *result.failures) if hasattr(test, "id")})
        again = sorted({name.split(" ")[0] for name in tests})
        known = names_of(unittest.TextTestRunner(stream=io.StringIO(), warnings="ignore").run(load(again)))
        for name in failed:
            print("fails with torchdiffeq too:" if name in known else "FAILS:", name)
        failed = {name: text for name, text in failed.items() if name not in known}
    print(f"{result.testsRun} tests, {len(failed)} failures of the drop-in")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
