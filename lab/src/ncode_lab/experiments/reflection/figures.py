"""Figure 4 of the paper: trajectories over the field that they meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ...figures.style import new_panels
from ...wording import format_alike, model_name

START = ScalarMappable(Normalize(-1, 1), colormaps["coolwarm"])


class Flow(NamedTuple):
    """Trajectories of one model, and the field of the last one."""

    ts: Tensor  # times (T,)
    xs: Tensor  # trajectories (samples, T)
    grid: Tensor  # points (G,) at which the field is known
    slopes: Tensor  # the field that the last sample meets, (G, T)
    error: float  # mean squared error at the end


def draw_reflection(flows: Mapping[str, Flow]) -> Figure:
    """One panel per model: trajectories coloured by x(0), over the field of the sample that starts at 1."""
    figure, (panels,) = new_panels(1, len(flows), width=3.3, height=3.2, sharey=True)
    errors = format_alike([flow.error for flow in flows.values()], 4)
    for panel, (name, flow), error in zip(panels, flows.items(), errors, strict=True):
        _draw(panel, flow)
        panel.set_title(f"{model_name(name)}\nmean squared error {error}", fontsize="medium")
    panels[0].set_ylabel("x(t)")
    figure.colorbar(START, ax=list(panels), label="x(0)", ticks=[-1, 0, 1])
    return figure


def _draw(panel: Axes, flow: Flow) -> None:
    style = {"color": "0.82", "density": 0.7, "linewidth": 0.7, "arrowsize": 0.7}
    ts = flow.ts.numpy()
    panel.streamplot(ts, flow.grid.numpy(), flow.slopes.numpy() * 0 + 1, flow.slopes.numpy(), **style)
    for path in flow.xs.numpy():
        colour = START.to_rgba(path[0])
        panel.plot(ts, path, color=colour, linewidth=1.6)
        panel.plot(1, -path[0], "o", color=colour, markersize=4, clip_on=False)
    panel.set(xlabel="t", xlim=(0, 1), ylim=(-1.25, 1.25))
    panel.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])  # short: the last one stands next to the first of the next panel
