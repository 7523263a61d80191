"""A classifier of your own images
================================

One block of convolutions whose kernels depend on the image, and a linear read-out: the paper's classifier, on images
that this script draws.
"""

import time
import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode

torch.manual_seed(0)
NAMES, SIDE = ("disc", "ring", "square", "cross"), 12


def draw(count):
    at, numbers = torch.linspace(-1, 1, SIDE), torch.rand(4, count, 1, 1)
    x, y = at[None, None, :] + 0.8 * numbers[0] - 0.4, at[None, :, None] + 0.8 * numbers[1] - 0.4
    angle, size, radius = torch.pi * numbers[2], 0.35 + 0.2 * numbers[3], (x * x + y * y).sqrt()
    u, v = (x * angle.cos() + y * angle.sin()).abs(), (y * angle.cos() - x * angle.sin()).abs()
    cross = torch.minimum(torch.maximum(u - 0.1, v - 1.3 * size), torch.maximum(v - 0.1, u - 1.3 * size))
    square = torch.maximum(u, v) - 0.9 * size
    distance = torch.stack([radius - size, (radius - size).abs() - 0.12, square, cross])
    labels = torch.arange(count) % 4
    images = torch.sigmoid(-20 * distance[labels, torch.arange(count)])[:, None]
    return (images + 0.2 * torch.randn_like(images)).clamp(0, 1), labels


shape = (1, SIDE, SIDE)
images, labels = draw(800)
test = draw(400)
curves={}
for name in ("NODE", "ANODE", "N-CODE open loop"):
    zeros=3
    f = ncode.dynamics.ConvBlock(1 + zeros, filters=8)
    f = ncode.dynamics.Augmented(f, zeros=zeros)
    controller = ncode.OpenLoop(ncode.models.gamma("conv", shape)) if "N-CODE" in name else ncode.Static()
    model = ncode.models.Classifier(ncode.NCODE(f, controller, method="rk4", dt=0.5, gradient="autograd"), shape, classes=4)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    t=time.process_time()
    acc=[]
    for step in range(120):
        rows = torch.randint(len(images), (64,))
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimiser.zero_grad(); loss.backward(); optimiser.step()
        if step%20==19:
            with torch.no_grad(): acc.append((model(test[0]).argmax(1)==test[1]).float().mean().item())
    print(name, time.process_time()-t, acc)
plt.imshow(images[:40,0].unflatten(0,(4,10)).permute(0,2,1,3).flatten(2).flatten(0,1))
plt.show()
