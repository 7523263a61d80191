"""Draw the diagram of a module: figure 2 of the paper.

Writes the picture of lab/pages/paper-map.md:

python lab/scripts/draw_module.py lab/pages/assets/module.png
"""

from __future__ import annotations

import sys

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FORWARD, BACKWARD, FEEDBACK = "#B2182B", "#2166AC", "#B2182B"
Place = tuple[float, float]


def draw() -> Figure:
    """x(0) sets theta(0) by gamma, both are solved together, and gradients go the same way back."""
    figure = Figure(figsize=(8.6, 3.9), layout="constrained")
    panel = figure.subplots()
    panel.set(xlim=(0, 10.6), ylim=(0, 4.8), aspect="equal")
    panel.set_axis_off()
    _frame(panel)
    for place, text in (((0.9, 1.5), "$x(0)$"), ((9.7, 1.5), "$x(T)$"), ((9.7, 3.3), r"$\theta(T)$")):
        panel.text(*place, text, ha="center", va="center", fontsize=13)
    _box(panel, (2.5, 3.3), r"$\gamma$", 1.0)
    _box(panel, (6.2, 3.3), r"$d\theta/dt = g(t, x, \theta)$", 3.0)
    _box(panel, (6.2, 1.5), r"$dx/dt = f(t, x, \theta)$", 3.0)
    _arrow(panel, (1.3, 1.6), (4.6, 1.6), FORWARD)
    _arrow(panel, (1.0, 1.85), (1.9, 3.2), FORWARD, bend=-0.2)
    _arrow(panel, (3.1, 3.4), (4.6, 3.4), FORWARD)
    panel.text(3.8, 3.6, r"$\theta(0)$", ha="center", fontsize=12)
    _arrow(panel, (5.4, 2.85), (5.4, 1.95), FORWARD)
    _arrow(panel, (7.0, 1.95), (7.0, 2.85), FEEDBACK, style=":")
    _arrow(panel, (7.8, 1.6), (9.2, 1.6), FORWARD)
    _arrow(panel, (7.8, 3.4), (9.2, 3.4), FORWARD)
    for start, end in (((9.2, 1.4), (7.8, 1.4)), ((9.2, 3.2), (7.8, 3.2)), ((4.6, 1.4), (1.3, 1.4))):
        _arrow(panel, start, end, BACKWARD)
    _arrow(panel, (4.6, 3.2), (3.1, 3.2), BACKWARD)
    _legend(panel)
    return figure


def _frame(panel: Axes) -> None:
    shape = {"facecolor": "none", "edgecolor": "0.6", "linestyle": (0, (4, 3))}
    panel.add_patch(FancyBboxPatch((4.4, 0.85), 3.6, 3.2, boxstyle="round,pad=0.1", **shape))
    panel.text(6.2, 4.3, "solved together, from 0 to T", ha="center", color="0.35", fontsize=11)


def _box(panel: Axes, middle: Place, text: str, width: float) -> None:
    x, y = middle
    corner, shape = (x - width / 2, y - 0.35), "round,pad=0.08"
    panel.add_patch(FancyBboxPatch(corner, width, 0.7, boxstyle=shape, facecolor="#F4F4F4", edgecolor="0.3"))
    panel.text(x, y, text, ha="center", va="center", fontsize=13)


def _arrow(panel: Axes, start: Place, end: Place, color: str, style: str = "-", bend: float = 0.0) -> None:
    look = {"mutation_scale": 15, "linewidth": 1.7, "color": color, "shrinkA": 0, "shrinkB": 0}
    if style != "-":  # a dotted line with a whole head
        panel.plot(*zip(start, end, strict=True), color=color, linewidth=1.7, linestyle=style)
        start = 0.3 * start[0] + 0.7 * end[0], 0.3 * start[1] + 0.7 * end[1]
        look["linewidth"] = 0
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", connectionstyle=f"arc3,rad={bend}", **look)
    panel.add_patch(arrow)


def _legend(panel: Axes) -> None:
    lines = ((0.3, FORWARD, "-", "forward"), (3.0, FEEDBACK, ":", "feedback (closed loop)"))
    for left, color, style, text in (*lines, (7.2, BACKWARD, "-", "gradients")):
        _arrow(panel, (left, 0.25), (left + 0.75, 0.25), color, style)
        panel.text(left + 0.95, 0.25, text, va="center", fontsize=11)


if __name__ == "__main__":
    draw().savefig(sys.argv[1] if len(sys.argv) > 1 else "module.png", dpi=150)
