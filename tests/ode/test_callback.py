"""`callback(t, x, accepted)` after each attempt."""

import pytest
import torch

import ncode
from ncode import InputError

from .systems import DOUBLE, GRADIENTS, close, decay, double

every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


class Seen(list):
    """A callback that keeps all that it is called with."""

    def __call__(self, t, x, accepted):
        self.append((t, x, accepted))

    @property
    def attempts(self):
        return len(self)


def rates(t, x, theta):
    return theta * x.cos()


@every_gradient
@pytest.mark.parametrize("span", [1.0, -1.0])
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.125}, {"step": "batch"}])
def test_it_sees_every_attempt_of_the_forward_pass_and_none_of_backward(gradient, span, options):
    seen, theta = Seen(), double(1.0, 9.0, 12.0).requires_grad_()
    x0 = torch.zeros(3, 1, dtype=DOUBLE)
    sol = ncode.solve(rates, x0, 0.5, 0.5 + span, theta=theta, gradient=gradient, callback=seen, **options)
    assert len(seen) == int((sol.stats.steps + sol.stats.rejected).max())
    assert torch.stack([accepted for *_, accepted in seen]).sum(0).tolist() == sol.stats.steps.tolist()
    close(seen[-1][0], sol.t)
    assert torch.equal(seen[-1][1], sol.x)
    sol.x.sum().backward()
    assert len(seen) == int((sol.stats.steps + sol.stats.rejected).max())


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "traced"])
def test_it_sees_the_whole_batch_though_samples_are_dropped(compile, traced):
    theta = torch.cat([torch.full((15,), 0.01, dtype=DOUBLE), torch.full((2,), 40.0, dtype=DOUBLE)])[:, None]
    seen, x0 = Seen(), torch.linspace(0.0, 1.0, 17, dtype=DOUBLE)[:, None]
    sol = ncode.solve(rates, x0, 0.0, 1.0, theta=theta, callback=seen, compile=compile)
    assert all(t.shape == (17,) and x.shape == (17, 1) and accepted.dtype == torch.bool for t, x, accepted in seen)
    assert torch.stack([accepted for *_, accepted in seen]).sum(0).tolist() == sol.stats.steps.tolist()
    before = torch.zeros(17, dtype=DOUBLE), x0
    for t, x, accepted in seen:
        assert torch.equal(t > before[0], accepted), "times move where a step was accepted"
        assert torch.equal(x[~accepted], before[1][~accepted])
        before = t, x
    assert torch.equal(before[1], sol.x)


def test_what_it_is_given_belongs_to_it():
    def spoil(t, x, accepted):
        t.fill_(7.0)
        x.fill_(7.0)
        accepted.fill_(False)

    x0 = double(1.0, 2.0)
    close(ncode.solve(decay, x0, 0.0, 1.0, callback=spoil).x, ncode.solve(decay, x0, 0.0, 1.0).x)


def test_an_error_that_it_raises_ends_the_solve():
    def stop(t, x, accepted):
        if (t > 0.5).any():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ncode.solve(decay, double(1.0), 0.0, 1.0, callback=stop, max_dt=0.1)


def test_a_callback_that_cannot_be_called_is_refused():
    for bad in (3, lambda t, x: None):
        with pytest.raises(InputError, match=r"callback must be a function of \(t, x, accepted\)"):
            ncode.solve(decay, double(1.0), 0.0, 1.0, callback=bad)


def test_a_block_with_a_closed_form_calls_it_by_solving():
    seen, block = Seen(), ncode.NCODE(ncode.dynamics.Linear(2))
    x = torch.ones(3, 2)
    sol = block.solve(x, callback=seen)
    assert len(seen) == sol.stats.steps.max() + sol.stats.rejected.max() > 0
    close(sol.x, block(x), rtol=1e-3, atol=1e-4)


def test_it_goes_on_after_an_event():
    seen, fall = Seen(), ncode.Event(lambda t, x, theta: x[:, 0] - 0.5, terminal=False)
    sol = ncode.solve(decay, double(1.0), 0.0, 1.0, events=[fall], callback=seen)
    times = [t.item() for t, *_ in seen]
    assert times == sorted(times)
    assert times[-1] == 1.0
    assert sum(accepted.item() for *_, accepted in seen) == sol.stats.steps.item()
