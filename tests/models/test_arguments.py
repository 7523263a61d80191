"""Models refuse arguments and inputs that they cannot use with `InputError`."""

import pytest
import torch
from torch import nn

import ncode
from ncode.models import AutoNCODE, Classifier, ControlNorm, PlasticMemory, gamma


def classifier(shape=(3, 8, 8)):
    return Classifier(ncode.NCODE(ncode.dynamics.ConvBlock(3, filters=2)), shape)


def autoencoder(width=3, latent=4, **options):
    return AutoNCODE(nn.Identity(), nn.Identity(), width, latent, **options)


CASES = {
    "a number for a shape": (lambda: classifier(3), r"shape must be \(channels, height, width\)"),
    "a tensor for a shape": (lambda: classifier(torch.ones(3)), r"shape must be \(channels, height, width\)"),
    "an open shape": (lambda: classifier((3, None, 8)), r"shape must be \(channels, height, width\)"),
    "an endless shape": (lambda: classifier((3, 10**18, 8)), "the weights of the readout are too large"),
    "text for images": (lambda: classifier()("image"), "images must be a tensor; given 'image'"),
    "images without values": (lambda: classifier()(torch.zeros(2, 3, 8, 8, device="meta")), "meta device"),
    "a number for gamma's shape": (lambda: gamma("conv", 3), r"shape must be \(channels, height, width\)"),
    "an endless gamma": (lambda: gamma("linear", (3, 10**18, 4)), "the weights of gamma are too large"),
    "text for bits": (lambda: PlasticMemory("3"), "n must be a finite number"),
    "no steps": (lambda: PlasticMemory(3, solver_steps=0), "solver_steps must be at least 1"),
    "text for the diagonal": (lambda: PlasticMemory(3, hold="a"), "hold must be a finite number"),
    "a misspelt rule": (lambda: PlasticMemory(3, rule="dleta"), 'did you mean "delta"'),
    "no time for a query": (lambda: PlasticMemory(3, query_time=0.0), "query_time must be above 0"),
    "a number for a flag": (lambda: PlasticMemory(3, clamp=1), "clamp must be True or False"),
    "a query that does not fit": (
        lambda: PlasticMemory(3)(torch.ones(2, 6, 3), torch.ones(2, 4)),
        r"query \(batch, n\); given \(2, 6, 3\) and \(2, 4\)",
    ),
    "nothing for stimuli": (lambda: PlasticMemory(3)(None, None), "stimuli must be a tensor; given None"),
    "text for a width": (lambda: autoencoder("a"), "width must be a finite number"),
    "an endless code": (lambda: autoencoder(latent=10**400), "latent must be a finite number"),
    "text for a gain": (lambda: autoencoder(gain="x"), "gain must be a finite number"),
    "a number for costs": (lambda: autoencoder(costs=3), "costs must be a list"),
    "a number for terms": (lambda: autoencoder(terms=3), "terms must be a dict"),
    "a number for an encoder": (lambda: AutoNCODE(3, nn.Identity(), 3, 4), "encoder must be a module; given 3"),
    "text for an image": (lambda: autoencoder()("x"), "images must be a tensor; given 'x'"),
    "text for rows": (lambda: ControlNorm("l2", "a", 1), "m must be a finite number"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_model_cannot_use_is_refused(case):
    call, message = CASES[case]
    with pytest.raises(ncode.InputError, match=message):
        call()
