"""Gamma's features without control, and read-outs that are pooled."""

import pytest
import torch
from ncode_lab.experiments.classification.fusion import FusedClassifier
from ncode_lab.experiments.classification.models import ClassifierSettings, build_classifier, count_parameters
from torch.nn import functional as F

from ncode import from_pretrained
from ncode.dynamics import Augmented
from ncode.models import Classifier

SHAPE = (3, 8, 8)


def build(name, **changes):
    torch.manual_seed(0)
    settings = ClassifierSettings(filters=6, zeros=2, solver="rk4", gamma="conv", hidden=4, **changes)
    return build_classifier(name, SHAPE, 10, settings).eval()


@pytest.fixture
def images():
    return torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(0))


def test_late_fusion_adds_a_linear_map_of_features_to_the_logits_of_anode(images):
    model = build("late-fusion")
    assert isinstance(model, FusedClassifier)
    anode = Classifier(model.block, SHAPE).eval()
    split = anode.readout.in_features
    with torch.no_grad():
        anode.readout.weight.copy_(model.linear.weight[:, :split])
        anode.readout.bias.copy_(model.linear.bias)
        more = model.trunk(model.normalise(images)) @ model.linear.weight[:, split:].T
        torch.testing.assert_close(model(images), anode(images) + more)


def test_features_as_channels_take_the_place_of_zeros(images):
    model = build("gamma-channels")
    assert isinstance(model, FusedClassifier)
    assert not isinstance(model.block.dynamics, Augmented)
    (solution,) = model.classify(images, save_at=torch.tensor([0.0, 1.0])).solutions
    assert solution.xs is not None
    start = solution.xs[:, 0]
    torch.testing.assert_close(start[:, :3], model.normalise(images))
    features = model.trunk(model.normalise(images))
    torch.testing.assert_close(start[:, 3:], features[:, :, None, None].expand(-1, -1, 8, 8))


@pytest.mark.parametrize("name", ["anode", "ncode", "late-fusion"])
def test_a_pooled_read_out_sees_means_over_quarters_of_the_final_state(name, images):
    model = build(name, readout="pooled")
    assert isinstance(model, FusedClassifier)
    output = model.classify(images)
    means = F.avg_pool2d(output.solutions[0].x, 4).flatten(1)
    weight, rest = model.linear.weight[:, : means.shape[1]], model.linear.weight[:, means.shape[1] :]
    expected = means @ weight.T + model.linear.bias
    if name == "late-fusion":
        expected = expected + model.trunk(model.normalise(images)) @ rest.T
    else:
        assert rest.numel() == 0
    torch.testing.assert_close(output.logits, expected)


@pytest.mark.parametrize("name", ["anode", "ncode"])
def test_pooling_changes_the_read_out_alone(name):
    flat, pooled = (count_parameters(lambda kind=kind: build(name, readout=kind)) for kind in ("flattened", "pooled"))
    assert flat - pooled == 10 * 5 * (8 * 8 - 2 * 2)


@pytest.mark.parametrize(("name", "readout"), [("late-fusion", "pooled"), ("gamma-channels", "flattened")])
def test_they_are_saved_and_loaded(name, readout, images, tmp_path):
    model = build(name, readout=readout)
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)
