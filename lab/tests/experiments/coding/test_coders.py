import pytest
import torch
from ncode_lab.experiments.coding.coders import Decoder, Encoder, architecture

import ncode


def coders(dataset="cifar10", latent=16):
    sizes = architecture(dataset, width=0.05)
    encoder = Encoder(sizes)
    return encoder, Decoder(sizes, latent), encoder.width


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "celeba"])
def test_the_coders_of_every_data_set_lead_back_to_images_of_its_size(dataset):
    encoder, decoder, width = coders(dataset)
    sizes = architecture(dataset)
    shown = torch.rand(3, sizes.channels, sizes.size, sizes.size)
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


def test_decoders_give_single_precision_under_autocast():
    decoder = Decoder(architecture("cifar10", width=0.05), 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert decoder(torch.randn(2, 8)).dtype == torch.float32


def test_coders_keep_channels_last_and_work_in_double_precision_too():
    encoder, decoder, _ = coders(latent=8)
    kernels = [each for coder in (encoder, decoder) for each in coder.parameters() if each.dim() == 4]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in kernels)
    assert decoder(torch.randn(2, 8)).is_contiguous(memory_format=torch.channels_last)
    assert decoder.double()(torch.randn(2, 8).double()).dtype == torch.float64
