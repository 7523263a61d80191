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
