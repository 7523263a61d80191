"""AutoN-CODE with parts left out or replaced."""

from dataclasses import replace

import pytest
import torch
from ncode_lab.experiments.coding.ablations import RotationCode, SphereCode, skew_pattern
from ncode_lab.experiments.coding.autoencode import Autoencode
from ncode_lab.experiments.coding.models import HORIZON, AutoencoderSettings, build_autoencoder

from ncode import InputError
from ncode.dynamics import SparseLinear
from ncode.models import AutoNCODE


def build(kind, **options):
    torch.manual_seed(0)
    return build_autoencoder(kind, AutoencoderSettings("cifar10", width=0.05, **options)).eval()


def theta_of(model, control):
    """The matrix of a control."""
    assert isinstance(model, AutoNCODE)
    assert isinstance(model.block.dynamics, SparseLinear)
    return model.block.dynamics.dense(control)


@pytest.fixture
def images():
    return torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_codes_of_the_sphere_have_one_norm(images):
    model = build("sphere", gain=3.0)
    torch.testing.assert_close(model.encode(images).norm(dim=1), torch.full((5,), 3.0))


def test_the_sphere_centres_what_it_scales_as_the_control_of_auton_code(images):
    sphere, flow = build("sphere").train(), build("auton-code").train()
    assert isinstance(sphere, SphereCode)
    assert isinstance(flow, AutoNCODE)
    flow.load_state_dict({name: sphere.state_dict()[name.replace("gamma", "code")] for name in flow_names(flow)}, False)
    torch.testing.assert_close(sphere.encode(images), flow.control(images)[..., 0])


def flow_names(model):
    return [name for name in model.state_dict() if name.startswith(("encoder", "gamma", "norm"))]


def test_the_exponential_is_the_flow_of_a_diagonal_control_from_ones(images):
    model, sphere = build("sphere-exp"), build("sphere")
    control = sphere.encode(images)
    theta = torch.diag_embed(control.double())
    expected = torch.linalg.matrix_exp(HORIZON * theta) @ torch.ones(128, dtype=torch.float64)
    torch.testing.assert_close(model.encode(images).double(), expected)


def test_all_have_as_many_parameters_as_auton_code():
    counts = {
        kind: sum(each.numel() for each in build(kind).parameters() if each.requires_grad)
        for kind in ("auton-code", "sphere", "sphere-exp", "rotation")
    }
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize(("nonzeros", "gain", "start"), [(1, 0.0, "ones"), (2, 4.0, "stored"), (10, 1.0, "ones")])
def test_a_rotation_keeps_the_norm_of_its_start_and_comes_back_by_its_inverse(images, nonzeros, gain, start):
    model = build("rotation", nonzeros=nonzeros, gain=gain, start=start)
    assert isinstance(model, RotationCode)
    control = model.control(images)
    theta = theta_of(model, control)
    torch.testing.assert_close(theta, -theta.mT, rtol=0, atol=0)
    assert ((theta != 0).sum(-1) == 2 * nonzeros).all()
    codes = model.encode(images)
    torch.testing.assert_close(codes.norm(dim=1), model.x0.norm().expand(5))
    assert (codes - model.x0).norm(dim=1).min() > 0.01
    exact = torch.linalg.matrix_exp(HORIZON * theta.double()) @ model.x0.double()
    torch.testing.assert_close(codes.double(), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.flow(-control), torch.linalg.matrix_exp(-HORIZON * theta) @ model.x0)


def test_a_rotation_couples_all_dimensions_and_each_pair_once():
    for m, free, seed in ((8, 1, 0), (9, 3, 1), (128, 2, 2)):
        columns, _ = skew_pattern(m, free, seed)
        joined = torch.zeros(m, m)
        joined[torch.arange(m)[:, None], columns] = 1
        assert joined.sum() == 2 * free * m
        assert torch.equal(joined, joined.T)
        assert torch.linalg.matrix_power(joined + torch.eye(m), m).gt(0).all()


def test_a_rotation_with_too_many_free_values_is_refused():
    with pytest.raises(InputError, match=r"fewer than 4 free values per row; given nonzeros=4"):
        build("rotation", latent=8, nonzeros=4)


@pytest.mark.parametrize(
    ("changes", "model", "label"),
    [
        ({"gain": 1.0, "nonzeros": 2}, "rotation", "cifar10, nonzeros 2, gain 1"),
        ({"gain": 1.0, "nonzeros": 2}, "sphere-exp", "cifar10, gain 1"),
        ({"beta": 0.5}, "sphere", "cifar10"),
        ({"shift": 0}, "vae", "cifar10, shift 0"),
        ({"shift": 0}, "ae", "cifar10, shift 0"),
        ({"nonzeros": 128}, "auton-code", "cifar10, nonzeros 128"),
    ],
)
def test_every_ablation_has_a_label_of_its_own(changes, model, label, monkeypatch):
    monkeypatch.setattr(Autoencode, "data_name", lambda self: self.dataset)
    assert replace(Autoencode.preset("full"), **changes).label(model) == label


def test_a_dense_control_has_a_non_zero_everywhere(images):
    model = build("auton-code", latent=6, nonzeros=6)
    assert isinstance(model, AutoNCODE)
    assert (theta_of(model, model.control(images)) != 0).all()
