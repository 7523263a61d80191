from typing import get_args

import pytest
import torch
from torch import nn

import ncode
from ncode.models import Autoencoder, AutoNCODE, ControlNorm, ControlNormKind, TrainingCode

WIDTH = 24


def auto_ncode(latent=16, **options):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, WIDTH), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(latent, 3 * 32 * 32), nn.Sigmoid(), nn.Unflatten(1, (3, 32, 32)))
    return AutoNCODE(encoder, decoder, WIDTH, latent, **options)


def images(batch=3):
    return torch.rand(batch, 3, 32, 32)


class Same(Autoencoder):
    """An autoencoder whose codes are the features."""

    def encode(self, images):
        return self.features(images, 64)

    def training_code(self, images):
        return TrainingCode(self.encode(images), 0.0, {})


@pytest.mark.parametrize("kind", [norm for norm in get_args(ControlNormKind) if norm != "none"])
def test_a_normalised_control_has_the_size_of_its_gain(kind):
    control = ControlNorm(kind, 20, 2, gain=3.0)(50 * torch.randn(64, 20, 2))
    size = control.flatten(1).norm(dim=1).square().mean().sqrt()
    torch.testing.assert_close(size, torch.tensor(3.0), rtol=0.02, atol=0.0)


def test_without_a_norm_the_gain_is_a_factor():
    control = torch.randn(4, 20, 2)
    torch.testing.assert_close(ControlNorm("none", 20, 2, gain=3.0)(control), 3.0 * control)


def test_on_a_sphere_nothing_that_all_samples_share_is_left():
    norm, shared = ControlNorm("sphere", 20, 2), 100 * torch.randn(20, 2)
    varied = torch.randn(64, 20, 2)
    torch.testing.assert_close(norm(varied + shared), norm(varied), rtol=1e-3, atol=1e-4)
    assert float(norm(varied + shared).mean(0).norm()) < 0.2
    for _ in range(200):
        norm(varied + shared)
    torch.testing.assert_close(norm.eval()(varied + shared), norm.train()(varied), rtol=1e-3, atol=1e-4)
    alone = (varied + shared)[:1]
    torch.testing.assert_close(norm(alone), norm.eval()(alone))


def test_codes_lie_on_a_sphere_around_the_start_of_the_flow():
    model, shown = auto_ncode(gain=0.01).train(), images(64)
    with torch.no_grad():
        away = (model.encode(shown) - model.x0).norm(dim=1)
    # For a small gain the flow is straight: x(T) - x(0) = T theta, of norm 10 * 0.01.
    torch.testing.assert_close(away, torch.full((64,), 0.1), rtol=0.05, atol=0.0)


def test_a_misspelt_normalisation_gets_the_nearest_right_one():
    with pytest.raises(ncode.InputError, match='did you mean "sphere"'):
        ControlNorm("spheres", 2, 2)


def test_the_code_is_the_end_of_the_flow_that_the_image_controls():
    model = auto_ncode(gain=2.0).eval()
    shown = images()
    with torch.no_grad():
        theta = model.block.dynamics.dense(model.control(shown)).double()
        expected = torch.einsum("bij,j->bi", torch.linalg.matrix_exp(10 * theta), model.x0.double())
        torch.testing.assert_close(model.encode(shown), expected.float(), rtol=1e-4, atol=1e-5)


