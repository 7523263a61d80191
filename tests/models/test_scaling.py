"""Classifiers know the scale of their images."""

import pytest
import torch

import ncode
from ncode.models import Classifier


def make(**options):
    return Classifier(ncode.NCODE(ncode.dynamics.ConvBlock(1, filters=2)), (1, 6, 6), **options)


BYTES = torch.randint(0, 256, (4, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_bytes_and_floats_of_the_same_image_have_the_same_logits():
    for low, high in ((0.0, 1.0), (-1.0, 1.0)):
        model = make(value_range=(low, high))
        torch.testing.assert_close(model(BYTES), model(BYTES / 255 * (high - low) + low))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (BYTES.float(), "between 0 and 1; given .* to 25.: divide bytes by 255"),
        (BYTES / 64 - 2, "between 0 and 1; given .*scale them first, or build the model with another value_range"),
        (torch.full((1, 1, 6, 6), torch.nan), "given nan to nan"),
        (BYTES.long(), "uint8 or floats from 0 to 1; given torch.int64"),
    ],
)
def test_images_of_another_scale_are_refused(images, message):
    with pytest.raises(ncode.InputError, match=message):
        make()(images)


def test_values_slightly_beyond_the_range_are_not_refused():
    make()(torch.tensor([-0.05, 1.05]).repeat(18).reshape(1, 1, 6, 6))


def test_values_are_not_read_under_export():
    model = make().with_options(method="rk4", dt=0.5)
    torch.export.export(model, (torch.rand(3, 1, 6, 6),))


@pytest.mark.parametrize("value_range", [(1.0, 0.0), 255, ("a", 1.0), (0.0, torch.inf)])
def test_a_range_that_is_none_is_refused(value_range):
    with pytest.raises(ncode.InputError, match="value_range"):
        make(value_range=value_range)


def test_the_range_is_saved(tmp_path):
    pytest.importorskip("safetensors")
    make(value_range=(-1.0, 1.0)).save_pretrained(tmp_path)
    assert Classifier.from_pretrained(tmp_path).value_range == (-1.0, 1.0)
