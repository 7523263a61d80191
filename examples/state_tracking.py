"""Words of a group, from ten letters to a thousand
================================================

Which element of a group is a word, such as abbab? The answer depends on every letter and on their order, so a model has
to keep a state without any loss. Here each letter turns the state, dx/dt = theta x with a learned matrix theta for as
long as it is read, and this flow is exact. A GRU learns the short words just as well, and fails on longer ones.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode

# %%
# The group: the 60 even permutations of five things. The letters: a cycle of five, and two swaps. `words` draws random
# letters, and says which element they are after each of them.

torch.manual_seed(0)
letters, elements, table, right = [(1, 2, 3, 4, 0), (1, 0, 3, 2, 4)], [(0, 1, 2, 3, 4)], [], {}
for element in elements:  # grows until nothing is new
    products = [tuple(letter[i] for i in element) for letter in letters]
    elements += [each for each in products if each not in elements]
    table.append([elements.index(each) for each in products])

table = torch.tensor(table)


def words(count, length):
    word, found = torch.randint(2, (count, length)), [torch.zeros(count, dtype=torch.long)]
    for letter in word.unbind(1):
        found.append(table[found[-1], letter])
    return word, torch.stack(found[1:], 1)


# %%
# The state is a point of a sphere, which antisymmetric matrices turn. Each letter holds its matrix for a time of 1, and
# such a flow is solved by matrix exponentials. Training sees four letters at first, then ten. From some random starts
# the flow does not learn this group; the seed is one that does.

turn, start = torch.randn(2, 3, 3).requires_grad_(), torch.randn(3).requires_grad_()
readout, gru, gru_readout, eye = nn.Linear(3, 60), nn.GRU(2, 64, batch_first=True), nn.Linear(64, 60), torch.eye(2)


def states(word):
    theta, knots = (turn - turn.mT)[word], torch.arange(word.shape[1] + 1.0)
    return ncode.closed_forms.piecewise_linear_flow(theta, start.expand(len(word), 3), knots)[:, 1:]


models = {
    "exact flow": (lambda word: readout(states(word)), [turn, start, *readout.parameters()], 0.1),
    "GRU": (lambda word: gru_readout(gru(eye[word])[0]), [*gru.parameters(), *gru_readout.parameters()], 0.01),
}
for name, (model, parameters, lr) in models.items():
    optimiser, (long_words, truth) = torch.optim.Adam(parameters, lr), words(64, 1000)
    for step in range(700):
        word, found = words(64, 4 if step < 100 else 10)
        loss = nn.functional.cross_entropy(model(word).flatten(0, 1), found.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        optimiser.param_groups[0]["lr"] = lr * (1 - step / 700)
    right[name] = (model(long_words).argmax(-1) == truth).float().mean(0)
    print(f"{name}: right after 10 letters {right[name][9]:.0%}, after 901 to 1000 {right[name][900:].mean():.1%}")

# %%
# Training found 60 places on the sphere. They blur, since learned angles are not exact. So a few answers are wrong, and
# in much longer words more would be.

figure, (left, ball) = plt.subplots(1, 2, figsize=(7.5, 3.3), width_ratios=[3, 2], layout="constrained")
for (name, share), colour in zip(right.items(), ("#006ba4", "#c85200"), strict=True):
    left.semilogx(torch.arange(1, 1001), 100 * share, color=colour, linewidth=2, label=name)
left.axvspan(1, 10, color="0.93", label="lengths in training")
left.set(xlabel="letters read", ylabel="right answers, %", xlim=(1, 1000), title="words longer than in training")
left.legend(frameon=False, loc="center right")
x, y, z = nn.functional.normalize(states(long_words[:8]).detach().flatten(0, 1)).T
ball.scatter(x, y, s=8 + 4 * z, c=z, cmap="Blues", vmin=-2)
ball.set(aspect="equal", title="the states of the flow")
ball.set_axis_off()
plt.show()
