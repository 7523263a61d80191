"""AutoN-CODE with an encoder and a decoder of your own
====================================================

An autoencoder whose code is where a flow ends: the encoder sets the couplings theta of a linear system dx/dt = theta x,
which starts from the same state for all images. The states on the way can be decoded, too, and show how an image
emerges. Any modules serve as encoder and decoder, and any images between 0 and 1.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode

# %%
# The images: discs, rings and bars of random place, size and angle, on 16 x 16 pixels.

torch.manual_seed(0)
SIDE = 16


def draw(count):
    at, numbers = torch.linspace(-1, 1, SIDE), torch.rand(4, count, 1, 1)
    x, y = at[None, None, :] + 0.8 * numbers[0] - 0.4, at[None, :, None] + 0.8 * numbers[1] - 0.4
    angle, size, radius = torch.pi * numbers[2], 0.3 + 0.2 * numbers[3], (x * x + y * y).sqrt()
    across, along = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    bar = torch.maximum(across.abs() - 0.12, along.abs() - 1.5 * size)
    distance = torch.stack([radius - size, (radius - size).abs() - 0.12, bar])  # to the shape; below 0 inside
    return torch.sigmoid(-20 * distance[torch.arange(count) % 3, torch.arange(count)])[:, None]


# %%
# The model is told the number of features of the encoder and the size of the code. The ends of flows lie close to one
# another, so the decoder begins with a normalisation.

encoder = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 128), nn.ReLU())
layers = [nn.BatchNorm1d(24, affine=False), nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, SIDE**2), nn.Sigmoid()]
decoder = nn.Sequential(*layers, nn.Unflatten(1, (1, SIDE, SIDE)))
model = ncode.models.AutoNCODE(encoder, decoder, width=128, latent=24, loss="bce")

images, test, steps = draw(6000), draw(300), 800
optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
for step in range(steps):
    loss = model.training_loss(images[torch.randint(len(images), (64,))]).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    optimiser.param_groups[0]["lr"] = 4e-3 * (1 - step / steps)

model.eval()
with torch.no_grad():
    unexplained = float((model(test) - test).square().mean() / (test - test.mean(0)).square().mean())
    ts = torch.linspace(0, 10, 9)
    states = model.trajectory(test[:6], ts)
    decoded = model.decode(states.flatten(0, 1)).unflatten(0, states.shape[:2])[:, :, 0]
print(f"new images: {1 - unexplained:.1%} of the variance of pixels is reconstructed")

# %%
# One row per image: the decoded states of its flow, and the image itself, which training has not seen.

figure, panels = plt.subplots(6, 11, figsize=(7.5, 4.4), width_ratios=[1] * 9 + [0.2, 1], layout="constrained")
for row, flow, image in zip(panels, decoded, test[:, 0], strict=False):
    for panel, shown in zip(row, [*flow, None, image], strict=True):
        panel.set_axis_off()
        if shown is not None:
            panel.imshow(shown.numpy(), cmap="cividis", vmin=0, vmax=1)
for panel, title in zip(panels[0], [f"t = {t:.3g}" for t in ts] + ["", "image"], strict=True):
    panel.set_title(title, fontsize="small")
plt.show()
