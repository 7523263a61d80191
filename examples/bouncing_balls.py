"""Bouncing balls: events with gradients
=====================================

A thousand balls with gravity, height and restitution of their own bounce five times each, in one solve. Every bounce is
an event that turns the speed around. Its time has exact gradients, also through the bounces before it. So the
restitution of each ball can be found from the time of its last bounce alone, by Newton's method.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# The state is (height, speed), the control (gravity, restitution). The event: the height falls through 0.


def fall(t, x, theta):
    return torch.stack([x[:, 1], -theta[0]], 1)


def turn(t, x, theta):
    return torch.stack([torch.zeros_like(x[:, 0]), -theta[1] * x[:, 1]], 1)


def solve(gravity, height, restitution, **options):
    ground = ncode.Event(lambda t, x, theta: x[:, 0], direction=-1, reset=turn, max_count=5)
    x0 = torch.stack([height, torch.zeros_like(height)], 1)
    return ncode.solve(fall, x0, 0.0, 100.0, theta=(gravity, restitution), events=ground, rtol=1e-6, **options)


torch.manual_seed(0)
numbers = torch.rand(3, 1000, dtype=torch.float64)
gravity, height, restitution = 9 + numbers[0], 1 + numbers[1], 0.6 + 0.3 * numbers[2]
sol = solve(gravity, height, restitution, dense=True)

# %%
# Newton's method for all balls at once, from a restitution of 0.5.

guess, errors = torch.full_like(gravity, 0.5, requires_grad=True), []
for _ in range(8):
    errors.append((guess - restitution).abs().detach())
    last = solve(gravity, height, guess).events[0].ts[:, -1]
    (slope,) = torch.autograd.grad(last.sum(), guess)
    guess = (guess - (last - sol.events[0].ts[:, -1]) / slope).detach().requires_grad_()
print(f"largest error of a restitution after {len(errors) - 1} iterations: {errors[-1].max():.1e}")

# %%
# Left: three of the balls; the dots are the times of the events. Right: all of them.

times = torch.linspace(0, 4, 800, dtype=torch.float64)
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2), width_ratios=[3, 2], layout="constrained")
for path, bounces, colour in zip(sol(times)[:3], sol.events[0].ts[:3], ("#006ba4", "#c85200", "0.5"), strict=True):
    left.plot(times, path[:, 0], color=colour)
    left.plot(bounces, 0 * bounces, "o", color=colour, clip_on=False)
left.set(xlim=(0, 4), ylim=(0, 2), xlabel="time", ylabel="height", title="five bounces each\n")
right.semilogy(torch.stack(errors)[:, :200].clamp_min(1e-17), color="#006ba4", linewidth=0.3, alpha=0.4)
right.semilogy([error.max() for error in errors], "o-", color="black", markersize=4)
right.set(xlabel="iteration", title="error of the restitution\n(black: largest of all balls)")
plt.show()
