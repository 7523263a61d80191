"""What torch computes around a kernel: tensors that samples share before it, and gradients of captures after it.

Both are parts of the traced graph, printed as Python functions once, since they run with every solve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, fx, nn


class Part(NamedTuple):
    """A part of a graph: a function of given values, then of attributes of the graph's module by these names."""

    function: Callable[..., Sequence[Tensor]]
    names: tuple[str, ...]

    def __call__(self, given: Sequence[Tensor], attributes: Mapping[str, Tensor], module: nn.Module) -> list[Tensor]:
        """The values that were asked for; `attributes` take the place of the module's. Call it without autograd."""
        more = [attributes[name] if name in attributes else getattr(module, name) for name in self.names]
        return list(self.function(*given, *more))


def make_part(
    wanted: Sequence[fx.Node], given: Sequence[fx.Node], constants: Mapping[fx.Node, Tensor], graph: fx.Graph
) -> Part:
    """The part of a graph that leads from given nodes, constants and attributes to wanted nodes."""
    needed, stack = set[fx.Node](), list(wanted)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += () if node in given or node in constants else node.all_input_nodes
    order = [node for node in graph.nodes if node in needed and node not in given]
    root, part = nn.Module(), fx.Graph()
    copies = {node: part.placeholder(f"given_{i}") for i, node in enumerate(given)}
    attributes = [node for node in order if node.op == "get_attr" and node not in constants]
    copies |= {node: part.placeholder(f"attribute_{i}") for i, node in enumerate(attributes)}
    for node in order:
        if node in constants:
            name = f"constant_{len(copies)}"
            root.register_buffer(name, constants[node], persistent=False)
            copies[node] = part.get_attr(name)
        elif node not in copies:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in wanted))
    return Part(fx.GraphModule(root, part).forward, tuple(str(node.target) for node in attributes))
