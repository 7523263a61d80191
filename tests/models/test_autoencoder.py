from typing import get_args

import pytest
import torch
from torch import nn

import ncode
from ncode.models import (
    AutoNCODE,
    ControlNorm,
    ControlNormKind,
    Decoder,
    Encoder,
    PlainAutoencoder,
    VariationalAutoencoder,
    architecture,
)


def coders(dataset="cifar10", latent=16):
    numbers = architecture(dataset, width=0.05)
    encoder = Encoder(numbers)
    return encoder, Decoder(numbers, latent), encoder.width


def images(dataset="cifar10", batch=3):
    numbers = architecture(dataset)
    return torch.rand(batch, numbers.channels, numbers.size, numbers.size)


def auto_ncode(latent=16, **options):
    encoder, decoder, width = coders(latent=latent)
    return AutoNCODE(encoder, decoder, width, latent, **options)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "celeba"])
def test_the_coders_of_every_data_set_lead_back_to_images_of_its_size(dataset):
    encoder, decoder, width = coders(dataset)
    shown = images(dataset)
    assert encoder(shown).shape == (3, width)
    back = decoder(torch.randn(3, 16))
    assert back.shape == shown.shape
    assert 0 <= float(back.detach().min()) <= float(back.detach().max()) <= 1


def test_the_papers_widths_are_those_of_its_table():
    assert [architecture(name).latent for name in ("mnist", "cifar10", "celeba")] == [25, 128, 64]
    assert architecture("cifar10").down == (256, 512, 1024)


def test_images_of_another_size_are_refused_with_both_sizes():
    encoder, _, _ = coders()
    with pytest.raises(ncode.InputError, match=r"\(batch, 3, 32, 32\); given \(2, 3, 28, 28\)"):
        encoder(torch.rand(2, 3, 28, 28))


def test_codes_of_another_size_are_refused():
    _, decoder, _ = coders()
    with pytest.raises(ncode.InputError, match=r"\(batch, 16\); given \(2, 17\)"):
        decoder(torch.rand(2, 17))


@pytest.mark.parametrize("kind", [norm for norm in get_args(ControlNormKind) if norm not in ("none", "tanh")])
def test_a_normalised_control_has_the_size_of_its_gain(kind):
    control = ControlNorm(kind, 20, 2, gain=3.0)(50 * torch.randn(64, 20, 2))
    size = control.flatten(1).norm(dim=1).square().mean().sqrt()
    torch.testing.assert_close(size, torch.tensor(3.0), rtol=0.02, atol=0.0)


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


def test_codes_lie_on_a_sphere_around_where_the_flow_begins():
    model, shown = auto_ncode(gain=0.01).train(), torch.rand(64, 3, 32, 32)
    with torch.no_grad():
        away = (model.encode(shown) - model.x0).norm(dim=1)
    # For a small gain the flow is straight: x(T) - x(0) = T theta, of norm 10 * 0.01.
    torch.testing.assert_close(away, torch.full((64,), 0.1), rtol=0.05, atol=0.0)


def test_a_bounded_control_is_never_larger_than_its_gain():
    control = ControlNorm("tanh", 20, 2, gain=3.0)(50 * torch.randn(64, 20, 2))
    assert float(control.flatten(1).norm(dim=1).max()) <= 3.0 + 1e-5


def test_a_misspelt_normalisation_gets_the_nearest_right_one():
    with pytest.raises(ncode.InputError, match='did you mean "row"'):
        ControlNorm("rows", 2, 2)


def test_the_code_is_the_end_of_the_flow_that_the_image_controls():
    model = auto_ncode(gain=2.0).eval()
    shown = images()
    with torch.no_grad():
        theta = model.block.dynamics.dense(model.control(shown)).double()
        expected = torch.einsum("bij,j->bi", torch.linalg.matrix_exp(10 * theta), model.x0.double())
        torch.testing.assert_close(model.encode(shown), expected.float(), rtol=1e-4, atol=1e-5)


def test_an_orbit_begins_at_x0_and_ends_at_the_code():
    model = auto_ncode().eval()
    shown = images()
    with torch.no_grad():
        orbit = model.trajectory(shown, torch.tensor([0.0, 5.0, 10.0]))
        torch.testing.assert_close(orbit[:, 0], model.x0.expand(3, -1))
        torch.testing.assert_close(orbit[:, 2], model.encode(shown), rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter_that_a_model_has():
    encoder, decoder, width = coders()
    models = [
        auto_ncode(start="learned"),
        PlainAutoencoder(encoder, decoder, width, 16, noise=0.1, sparsity=0.1),
        VariationalAutoencoder(*coders()[:2], width, 16),
    ]
    for model in models:
        model.training_loss(images()).loss.backward()
        unmoved = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
        assert unmoved == []


def test_a_stored_start_is_the_same_in_two_models_of_one_seed_and_not_of_another():
    first, again, other = (auto_ncode(start="stored", seed=seed).x0 for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert "x0" in auto_ncode(start="stored").state_dict()


def test_a_drawn_start_makes_codes_differ_and_a_stored_one_does_not():
    shown = images()
    for start, same in (("stored", True), ("drawn", False)):
        model = auto_ncode(start=start).eval()
        with torch.no_grad():
            assert torch.equal(model.encode(shown), model.encode(shown)) == same


def test_a_running_cost_of_the_flow_adds_to_the_loss_and_not_to_the_code():
    model, shown = auto_ncode().eval(), images()
    priced = auto_ncode(costs=[ncode.costs.KineticEnergy(0.5)]).eval()
    priced.load_state_dict(model.state_dict())
    with torch.no_grad():
        plain, costly = model.training_loss(shown), priced.training_loss(shown)
    torch.testing.assert_close(plain.images, costly.images, rtol=1e-2, atol=1e-3)
    assert float(costly.loss) > float(costly.parts["error"])
    torch.testing.assert_close(costly.loss - costly.parts["error"], costly.parts["cost"])


@pytest.mark.parametrize(("nonzeros", "other"), [(1, PlainAutoencoder), (2, VariationalAutoencoder)])
def test_auto_ncode_has_as_many_parameters_as_an_autoencoder_or_with_two_nonzeros_a_vae(nonzeros, other):
    encoder, decoder, width = coders()
    models = auto_ncode(nonzeros=nonzeros), other(encoder, decoder, width, 16)
    count = [sum(each.numel() for each in model.parameters() if each.requires_grad) for model in models]
    assert count[0] == count[1]


def test_the_divergence_of_a_variational_autoencoder_is_that_of_its_gaussians():
    encoder, decoder, width = coders()
    model = VariationalAutoencoder(encoder, decoder, width, 16, beta=2.0).eval()
    shown = images()
    with torch.no_grad():
        mean, log_variance = model.code(model.encoder(shown)).chunk(2, 1)
        q = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
        expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()
        judged = model.training_loss(shown)
    torch.testing.assert_close(judged.parts["divergence"], expected)
    torch.testing.assert_close(judged.loss, judged.parts["error"] + 2.0 * expected / shown[0].numel())


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
    model = PlainAutoencoder(nn.Identity(), nn.Identity(), 4, 4, loss=loss)
    shown = torch.rand(2, 1, 8, 8)
    assert model.error(shown, shown) < model.error((shown + 0.05).clamp(0, 1), shown)
