"""An associative memory of fast weights
=====================================

Five patterns are shown once each, then half of one of them: the memory has to complete it. Patterns are new in every
episode, so trained weights alone cannot know them. Here the coupling between two neurons grows while both are active,
dtheta/dt = mu x xᵀ (Hebb's rule), and training finds how fast: mu, and theta at the start, for each pair of neurons.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# Training uses random bits. The letters of the picture are never seen.

torch.manual_seed(0)
BITS, memory = 49, ncode.models.PlasticMemory(49)
optimiser = torch.optim.Adam(memory.parameters(), lr=0.005)


def episodes(count, patterns):
    """Patterns, a query in which half of the bits are 0, what it should give, and which bits are missing."""
    shown = torch.randint(2, (count, patterns, BITS)) * 2.0 - 1
    asked, missing = shown[:, 0], torch.rand(count, BITS).argsort(1) < BITS // 2
    return shown[:, torch.randperm(patterns)], asked * ~missing, asked, missing


for _ in range(150):
    shown, query, asked, _ = episodes(64, 5)
    loss = (memory(shown, query) - asked).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

# %%
# How many patterns does it hold? The sum of x xᵀ over the patterns, Hebb's rule without any training, holds nearly as
# many: for random bits there is little else to learn.

counts, errors = (1, 2, 3, 5, 8, 12, 16, 24), {"trained plastic N-CODE": [], "Hebb's rule, not trained": []}
for count in counts:
    shown, query, asked, missing = episodes(1000, count)
    with torch.no_grad():
        plain = torch.einsum("bpi,bpj,bj->bi", shown, shown, query)
        for name, found in zip(errors, (memory(shown, query), plain), strict=True):
            errors[name].append((found.sign() != asked)[missing].float().mean().item())
for name, error in errors.items():
    print(f"{name}: wrong missing bits with 5 patterns {error[3]:.1%}, with 24 patterns {error[-1]:.1%}")

# %%
# The five letters of N-CODE, stored in one episode, and recalled from their upper halves.

rows = {
    "N": "X.....X XX....X X.X...X X..X..X X...X.X X....XX X.....X",
    "C": "..XXXX. .X....X X...... X...... X...... .X....X ..XXXX.",
    "O": "..XXX.. .X...X. X.....X X.....X X.....X .X...X. ..XXX..",
    "D": "XXXXX.. X....X. X.....X X.....X X.....X X....X. XXXXX..",
    "E": "XXXXXXX X...... X...... XXXXX.. X...... X...... XXXXXXX",
}
letters = torch.tensor([[1.0 if bit == "X" else -1.0 for bit in row if bit != " "] for row in rows.values()])
query = letters.clone()
query[:, 28:] = 0
recalled = memory(letters.expand(5, 5, BITS), query).detach().sign()
wrong = int((recalled != letters).sum())
print(f"{wrong} of {letters.numel()} pixels of the letters are wrong")

figure = plt.figure(figsize=(7.5, 3.3), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[5, 4])
panels = left.subplots(3, 5)
for row, title, images in zip(panels, ("stored", "query", "recalled"), (letters, query, recalled), strict=True):
    row[0].set_ylabel(title)
    for panel, image in zip(row, images, strict=True):
        panel.imshow(image.reshape(7, 7).numpy(), cmap="cividis", vmin=-1, vmax=1)
        panel.set(xticks=[], yticks=[])
axes = right.subplots()
for (name, error), colour in zip(errors.items(), ("#006ba4", "#c85200"), strict=True):
    axes.plot(counts, [100 * each for each in error], "o-", color=colour, label=name)
axes.set(xlabel="patterns shown", ylabel="wrong bits, % of the missing", ylim=(-1, 20))
axes.legend(frameon=False, fontsize="small", loc="upper left")
plt.show()
