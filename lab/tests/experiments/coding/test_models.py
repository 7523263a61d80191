import pytest
import torch
from ncode_lab.experiments.coding.baselines import CodeNoise
from ncode_lab.experiments.coding.coders import architecture
from ncode_lab.experiments.coding.models import KINDS, AutoencoderSettings, build_autoencoder

import ncode
from ncode.models import AutoNCODE


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
    model = build_autoencoder("auton-code", small(nonzeros=3, norm="none", gain=2.0, start="stored"))
    assert isinstance(model, AutoNCODE)
    assert (model.nonzeros, model.norm.kind, float(model.norm.gain)) == (3, "none", 2.0)
    assert model.start == "stored"


def test_flows_of_colours_and_of_digits_are_by_default_the_best_for_them():
    def flow(*args, **changes):
        model = build_autoencoder("auton-code", small(*args, **changes))
        assert isinstance(model, AutoNCODE)
        return model.norm.kind, float(model.norm.gain), model.start

    assert [flow("cifar10"), flow("mnist")] == [("sphere", 0.25, "ones"), ("l2", 1.0, "stored")]
    assert flow("mnist", start="ones", gain=3.0) == ("l2", 3.0, "ones")
    assert flow("cifar10", norm="l2", start="stored") == ("l2", 0.25, "stored")


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
