"""A compiled block follows what changes in its parts between two calls, as an eager one does."""

import pytest
import torch
from torch import nn

import ncode
from ncode import dynamics


def open_loop(**options):
    return ncode.NCODE(dynamics.MLP(2, hidden=3), ncode.OpenLoop(nn.Sequential(nn.Linear(2, 3), nn.Tanh())), **options)


def time_varying(**options):
    return ncode.NCODE(dynamics.MLP(2, hidden=3), ncode.TimeVarying("fourier", terms=3), **options)


def closed_loop(**options):
    feedback = ncode.control.Feedback(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    return ncode.NCODE(dynamics.MLP(2, hidden=3), ncode.ClosedLoop(feedback), **options)


def plastic(**options):
    return ncode.NCODE(dynamics.Recurrent(2), ncode.Hebbian(scale=1.0, decay=0.1), exact=False, **options)


def own_weights(**options):
    return ncode.NCODE(dynamics.MLP(2, hidden=3, controlled=()), **options)


def ones():
    return nn.Parameter(torch.ones(2))


CHANGES = {
    "activation": (open_loop, lambda block: setattr(block.dynamics, "activation", "relu")),
    "basis": (time_varying, lambda block: setattr(block.controller, "basis", "polynomial")),
    "decay": (plastic, lambda block: setattr(block.controller, "decay", 2.0)),
    "module": (closed_loop, lambda block: setattr(block.controller.feedback.trunk, "1", nn.Sigmoid())),
    "parameter": (own_weights, lambda block: block.dynamics.weights.learned.update({"bias_2": ones()})),
}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", CHANGES)
def test_a_compiled_block_follows_changes_of_its_parts(name):
    make, change = CHANGES[name]
    torch.manual_seed(1)
    eager = make(method="euler", dt=0.5)
    compiled = make(method="euler", dt=0.5, compile=True)
    compiled.load_state_dict(eager.state_dict())
    x = torch.randn(3, 2)
    before = eager(x)
    torch.testing.assert_close(compiled(x), before)
    for block in (eager, compiled):
        change(block)
    after = eager(x)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(compiled(x), after)
    for block in (eager, compiled):
        block(x).sum().backward()
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
