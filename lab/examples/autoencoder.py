"""AutoN-CODE with an encoder and a decoder of your own, in a training loop of your own, on MNIST.

The encoder sets the couplings of a linear system, and where that system has come to is the code. The picture shows what
the states on the way decode to, and images that were drawn from a mixture of Gaussians fitted to the codes.

    python lab/examples/autoencoder.py
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from ncode_lab.data import load
from ncode_lab.metrics import GaussianMixture
from torch import Tensor, nn

from ncode.models import AutoNCODE

LATENT, SHOWN = 16, 8


def coders() -> tuple[nn.Module, nn.Module]:
    """Images to features (batch, 256), and codes to images between 0 and 1."""
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 256),
        nn.ReLU(),
    )
    decoder = nn.Sequential(
        # Ends of flows lie close to one another: the decoder sees them with mean 0 and deviation 1.
        nn.BatchNorm1d(LATENT, affine=False),
        nn.Linear(LATENT, 256),
        nn.ReLU(),
        nn.Linear(256, 784),
        nn.Sigmoid(),
        nn.Unflatten(1, (1, 28, 28)),
    )
    return encoder, decoder


def train(model: AutoNCODE, images: Tensor, steps: int) -> None:
    """Fit images, (n, 1, 28, 28)."""
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        loss = model.training_loss(images[torch.randint(len(images), (128,))]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


@torch.no_grad()
def draw(model: AutoNCODE, images: Tensor, components: int) -> Figure:
    """Orbits, the images that drive them, and samples."""
    orbits = model.trajectory(images[:SHOWN], torch.linspace(0, 10, 11))
    rows = model.decode(orbits.flatten(0, 1)).unflatten(0, orbits.shape[:2])
    codes = model.encode(images)
    mean, deviation = codes.mean(0), codes.std(0)
    mixture = GaussianMixture(components).fit((codes - mean) / deviation)
    samples = model.decode(mean + deviation * mixture.sample(SHOWN * 11).float()).unflatten(0, (SHOWN, 11))

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=[11, 1, 11])
    titles = ("states on the way, t = 0 to 10", "truth", "samples")
    for panel, title, shown in zip(panels, titles, (rows, images[:SHOWN, None], samples), strict=True):
        # (rows, columns, 1, 28, 28) as one picture.
        panel.imshow(shown[:, :, 0].permute(0, 2, 1, 3).flatten(2).flatten(0, 1).numpy(), cmap="gray_r", vmin=0, vmax=1)
        panel.set_title(title, fontsize="medium")
        panel.set_axis_off()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description="Train AutoN-CODE with coders of your own, and draw what it does.")
    parser.add_argument("--steps", type=int, default=1500, help="training steps")
    parser.add_argument("--components", type=int, default=50, help="of the mixture that samples are drawn from")
    parser.add_argument("--data", default=None, help="folder of data; where MNIST is found nowhere it is downloaded")
    parser.add_argument("--drawn", action="store_true", help="where MNIST is not found, draw digits instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    sets = load("mnist", args.data, fallback=args.drawn)
    images, test = (each.images.float() / 255 for each in (sets.train, sets.test))
    model = AutoNCODE(*coders(), width=256, latent=LATENT, loss="bce")
    train(model, images, args.steps)
    model.eval()
    with torch.no_grad():
        error = (model(test) - test).square().mean()
    print(f"{sets.name}: mean squared error of test images {float(error):.4f}")

    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "autoencoder.png"
    draw(model, test[:2000], args.components).savefig(path, dpi=100)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
