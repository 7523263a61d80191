import pytest
import torch
from ncode_lab.experiments.coding.baselines import CodeNoise, PlainAutoencoder, VariationalAutoencoder
from ncode_lab.experiments.coding.coders import Decoder, Encoder, architecture
from torch import nn

import ncode
from ncode.models import AutoNCODE


def parts():
    sizes = architecture("cifar10", width=0.05)
    encoder = Encoder(sizes)
    return encoder, Decoder(sizes, 16), encoder.width, 16


def images(batch=3):
    return torch.rand(batch, 3, 32, 32)


def test_gradients_reach_every_parameter_that_a_model_has():
    models = [
        AutoNCODE(*parts()),
        PlainAutoencoder(*parts(), noise=0.1, sparsity=0.1),
        VariationalAutoencoder(*parts()),
    ]
    for model in models:
        model.training_loss(images()).loss.backward()
        unmoved = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
        assert unmoved == []


@pytest.mark.parametrize(("nonzeros", "other"), [(1, PlainAutoencoder), (2, VariationalAutoencoder)])
def test_auto_ncode_has_as_many_parameters_as_an_autoencoder_or_with_two_nonzeros_a_vae(nonzeros, other):
    models = AutoNCODE(*parts(), nonzeros=nonzeros), other(*parts())
    count = [sum(each.numel() for each in model.parameters() if each.requires_grad) for model in models]
    assert count[0] == count[1]


def test_the_divergence_of_a_variational_autoencoder_is_that_of_its_gaussians():
    model = VariationalAutoencoder(*parts(), beta=2.0).eval()
    shown = images()
    with torch.no_grad():
        mean, log_variance = model.code(model.encoder(shown)).chunk(2, 1)
        q = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
        expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()
        judged = model.training_loss(shown)
    torch.testing.assert_close(judged.parts["divergence"], expected)
    torch.testing.assert_close(judged.loss, judged.parts["error"] + 2.0 * expected / shown[0].numel())


@pytest.mark.parametrize("kind", [PlainAutoencoder, VariationalAutoencoder])
def test_codes_are_in_single_precision_under_autocast(kind):
    model = kind(*parts()).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model.encode(images()).dtype == torch.float32


@pytest.mark.parametrize("kind", [PlainAutoencoder, VariationalAutoencoder])
def test_an_encoder_of_ones_own_with_another_number_of_features_is_named(kind):
    decoder = nn.Sequential(nn.Linear(2, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
    with pytest.raises(ncode.InputError, match=r"must give features \(batch, 32\), as width says; given \(3, 64\)"):
        kind(nn.Flatten(), decoder, width=32, latent=2)(torch.rand(3, 1, 8, 8))


@pytest.mark.parametrize("latent", [0, -1, 2.5])
def test_a_code_has_a_whole_number_of_dimensions(latent):
    with pytest.raises(ncode.InputError, match="latent must be"):
        PlainAutoencoder(nn.Flatten(), nn.Identity(), width=4, latent=latent)


def test_noise_on_codes_is_relative_to_their_spread_and_ends_with_training():
    disturb = CodeNoise(noise=0.5)
    for scale in (0.01, 100.0):
        code = scale * torch.randn(2000, 8)
        assert float((disturb(code) - code).std() / code.std()) == pytest.approx(0.5, rel=0.05)
    assert torch.equal(disturb.eval()(code), code)


def test_nothing_is_gained_by_codes_that_grow_under_noise():
    disturb = CodeNoise(noise=0.5)
    code = torch.randn(50, 8, dtype=torch.float64, requires_grad=True)
    seen = disturb(code)
    # What a decoder sees of codes, whatever their size: growing changes nothing of it, and has no slope.
    (seen / seen.std()).pow(3).sum().backward()
    assert code.grad is not None
    outward = float((code.grad * code.detach()).sum())
    assert abs(outward) < 1e-9 * float(code.grad.norm() * code.detach().norm())


def test_noise_on_codes_that_are_all_the_same_has_gradients():
    code = torch.ones(5, 8, requires_grad=True)
    CodeNoise(noise=0.5)(code).square().sum().backward()
    torch.testing.assert_close(code.grad, 2 * torch.ones(5, 8))


def test_noise_of_an_impossible_size_is_refused():
    with pytest.raises(ncode.InputError, match="must be at least 0"):
        CodeNoise(noise=-1.0)
