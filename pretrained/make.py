"""Train the models of this folder, on one CPU core in minutes: python pretrained/make.py NAME [--data FOLDER].

reflection and annuli need the library alone; the MNIST models need the data, found as by the command `ncode` (from the
package in lab/): in --data, in the folder that NCODE_DATA names, in the cache, or by a download.
"""

import argparse
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import ncode
from ncode.control import Feedback
from ncode.dynamics import MLP, Augmented, ConvBlock
from ncode.models import AutoNCODE, Classifier, gamma

FOLDER = Path(__file__).parent
DIGITS = 50  # test images that are kept in digits.safetensors


def trunk(dim, width):
    return nn.Sequential(nn.Linear(dim, width), nn.Tanh())


def train(model, batches, loss, steps, lr):
    """Adam with a learning rate that rises and falls; `batches` yields one batch per step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=steps)
    for step, batch in zip(range(steps), batches, strict=False):
        value = loss(model, *batch)
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {value.item():.5f}", flush=True)
    return model.eval()


def reflection():
    """x -> -x, which no neural ODE with one field for all samples can learn."""
    block = ncode.NCODE(
        MLP(1, hidden=8), ncode.ClosedLoop(Feedback(trunk(1, 16)), initial=ncode.OpenLoop(trunk(1, 16)))
    )
    batches = ((torch.rand(256, 1) * 2 - 1,) for _ in range(10**9))
    train(block, batches, lambda model, x: F.mse_loss(model(x), -x), steps=600, lr=0.02)
    x = torch.linspace(-1, 1, 201)[:, None]
    with torch.no_grad():
        error = F.mse_loss(block(x), -x).item()
    return block, {
        "Task": "x -> -x for a number x between -1 and 1; `model(x)` with x (batch, 1)",
        "Score": f"mean squared error {error:.1e} on 201 numbers from -1 to 1",
    }


def ring(count, low, high, generator=None):
    """Points between two circles, uniform by area; without a generator, on a grid."""
    if generator is None:
        radius, angle = torch.meshgrid(
            torch.linspace(low, high, count), torch.arange(64) * math.tau / 64, indexing="ij"
        )
    else:
        radius = (low**2 + (high**2 - low**2) * torch.rand(count, generator=generator)).sqrt()
        angle = math.tau * torch.rand(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1).reshape(-1, 2)


def annuli():
    """A disc and the annulus around it: the first coordinate at t1 is negative for the disc."""
    block = ncode.NCODE(MLP(2, hidden=6), ncode.OpenLoop(trunk(2, 16), scale=0.5))
    generator = torch.Generator().manual_seed(0)
    sign = torch.cat([-torch.ones(100), torch.ones(100)])

    def batches():
        while True:
            yield (torch.cat([ring(100, 0.0, 0.5, generator), ring(100, 1.0, 1.5, generator)]),)

    train(block, batches(), lambda model, x: F.softplus(-5 * sign * model(x)[:, 0]).mean(), steps=600, lr=0.02)
    with torch.no_grad():
        inner, outer = block(ring(16, 0.0, 0.5))[:, 0] < 0, block(ring(16, 1.0, 1.5))[:, 0] > 0
    right = int(inner.sum() + outer.sum())
    return block, {
        "Task": "a disc of radius 0.5 and the annulus from 1 to 1.5: `model(x)[:, 0] < 0` for points of the disc",
        "Score": f"{right} of {len(inner) + len(outer)} points right, on 16 circles in each of the two regions",
    }


def mnist(folder):
    from ncode_lab.data import load

    return load("mnist", folder)


def shuffled(*tensors, size):
    while True:
        for rows in torch.randperm(len(tensors[0])).split(size)[:-1]:
            yield tuple(tensor[rows] for tensor in tensors)


def mnist_classifier(data):
    """The kernels of a convolution block are set by the digit that flows through it."""
    pixels, test = data.train.images / 255, data.test
    f = Augmented(ConvBlock(1 + 5, filters=16), zeros=5)
    block = ncode.NCODE(f, ncode.OpenLoop(gamma("conv", (1, 14, 14))), method="rk4", dt=1.0, gradient="autograd")
    model = Classifier(block, (1, 28, 28), shrink=2)
    model.set_normalisation(pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)))
    batches = shuffled(data.train.images, data.train.labels, size=100)
    train(model, batches, lambda model, x, y: F.cross_entropy(model(x), y), steps=1800, lr=6e-3)
    with torch.no_grad():
        right = torch.cat([model(images).argmax(1) for images in test.images.split(500)]) == test.labels
    return model, {
        "Task": "classify digits of MNIST",
        "Score": f"{right.float().mean():.2%} of the 10,000 test images; {int(right[:DIGITS].sum())} of the {DIGITS}"
        " in digits.safetensors",
    }


def mnist_autoncode(data):
    """An autoencoder of 784-200-25-200-784; the code is the end of a linear flow that the digit controls."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU())
    layers = nn.BatchNorm1d(25, affine=False), nn.Linear(25, 200), nn.ReLU(), nn.Linear(200, 784), nn.Sigmoid()
    decoder = nn.Sequential(*layers, nn.Unflatten(1, (1, 28, 28)))
    model = AutoNCODE(encoder, decoder, width=200, latent=25, loss="bce", norm="l2", gain=1.0, start="stored")
    batches = shuffled(data.train.images, size=100)
    train(model, batches, lambda model, x: model.training_loss(x / 255).loss, steps=6000, lr=5e-3)
    with torch.no_grad():
        errors = torch.cat([(model(x / 255) - x / 255).square().mean((1, 2, 3)) for x in data.test.images.split(500)])
    return model, {
        "Task": "digits of MNIST as codes of 25 numbers, and back",
        "Score": f"mean squared error {errors.mean():.4f} on the 10,000 test images;"
        f" {errors[:DIGITS].mean():.4f} on the {DIGITS} in digits.safetensors",
    }


def save(model, out, name, notes):
    """Write a model and its card, whose line loads it from the root of a clone."""
    notes = {**notes, "Made by": f"`python pretrained/make.py {name}`"}
    model.save_pretrained(out / name, notes, name=f"pretrained/{name}")


def main():
    models = {"reflection": reflection, "annuli": annuli}
    with_data = {"mnist-classifier": mnist_classifier, "mnist-autoncode": mnist_autoncode}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*models, *with_data])
    parser.add_argument("--data", help="a folder with the files of MNIST")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write the model's folder")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if given.name in models:
        model, notes = models[given.name]()
    else:
        data = mnist(given.data)
        model, notes = with_data[given.name](data)
        digits = {"images": data.test.images[:DIGITS].contiguous(), "labels": data.test.labels[:DIGITS].contiguous()}
        save_file(digits, given.out / "digits.safetensors")
    save(model, given.out, given.name, notes)
    print(notes["Score"])


if __name__ == "__main__":
    main()
