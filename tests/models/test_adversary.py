"""A critic beside an autoencoder: how hard it pulls, where to, and what it learns."""

import pytest
import torch
from torch.nn.functional import avg_pool2d, mse_loss

import ncode
from ncode.models.adversary import Adversary
from ncode.models.autoencoder_family import KINDS, Plan, build_autoencoder


def photographs(count=8, seed=0):
    """Smooth images with some grain."""
    generator = torch.Generator().manual_seed(seed)
    grain = torch.rand(count, 3, 40, 40, generator=generator)
    return (0.5 + 3 * (avg_pool2d(grain, 9, 1) - 0.5) + 0.3 * (grain[..., 4:-4, 4:-4] - 0.5)).clamp(0, 1)


def blurred(images):
    return avg_pool2d(images, 3, 1, 1)


def critic(weight=0.5, dtype=torch.float64):
    torch.manual_seed(0)
    return Adversary(3, weight, filters=8).to(dtype)


def trained(adversary, steps=60):
    optimiser = torch.optim.Adam(adversary.parameters(), 2e-3)
    for step in range(steps):
        images = photographs(seed=step)
        loss = adversary(blurred(images), images)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return adversary


@pytest.mark.parametrize("weight", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_it_pulls_as_hard_as_its_weight_says_however_sure_it_is(weight, scale):
    adversary, images = critic(weight), photographs().double()
    with torch.no_grad():
        adversary.critic[-1].weight.mul_(scale)
    back = blurred(images).requires_grad_()
    (pull,) = torch.autograd.grad(adversary(back, images), back)
    (error,) = torch.autograd.grad(mse_loss(back, images), back)
    torch.testing.assert_close(pull.norm(), weight * error.norm())


def test_it_pulls_towards_what_it_takes_for_images():
    adversary, images = critic(), photographs().double()
    back = blurred(images).requires_grad_()
    (slope,) = torch.autograd.grad(adversary(back, images), back)
    with torch.no_grad():
        before, after = (adversary.critic(x).mean() for x in (back, back - 1e-2 * slope / slope.norm()))
    assert after > before


def test_what_it_learns_is_the_gradient_of_its_hinge_loss_and_nothing_of_the_pull():
    adversary, images = critic(), photographs().double()
    back = blurred(images).requires_grad_()
    found = torch.autograd.grad(adversary(back, images), list(adversary.parameters()))
    hinge = torch.relu(1 + adversary.critic(back.detach())).mean() + torch.relu(1 - adversary.critic(images)).mean()
    torch.testing.assert_close(adversary(back, images), hinge)
    torch.testing.assert_close(found, torch.autograd.grad(hinge, list(adversary.parameters())))


def test_a_trained_one_tells_images_from_blurred_ones_it_has_not_seen_and_pulls_back_detail():
    adversary, images = trained(critic(dtype=torch.float32)), photographs(seed=1000)
    back = blurred(images).requires_grad_()
    with torch.no_grad():
        assert float(adversary.critic(images).mean()) > float(adversary.critic(back.detach()).mean()) + 0.5
    (slope,) = torch.autograd.grad(adversary(back, images), back)
    detail = (back - blurred(back)).detach()
    assert float((-slope * detail).sum() / slope.norm() / detail.norm()) > 0.03


def test_images_that_came_back_whole_are_left_alone():
    images = photographs().double()
    back = images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic()(back, images), back)
    assert not slope.any()


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_has_one_where_asked_for_and_reports_its_loss(kind):
    images = photographs(4)
    torch.manual_seed(0)
    model = build_autoencoder(kind, Plan("cifar10", width=0.05, adversary=0.3))
    found = model.judge(images)
    found.loss.backward()
    assert float(found.parts["adversary"]) > 0
    learned = [each for each in model.parameters() if each.requires_grad]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in learned)
    assert "adversary" not in build_autoencoder(kind, Plan("cifar10", width=0.05)).judge(images).parts


def test_under_autocast_the_loss_is_in_single_precision():
    model = build_autoencoder("ae", Plan("cifar10", width=0.05, adversary=1.0))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.judge(photographs(4)).loss
    loss.backward()
    assert loss.dtype == torch.float32


@pytest.mark.parametrize(("weight", "filters", "sentence"), [(0.0, 8, "above 0; given 0"), (1.0, 6, "multiple of 4")])
def test_settings_that_make_no_sense_are_refused(weight, filters, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        Adversary(3, weight, filters)
