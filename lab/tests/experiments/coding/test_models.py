import pytest
import torch
from ncode_lab.experiments.coding.models import KINDS, AutoencoderSettings, build_autoencoder
from torch import nn

import ncode
from ncode.models import AutoNCODE, CodeNoise, Decoder, Encoder, PlainAutoencoder, VariationalAutoencoder, architecture


def small(dataset="cifar10", **options):
    return AutoencoderSettings(dataset, width=0.05, **options)


def images(dataset="cifar10", batch=4):
    numbers = architecture(dataset)
    return torch.rand(batch, numbers.channels, numbers.size, numbers.size)


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10", "celeba"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_model_codes_every_data_set_and_gets_gradients_everywhere(kind, dataset):
    model = build_autoencoder(kind, small(dataset))
    judged = model.training_loss(images(dataset))
    judged.loss.backward()
    assert judged.images.shape == images(dataset).shape
    assert [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None] == []


def test_the_wide_one_has_twice_the_dimensions():
    codes = [build_autoencoder(kind, small()).eval().encode(images()) for kind in ("ae", "ae-wide")]
    assert [code.shape[1] for code in codes] == [128, 256]


def test_the_loss_is_cross_entropy_for_digits_and_a_mean_square_otherwise():
    assert [small(dataset).loss for dataset in ("mnist", "fashion-mnist", "cifar10")] == ["bce", "mse", "mse"]


def test_settings_reach_the_flow():
    model = build_autoencoder("auton-code", small(nonzeros=3, norm="row", gain=2.0, start="learned"))
    assert isinstance(model, AutoNCODE)
    assert (model.nonzeros, model.norm.kind, float(model.norm.gain)) == (3, "row", 2.0)
    assert isinstance(model.x0, nn.Parameter)


def test_flows_of_colours_and_of_digits_are_the_best_for_them_unless_told():
    def flow(*args, **changes):
        model = build_autoencoder("auton-code", small(*args, **changes))
        assert isinstance(model, AutoNCODE)
        return model.norm.kind, float(model.norm.gain), model.start

    assert [flow("cifar10"), flow("mnist")] == [("sphere", 0.25, "ones"), ("l2", 1.0, "stored")]
    assert flow("mnist", start="ones", gain=3.0) == ("l2", 3.0, "ones")
    assert flow("cifar10", norm="row", start="stored") == ("row", 0.25, "stored")


def test_codes_are_the_same_with_and_without_autocast_up_to_the_coders_rounding():
    model = build_autoencoder("auton-code", small(gain=1.0)).eval()
    shown = images()
    with torch.no_grad():
        plain = model.encode(shown)
        with torch.autocast("cpu", torch.bfloat16):
            coarse, control = model.encode(shown), model.control(shown)
    assert coarse.dtype == control.dtype == torch.float32
    torch.testing.assert_close(control.flatten(1).norm(dim=1), torch.ones(len(shown)))
    torch.testing.assert_close(coarse, plain, rtol=0.1, atol=0.1 * float(plain.std()))


def test_decoders_give_single_precision_under_autocast():
    decoder = Decoder(architecture("cifar10", width=0.05), 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert decoder(torch.randn(2, 8)).dtype == torch.float32


def test_coders_keep_channels_last_and_work_in_double_precision_too():
    encoder, decoder = Encoder(architecture("cifar10", width=0.05)), Decoder(architecture("cifar10", width=0.05), 8)
    kernels = [each for coder in (encoder, decoder) for each in coder.parameters() if each.dim() == 4]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in kernels)
    assert decoder(torch.randn(2, 8)).is_contiguous(memory_format=torch.channels_last)
    assert decoder.double()(torch.randn(2, 8).double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        (torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8), r"given torch.uint8 .* images.float\(\) / 255"),
        (torch.rand(2, 3, 32, 32) * 255, "must lie between 0 and 1; given"),
        (torch.rand(2, 3, 32, 32) - 0.5, "must lie between 0 and 1; given -0"),
        (torch.rand(3, 32, 32), r"\(batch, channels, height, width\); given torch.float32 \(3, 32, 32\)"),
        (torch.rand(2, 3, 28, 28), r"must be \(batch, 3, 32, 32\); given \(2, 3, 28, 28\)"),
    ],
)
@pytest.mark.parametrize("method", ["training_loss", "forward"])
def test_images_of_the_wrong_size_or_range_are_refused_with_a_sentence(shown, sentence, method):
    with pytest.raises(ncode.InputError, match=sentence):
        getattr(build_autoencoder("ae", small()), method)(shown)


def test_a_decoder_of_ones_own_that_makes_images_of_another_size_is_named():
    decoder = nn.Sequential(nn.Linear(2, 16), nn.Unflatten(1, (1, 4, 4)), nn.Sigmoid())
    model = PlainAutoencoder(nn.Flatten(), decoder, width=64, latent=2)
    with pytest.raises(ncode.InputError, match=r"made images \(3, 1, 4, 4\) of images \(3, 1, 8, 8\)"):
        model.training_loss(torch.rand(3, 1, 8, 8))


@pytest.mark.parametrize("kind", [PlainAutoencoder, VariationalAutoencoder, AutoNCODE])
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


def test_minus_one_means_noise_for_colours_and_none_for_digits_or_a_vae():
    def noise(kind, plan):
        disturb = build_autoencoder(kind, plan).code_noise
        assert isinstance(disturb, CodeNoise)
        return disturb.noise

    every = small(code_noise=-1)
    assert [noise(kind, every) for kind in ("auton-code", "ae", "ae-wide", "vae")] == [0.25, 0.25, 0.25, 0.0]
    assert [noise("ae", small("mnist", code_noise=-1)), noise("vae", small(code_noise=0.3))] == [0.0, 0.3]
    with pytest.raises(ncode.InputError, match="code_noise must be at least 0, or -1; given -2"):
        small(code_noise=-2)


def test_noise_of_an_impossible_size_is_refused():
    with pytest.raises(ncode.InputError, match="must be at least 0"):
        CodeNoise(noise=-1.0)
