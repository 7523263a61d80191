"""Pictures: what is drawn, and what is refused."""

import math
import sys

import pytest
import torch

import ncode

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    plt.close("all")


def turn(t, x, theta):
    return torch.stack([x[:, 1], -x[:, 0]], 1)


def lines(ax):
    return [line for line in ax.get_lines() if len(line.get_xdata()) > 1]


def arrows(ax):
    (quiver,) = ax.collections
    return torch.tensor(quiver.U), torch.tensor(quiver.V), torch.tensor(quiver.XY)


def crossing():
    """Proposition 1: x(t) = x(0) cos(t), by a control that is a velocity."""
    f = ncode.dynamics.Function(lambda t, x, theta: theta["v"], {"v": (1,)})
    return ncode.NCODE(f, ncode.ClosedLoop(lambda t, x, theta: {"v": -x}, initial="zero"), t1=math.pi, rtol=1e-6)


@pytest.mark.parametrize("kept", [{"dense": True}, {"save_at": torch.linspace(0, 1, 9)}])
def test_two_elements_are_drawn_against_each_other_and_one_over_time(kept):
    sol = ncode.solve(turn, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), 0.0, 1.0, rtol=1e-6, **kept)
    plane, time = ncode.plot.trajectories(sol), ncode.plot.trajectories(sol, dims=1)
    first, second = lines(plane)
    assert first.get_xdata()[-1] == pytest.approx(math.cos(1.0), abs=1e-4)
    assert second.get_ydata()[-1] == pytest.approx(2 * math.cos(1.0), abs=1e-4)
    assert (plane.get_xlabel(), time.get_xlabel(), time.get_ylabel()) == ("$x_{0}$", "$t$", "$x_{1}$")
    assert lines(time)[0].get_xdata()[-1] == pytest.approx(1.0)


def test_labels_give_colours_and_a_legend():
    sol = ncode.solve(turn, torch.randn(3, 2), 0.0, 1.0, dense=True)
    ax = ncode.plot.trajectories(sol, labels=["in", "out", "in"])
    a, b, c = (line.get_color() for line in lines(ax))
    assert a == c != b
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["in", "out"]


def test_a_sample_that_failed_ends_where_it_failed():
    sol = ncode.solve(lambda t, x, theta: x * x, torch.tensor([[0.1], [2.0]]), 0.0, 1.0, dense=True, throw=False)
    whole, part = lines(ncode.plot.trajectories(sol))
    assert whole.get_xdata()[-1] == 1.0
    assert 0.4 < part.get_xdata()[-1] < 0.51


@pytest.mark.parametrize("horizontal", [1.0, 20.0])
def test_the_arrows_of_a_field_point_along_it(horizontal):
    ax = plt.subplots()[1]
    ax.plot([-horizontal, horizontal], [-1.0, 1.0])
    u, v, at = arrows(ncode.plot.field(turn, torch.zeros(2), ax, points=5))
    velocity = turn(None, at, None)
    moving = velocity.norm(dim=1) > 0
    cross = u * velocity[:, 1] - v * velocity[:, 0]
    assert moving.sum() == 24
    assert cross.abs().max() < 1e-6
    assert ((u * velocity[:, 0] + v * velocity[:, 1])[moving] > 0).all()


def test_the_field_of_a_closed_loop_is_the_one_that_its_sample_sees_at_that_time():
    u, v, at = arrows(ncode.plot.field(crossing(), torch.tensor([2.0]), points=5))
    slope = torch.where(u == 0, 0, v / u)
    torch.testing.assert_close(slope, -2.0 * at[:, 0].sin(), atol=1e-3, rtol=1e-3)


def test_each_sample_of_an_open_loop_sees_a_field_of_its_own():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(torch.nn.Linear(2, 4), scale=2.0))
    (u, v, _), (u2, v2, _) = (arrows(ncode.plot.field(block, torch.randn(2))) for _ in range(2))
    assert not torch.allclose(torch.stack([u, v]), torch.stack([u2, v2]))


def test_a_function_is_drawn_with_the_control_that_is_given():
    u, v, _ = arrows(ncode.plot.field(lambda t, x, theta: theta["v"], torch.zeros(2), theta={"v": torch.ones(1, 2)}))
    torch.testing.assert_close(u, v)


SOLVED = ncode.solve(turn, torch.ones(2, 2), 0.0, 1.0)
WIDE = ncode.solve(lambda t, x, theta: -x, torch.ones(2, 3), 0.0, 1.0, dense=True)
LIFTED = ncode.NCODE(ncode.dynamics.Augmented(ncode.dynamics.MLP(3), zeros=1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ncode.plot.trajectories(torch.ones(2, 3)), r"takes a Solution.*save_at=ts"),
        (lambda: ncode.plot.trajectories(SOLVED), r"save_at=ts.*dense=True"),
        (lambda: ncode.plot.trajectories(WIDE), r"3 elements.*dims=\(0, 1\)"),
        (lambda: ncode.plot.trajectories(WIDE, dims=3), "names element 3"),
        (lambda: ncode.plot.trajectories(WIDE, dims=(0, 1, 2)), "one or two"),
        (lambda: ncode.plot.trajectories(WIDE, dims=0, labels=[1]), "one per sample, 2; given 1"),
        (lambda: ncode.plot.field(turn, torch.ones(3)), r"one or two elements.*\(3,\)"),
        (lambda: ncode.plot.field(lambda t, x: x, torch.ones(2)), "lambda t, x, theta"),
        (lambda: ncode.plot.field(turn, torch.ones(2), t=(0.0, 1.0)), "one time"),
        (lambda: ncode.plot.field(turn, torch.ones(2), limits=(1.0, 0.0)), "the lower first"),
        (lambda: ncode.plot.field(LIFTED, torch.ones(2)), "more elements than the sample"),
        (lambda: ncode.plot.field(crossing(), torch.ones(1), theta=torch.ones(1, 1)), "by its controller"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(call, message):
    with pytest.raises(ncode.InputError, match=message):
        call()


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ncode.InputError, match=r"torch-ncode\[plot\]"):
        ncode.plot.trajectories(WIDE, dims=0)
