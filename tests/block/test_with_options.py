"""Blocks and models with other solver options, and the same weights."""

import pytest
import torch
from torch import nn

import ncode
from ncode.models import AutoNCODE, Classifier, PlasticMemory


def make():
    return ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(nn.Linear(2, 3)), t1=2.0, rtol=1e-5)


class Empty(ncode.models.ImageClassifier):
    """A classifier without a block."""

    def classify(self, images, cost=None, **changes):
        raise NotImplementedError


def classifier():
    return Classifier(ncode.NCODE(ncode.dynamics.ConvBlock(1, filters=2)), (1, 6, 6))


def test_the_settings_are_those_of_a_block_built_with_them():
    block, x = make(), torch.randn(4, 2)
    fixed = block.with_options(method="rk4", dt=0.5)
    assert (fixed.settings.options.dt, fixed.settings.t1, fixed.settings.options.rtol) == (0.5, 2.0, 1e-5)
    assert block.settings.options.dt is None
    assert torch.equal(fixed(x), block.solve(x, method="rk4", dt=0.5).x)
    assert "dt=0.5" in str(fixed)


def test_weights_are_shared():
    block, x = make(), torch.randn(4, 2)
    fixed = block.with_options(method="rk4", dt=0.5)
    assert all(a is b for a, b in zip(fixed.parameters(), block.parameters(), strict=True))
    before = block(x)
    fixed(x).sum().backward()
    torch.optim.SGD(fixed.parameters(), lr=0.1).step()
    assert not torch.equal(block(x), before)
    assert fixed.double()(x.double()).dtype == block(x.double()).dtype == torch.float64


def test_hooks_and_children_of_one_are_not_those_of_the_other():
    block = make()
    fixed = block.with_options(dt=0.5)
    fixed.register_forward_hook(lambda *_: pytest.fail("a hook of the other block"))
    fixed.more = nn.Linear(1, 1)
    block(torch.randn(1, 2))
    assert "more" not in dict(block.named_children())


def test_settings_are_checked_as_by_the_constructor():
    with pytest.raises(ncode.InputError, match='did you mean "rtol"'):
        make().with_options(rtoll=1e-3)
    with pytest.raises(ncode.InputError, match="give a step size dt"):
        make().with_options(method="rk4")
    with pytest.raises(ncode.InputError, match="no block"):
        Empty((1, 6, 6), classes=2).with_options(dt=0.1)


def test_all_blocks_of_a_model_change_and_the_model_itself_stays():
    model, images = classifier(), torch.rand(3, 1, 6, 6)
    fixed = model.with_options(method="euler", dt=0.5)
    assert type(fixed) is Classifier
    assert fixed.block.settings.options.method == "euler"
    assert model.block.settings.options.method == "dopri5"
    assert fixed.readout is model.readout
    torch.testing.assert_close(fixed(images), model.classify(images, method="euler", dt=0.5).logits)


def autoencoder():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(4, 36), nn.Sigmoid(), nn.Unflatten(1, (1, 6, 6)))
    return AutoNCODE(encoder, decoder, width=8, latent=4, nonzeros=2, norm="l2", start="stored", seed=3)


SAVED = {
    "a block": (make, lambda: (torch.randn(3, 2),)),
    "a classifier": (classifier, lambda: (torch.rand(3, 1, 6, 6),)),
    "AutoN-CODE": (autoencoder, lambda: (torch.rand(3, 1, 6, 6),)),
    "a memory": (lambda: PlasticMemory(5, solver_steps=3), lambda: (torch.randn(3, 2, 5), torch.randn(3, 5))),
}


@pytest.mark.parametrize("changes", [{}, {"method": "euler", "dt": 0.25}, {"method": "bosh3", "dt": None, "t1": 0.7}])
@pytest.mark.parametrize("name", SAVED)
def test_a_saved_model_keeps_its_options(name, changes, tmp_path):
    pytest.importorskip("safetensors")
    make, inputs = SAVED[name]
    model, given = make().with_options(**changes).eval(), inputs()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.block.settings == model.block.settings if name != "a block" else again.settings == model.settings
    assert torch.equal(again(*given), model(*given))
