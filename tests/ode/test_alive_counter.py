"""On a GPU the loop learns the counts of an attempt while the next is queued: here by a stand-in that runs on a CPU."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ncode
from ncode.ode import forward as solver
from ncode.ode import integrate

from .systems import DOUBLE, close, double


class Slow(integrate.AliveCounter):
    """Counts travel, as from a GPU."""

    def __init__(self, device, batch):
        super().__init__(device, batch)
        self.asynchronous = True

    def send(self, counts):
        return lambda: integrate.Counts.read(counts.tolist())


@pytest.fixture
def slow(monkeypatch):
    """Let counts travel; a list of how many samples were alive before each attempt."""
    alive = []

    class Counted(integrate.Attempt):
        def __call__(self, inputs):
            alive.append(int(inputs.state.alive.sum()))
            found = super().__call__(inputs)
            return found._replace(counts=self.count(found.state, inputs.t1))

    monkeypatch.setattr(integrate, "AliveCounter", Slow)
    monkeypatch.setattr(solver, "Attempt", Counted)
    return alive


def turning(t, x, theta):
    return theta * torch.stack([x[:, 1], -x[:, 0]], 1)


def test_no_attempt_is_made_in_vain_though_counts_arrive_late(slow):
    x0 = double(1.0, 2.0)
    sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 3.0)
    assert len(slow) == int((sol.stats.steps + sol.stats.rejected).max())
    assert min(slow) > 0


def test_a_last_attempt_that_is_refused_is_made_again(slow):
    """A kick just before the end: the step that was to be the last is refused, and the loop goes on."""

    def kicked(t, x, theta):
        return torch.exp(-((t - 0.9) * 200).square())[:, None] * 50 - x

    x0 = double(1.0, -1.0)
    sol = ncode.solve(kicked, x0, 0.0, 1.0)
    assert int(sol.stats.rejected.min()) > 0
    assert {*sol.status} == {ncode.Status.OK}
    assert len(slow) == int((sol.stats.steps + sol.stats.rejected).max())


@settings(max_examples=15)
@example(rates=[28.0, 28.0], counted=False)
@given(rates=st.lists(st.floats(0.1, 40.0), min_size=1, max_size=20), counted=st.booleans())
def test_what_is_known_late_changes_no_result(rates, counted):
    theta = torch.tensor(rates, dtype=DOUBLE)[:, None]
    x0 = torch.linspace(0.5, 2.0, 2 * len(rates), dtype=DOUBLE).reshape(-1, 2)

    def run():
        sol = ncode.solve(turning, x0, 0.0, 2.0, theta=theta)
        return sol.x, sol.stats.steps, sol.stats.rejected, sol.stats.nfe, sol.codes

    expected = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrate, "AliveCounter", Slow)
        patch.setattr(
            solver, "Attempt", lambda *given, **more: replace(integrate.Attempt(*given, **more), counted=counted)
        )
        # Samples are put aside at other times, so that rounding may differ.
        close(run(), expected, rtol=1e-10, atol=1e-12)


def test_an_answer_is_waited_for_only_where_the_attempt_under_way_should_be_the_last():
    asked = []

    class Recorded(Slow):
        def send(self, counts):
            def arrived():
                asked.append(counts.tolist())
                return integrate.Counts.read(counts.tolist())

            return arrived

    counter = Recorded(torch.device("cpu"), 4)
    alive = torch.ones(4, dtype=torch.bool)

    def count(*numbers):
        before = len(asked)
        found = counter.update(alive, torch.tensor(numbers))
        return found.alive, len(asked) - before

    assert count(4, 4, 0) == (4, 0)
    assert count(4, 2, 0) == (4, 1)  # for the attempt before
    assert count(3, 0, 0) == (4, 1)
    assert count(2, 0, 0) == (2, 2)  # what was known last promised an end: all there is to know
    assert count(2, 1, 0) == (2, 1)
    assert count(1, 1, 0) == (2, 0)  # far from home again, so nobody waits
    assert count(1, 0, 0) == (1, 1)
    assert count(0, 0, 1) == (0, 2)
    assert counter.known.failed == 1