def test_a_trajectory_begins_at_x0_and_ends_at_the_code():
    model = auto_ncode().eval()
    shown = images()
    with torch.no_grad():
        xs = model.trajectory(shown, torch.tensor([0.0, 5.0, 10.0]))
        torch.testing.assert_close(xs[:, 0], model.x0.expand(3, -1))
        torch.testing.assert_close(xs[:, 2], model.encode(shown), rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter():
    model = auto_ncode()
    model.training_loss(images()).loss.backward()
    assert [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None] == []


def test_a_stored_start_is_the_same_in_two_models_of_one_seed_and_not_of_another():
    first, again, other = (auto_ncode(start="stored", seed=seed).x0 for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert "x0" in auto_ncode(start="stored").state_dict()


@pytest.mark.parametrize("start", ["ones", "stored"])
def test_an_image_has_one_code(start):
    model, shown = auto_ncode(start=start).eval(), images()
    with torch.no_grad():
        assert torch.equal(model.encode(shown), model.encode(shown))


def test_a_running_cost_of_the_flow_adds_to_the_loss_and_not_to_the_code():
    model, shown = auto_ncode().eval(), images()
    priced = auto_ncode(costs=[ncode.costs.KineticEnergy(0.5)]).eval()
    priced.load_state_dict(model.state_dict())
    with torch.no_grad():
        plain, costly = model.training_loss(shown), priced.training_loss(shown)
    torch.testing.assert_close(plain.images, costly.images, rtol=1e-2, atol=1e-3)
    assert float(costly.loss) > float(costly.parts["error"])
    torch.testing.assert_close(costly.loss - costly.parts["error"], costly.parts["cost"])


def test_codes_are_the_same_with_and_without_autocast_up_to_the_rounding_of_features():
    model, shown = auto_ncode(gain=1.0).eval(), images()
    with torch.no_grad():
        plain = model.encode(shown)
        with torch.autocast("cpu", torch.bfloat16):
            coarse, control = model.encode(shown), model.control(shown)
    assert coarse.dtype == control.dtype == torch.float32
    torch.testing.assert_close(control.flatten(1).norm(dim=1), torch.ones(len(shown)))
    torch.testing.assert_close(coarse, plain, rtol=0.1, atol=0.1 * float(plain.std()))


def test_an_encoder_and_a_decoder_of_ones_own_train():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(4, 16), nn.Sigmoid(), nn.Unflatten(1, (1, 4, 4)))
    model = AutoNCODE(encoder, decoder, width=32, latent=4)
    shown = torch.rand(8, 1, 4, 4)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(60):
        loss = model.training_loss(shown).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_the_error_of_images_that_come_back_as_they_were_is_the_least(loss):
    model = Same(nn.Identity(), nn.Identity(), loss=loss)
    shown = torch.rand(2, 1, 8, 8)
    assert model.error(shown, shown) < model.error((shown + 0.05).clamp(0, 1), shown)


def test_a_decoder_of_ones_own_that_makes_images_of_another_size_is_named():
    decoder = nn.Sequential(nn.Linear(64, 16), nn.Unflatten(1, (1, 4, 4)), nn.Sigmoid())
    model = Same(nn.Flatten(), decoder)
    with pytest.raises(ncode.InputError, match=r"made images \(3, 1, 4, 4\) of images \(3, 1, 8, 8\)"):
        model.training_loss(torch.rand(3, 1, 8, 8))


def test_an_encoder_of_ones_own_with_another_number_of_features_is_named():
    decoder = nn.Sequential(nn.Linear(2, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
    with pytest.raises(ncode.InputError, match=r"must give features \(batch, 32\), as width says; given \(3, 64\)"):
        AutoNCODE(nn.Flatten(), decoder, width=32, latent=2)(torch.rand(3, 1, 8, 8))


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        (torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8), r"given torch.uint8 .* images.float\(\) / 255"),
        (torch.rand(2, 3, 32, 32) * 255, "must lie between 0 and 1; given"),
        (torch.rand(2, 3, 32, 32) - 0.5, "must lie between 0 and 1; given -0"),
        (torch.rand(3, 32, 32), r"\(batch, channels, height, width\); given torch.float32 \(3, 32, 32\)"),
    ],
)
@pytest.mark.parametrize("method", ["training_loss", "forward"])
def test_images_of_the_wrong_size_or_range_are_refused_with_a_sentence(shown, sentence, method):
    with pytest.raises(ncode.InputError, match=sentence):
        getattr(auto_ncode(), method)(shown)


def test_codes_of_bytes_are_refused_with_a_sentence():
    shown = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    for method in ("encode", "control"):
        with pytest.raises(ncode.InputError, match=r"given torch.uint8 .* images.float\(\) / 255"):
            getattr(auto_ncode(), method)(shown)
