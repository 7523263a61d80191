"""The reference: one page per public name, made from the names that the packages export, and a page that maps them."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

PACKAGES = ("ncode", "ncode.ode", "ncode.block", "ncode.errors")  # and all packages that these export
GROUPS = {  # the package that defines a name, and the heading under which the map shows it
    "ode": "Solve",
    "errors": "Errors and checks",
    "block": "Blocks",
    "dynamics": "Dynamics",
    "control": "Controllers",
    "paths": "Input paths",
    "costs": "Running costs",
    "flows": "Normalising flows",
    "models": "Models",
    "closed_forms": "Closed forms",
    "plot": "Pictures",
    "distributed": "Several processes",
    "compat.torchdiffeq": "In place of torchdiffeq",
    "compat.torchcde": "In place of torchcde",
}
# What a class inherits from these is described where they are.
FOREIGN = (
    "Module, tuple, dict, list, int, str, ValueError, RuntimeError, Exception, IntEnum, Enum, ABC, Sampler, object,"
    " Dynamics, Controller, Configurable, Regulariser"
)


class Name(NamedTuple):
    """A public name: `ncode.solve`, what it stands for, and the package that defines it."""

    name: str
    thing: Any
    group: str


def public_names() -> list[Name]:
    """Every public thing once, under its shortest name."""
    found: dict[int, Name] = {}
    for name, thing in sorted(_exported(), key=lambda pair: pair[0].count(".")):
        home = getattr(thing, "__module__", None) or name
        known = [group for group in GROUPS if f"{home}.".startswith(f"ncode.{group}.")]
        group = known[0] if known else name.split(".")[1]
        found.setdefault(id(thing), Name(name, thing, group))
    return sorted(found.values(), key=_importance)


def _importance(it: Name) -> tuple[int, bool, str]:
    """Names of the top level first, functions before classes."""
    return it.name.count("."), inspect.isclass(it.thing), it.name.lower()


def pages() -> dict[str, str]:
    """The text of each page by its path: one per name, and index.rst."""
    names = public_names()
    return {"index.rst": _map(names), **{f"{it.name}.rst": _page(it) for it in names}}


def _exported() -> Iterator[tuple[str, Any]]:
    waiting, seen = list(PACKAGES), set()
    while waiting:
        package = waiting.pop(0)
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if not inspect.ismodule(thing):
                yield f"{package}.{name}", thing
            elif thing.__name__ not in seen:
                seen.add(thing.__name__)
                waiting.append(thing.__name__)


def _map(names: list[Name]) -> str:
    parts = [_heading("Reference", "="), "Every public name, by what it is for. Each has a page with an example.\n"]
    groups = dict.fromkeys([*GROUPS, *(it.group for it in names)])
    for group in groups:
        some = [it for it in names if it.group == group and it.name != "ncode.__version__"]
        if not some:
            continue
        parts.append(_heading(GROUPS.get(group, group), "-"))
        rows = "".join(f"   * - :doc:`{it.name} <{it.name}>`\n     - {_summary(it.thing).rstrip(':')}\n" for it in some)
        parts.append(f".. list-table::\n   :class: api-map\n   :widths: 35 65\n\n{rows}")
        listed = "\n".join(f"   {it.name.rpartition('.')[2]} <{it.name}>" for it in some)
        parts.append(f".. toctree::\n   :hidden:\n   :caption: {GROUPS.get(group, group)}\n\n{listed}\n")
    return "\n".join(parts)


def _page(name: Name) -> str:
    short = name.name.rpartition(".")[2]
    if name.name == "ncode.__version__":
        return f":orphan:\n\n{_heading('Version', '=')}\nThe version of the library, as ``ncode.__version__``.\n"
    if _is_data(name.thing):
        listed = name.thing if isinstance(name.thing, (dict, tuple)) else [name.thing]
        values = ", ".join(f"``{value!r}``" for value in listed)
        return f"{_heading(short, '=')}\n.. py:data:: {name.name}\n\n   {_summary(name.thing)} {values}\n"
    kind, options = "function", ""
    if inspect.isclass(name.thing):
        kind, options = "class", f"   :members:\n   :inherited-members: {FOREIGN}\n   :member-order: bysource\n"
    return f"{_heading(short, '=')}\n.. auto{kind}:: {name.name}\n{options}"


def _summary(thing: Any) -> str:
    """The first sentence of a docstring, as reStructuredText."""
    from docstrings import to_rst  # which needs the names

    if _is_data(thing):
        return f"A {type(thing).__name__} of names:" if isinstance(thing, (dict, tuple)) else "A type:"
    text = inspect.getdoc(thing) or ""
    return to_rst([text.partition("\n\n")[0].replace("\n", " ")])[0]


def _is_data(thing: Any) -> bool:
    return not (inspect.isclass(thing) or inspect.isroutine(thing))


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"
