import pytest
import torch

import ncode

DOUBLE = torch.float64


def plastic(n=6, **more):
    return ncode.NCODE(
        ncode.dynamics.Recurrent(n), ncode.Hebbian(scale=0.3), **{"t1": 0.5, "method": "rk4", "dt": 0.25, **more}
    ).double()


def test_an_episode_is_one_solve_after_another_with_the_control_carried_on():
    block, stimuli = plastic(), torch.randn(3, 4, 6, dtype=DOUBLE)
    shown = block.episode(stimuli)
    theta = None
    for i in range(4):
        sol = block.solve(stimuli[:, i], theta=theta)
        torch.testing.assert_close(shown.xs[:, i], sol.x)
        theta = sol.theta
    torch.testing.assert_close(shown.x, shown.xs[:, -1])
    torch.testing.assert_close(shown.theta(), theta)


@pytest.mark.parametrize("given", [False, True])
def test_the_fast_path_is_the_generic_one_values_and_gradients(given):
    block, stimuli = plastic(), torch.randn(2, 3, 6, dtype=DOUBLE, requires_grad=True)
    start = torch.randn(2, 6, 6, dtype=DOUBLE, requires_grad=True)
    results = []
    for exact in (True, False):
        shown = block.episode(stimuli, theta=start if given else None, exact=exact)
        loss = shown.xs.square().sum() + shown.theta()["weight"].sin().sum()
        wanted = [stimuli, block.controller.mu, start if given else block.controller.theta]
        results.append((shown.xs, shown.theta()["weight"], *torch.autograd.grad(loss, wanted)))
    for fast, generic in zip(*results, strict=True):
        torch.testing.assert_close(fast, generic, rtol=1e-9, atol=1e-11)


def test_steps_that_follow_the_error_take_the_generic_path():
    block, stimuli = plastic(), torch.randn(2, 3, 6, dtype=DOUBLE)
    fine = block.episode(stimuli, dt=0.01)
    free = block.episode(stimuli, dt=None, method="dopri5", rtol=1e-8)
    torch.testing.assert_close(free.x, fine.x, rtol=1e-5, atol=1e-6)


def test_any_control_that_is_driven_can_be_carried():
    f = ncode.dynamics.Function(lambda t, x, theta: theta["v"], {"v": (1,)})
    block = ncode.NCODE(f, ncode.ClosedLoop(lambda t, x, theta: {"v": x}, initial="zero"))
    shown = block.episode(torch.ones(2, 3, 1))
    assert (shown.xs[:, 1:] > shown.xs[:, :-1]).all()


def test_a_control_that_stands_still_has_nothing_to_carry():
    with pytest.raises(ncode.InputError, match="use ClosedLoop or Plastic"):
        ncode.NCODE(ncode.dynamics.Linear(2)).episode(torch.ones(2, 3, 2))


def test_stimuli_must_be_presentations():
    with pytest.raises(ncode.InputError, match=r"\(batch, P, \.\.\.\)"):
        plastic().episode(torch.ones(2, 6, dtype=DOUBLE))


@pytest.mark.slow
def test_a_degraded_pattern_is_completed_after_a_few_episodes():
    """The memory task of the paper, small: three patterns shown twice, then one with half of its bits zeroed."""
    n, patterns, batch = 40, 3, 16
    block = ncode.NCODE(ncode.dynamics.Recurrent(n), ncode.Hebbian(), t1=0.5, method="rk4", dt=0.25)
    optimiser = torch.optim.Adam(block.parameters(), lr=1e-2)
    errors = []
    for _ in range(40):
        shown = torch.randn(batch, patterns, n).sign()
        target = shown[:, 0]
        query = target * (torch.rand(batch, n).argsort(1) >= n // 2)
        end = block.episode(torch.cat([shown, shown.flip(1), query[:, None]], 1)).x
        optimiser.zero_grad()
        (end - target).square().mean().backward()
        optimiser.step()
        errors.append((end.sign() != target).float().mean().item())
    assert errors[0] > 0.2
    assert sum(errors[-5:]) / 5 < 0.05
