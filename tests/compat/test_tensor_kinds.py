"""States, times and slopes of a kind that the drop-ins cannot compute with, and those that they convert."""

import pytest
import torch

import ncode
from ncode.compat import torchcde
from ncode.compat import torchdiffeq as ours

from .systems import DOUBLE

T = torch.linspace(0, 1, 5, dtype=DOUBLE)
STATES = {
    "sparse": (lambda: torch.eye(3).to_sparse(), r"stored as torch\.sparse_coo: use .*to_dense\(\)"),
    "compressed": (lambda: torch.eye(3).to_sparse_csr(), r"stored as torch\.sparse_csr"),
    "on meta": (lambda: torch.ones(3, device="meta"), "on the meta device and has no values"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is a nested tensor"),
    "of 8 bits": (lambda: torch.ones(2).to(torch.float8_e4m3fn), r"use .*\.to\(torch\.float32\)"),
    "complex of 16 bits": (lambda: torch.ones(2, dtype=torch.complex32), r"use .*\.to\(torch\.complex64\)"),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # torch warns that these kinds are prototypes
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("interface", [ours.odeint, ours.odeint_adjoint])
def test_a_state_that_cannot_be_computed_with_gets_a_sentence_if(kind, interface):
    make, sentence = STATES[kind]
    with pytest.raises(ncode.InputError, match=sentence):
        interface(lambda t, y: -y, make(), T)
    with pytest.raises(ncode.InputError, match=r"y0\[0\] is"):
        ours.odeint(lambda t, y: y, (make(), make()), T)


def test_times_and_starts_of_torchcde_on_meta_get_a_sentence():
    with pytest.raises(ncode.InputError, match="t is on the meta device"):
        ours.odeint(lambda t, y: -y, torch.ones(1), torch.zeros(2, device="meta"))
    X = torchcde.LinearInterpolation(torch.rand(2, 3, 1))
    with pytest.raises(ncode.InputError, match="z0 is on the meta device"):
        torchcde.cdeint(X, lambda t, z: z[..., None], torch.ones(2, 1, device="meta"), X.interval)


METHODS = ("dopri5", "bosh3", "euler", "rk4")
CONVERTED = {
    "single precision": lambda k: k.float(),
    "half precision": lambda k: k.half(),
    "integers": lambda k: k.to(torch.int64),
    "truth values": lambda k: k != 0,
    "a dimension at the end": lambda k: k[..., None],
    "a dimension at the front": lambda k: k[None],
    "a sparse tensor": lambda k: k.to_sparse(),
}
REFUSED = {
    "meta": (lambda k: k.to("meta"), "what func returned is on the meta device"),
    "nested": (lambda k: torch.nested.nested_tensor([k]), "what func returned is a nested tensor"),
    "one element": (lambda k: k.sum(), r"func returned shape \(\); expected that of the state, \(2,\)"),
    "complex": (lambda k: k.to(torch.complex128), "make y0 complex"),
}


def changing(change, calls):
    """A field of integers, whose slopes change their kind after some evaluations."""
    count = 0

    def func(t, y):
        nonlocal count
        count += 1
        k = torch.tensor([1.0, 0.0], dtype=DOUBLE) + 0 * y
        return change(k) if count > calls else k

    return func


@pytest.mark.parametrize("kind", CONVERTED)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_slopes_are_converted_from_the_first_evaluation_to_the_last_if_they_are(kind, method, calls):
    y = ours.odeint(changing(CONVERTED[kind], calls), torch.zeros(2, dtype=DOUBLE), T, method=method)
    assert y.dtype == DOUBLE
    torch.testing.assert_close(y, torch.stack([T, 0 * T], 1))


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # torch warns that nested tensors are a prototype
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_slopes_are_refused_from_the_first_evaluation_to_the_last_if_they_are(kind, method, calls):
    change, sentence = REFUSED[kind]
    with pytest.raises(ncode.InputError, match=sentence):
        ours.odeint(changing(change, calls), torch.zeros(2, dtype=DOUBLE), T, method=method)


def test_gradients_pass_through_sparse_slopes():
    y0, weight = torch.ones(2, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE, requires_grad=True)
    for interface in (ours.odeint, ours.odeint_adjoint):
        grads = []
        for kind in (lambda k: k, lambda k: k.to_sparse()):
            y = interface(lambda t, y: kind(-weight * y), y0, T)  # noqa: B023
            grads.append(torch.autograd.grad(y[-1].sum(), weight)[0])
        torch.testing.assert_close(*grads)
