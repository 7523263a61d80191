"""Bouncing balls with gravity, height and restitution of their own: five bounces each, in one solve.

Here the restitution of each ball is found from the time of its last bounce, by gradients through all events before it.

    python examples/bouncing_balls.py --balls 10000
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import ncode

BOUNCES = 5


def fall(t, x, theta):  # x is (height, speed), theta (gravity, restitution)
    return torch.stack([x[:, 1], -theta[0]], 1)


def turn(t, x, theta):  # the state after a bounce
    return torch.stack([torch.zeros_like(x[:, 0]), -theta[1] * x[:, 1]], 1)


def solve(gravity, height, restitution, **options):
    ground = ncode.Event(lambda t, x, theta: x[:, 0], direction=-1, reset=turn, max_count=BOUNCES)
    x0 = torch.stack([height, torch.zeros_like(height)], 1)
    return ncode.solve(fall, x0, 0.0, 100.0, theta=(gravity, restitution), events=ground, rtol=1e-6, **options)


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--balls", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("."))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    a, b, c = torch.rand(3, arguments.balls, dtype=torch.float64)
    gravity, height, restitution = 9 + a, 1 + b, 0.6 + 0.3 * c
    measured = solve(gravity, height, restitution).events[0].ts  # (balls, BOUNCES)
    guess = torch.full_like(gravity, 0.5, requires_grad=True)
    for _ in range(8):  # Newton's method on the time of the last bounce
        last = solve(gravity, height, guess).events[0].ts[:, -1]
        (slope,) = torch.autograd.grad(last.sum(), guess)
        guess = (guess - (last - measured[:, -1]) / slope).detach().requires_grad_()
    print(f"{arguments.balls} balls, largest error of a restitution: {(guess - restitution).abs().max():.1e}")

    times = torch.linspace(0, 4, 800, dtype=torch.float64)
    few = solve(gravity[:3], height[:3], restitution[:3], dense=True)
    axes = (figure := Figure(figsize=(7, 3))).subplots()
    axes.set(xlim=(0, 4), ylim=(0, 2), xlabel="time", ylabel="height")
    for path, bounces in zip(few(times)[:, :, 0], few.events[0].ts, strict=True):
        colour = axes.plot(times, path)[0].get_color()
        axes.plot(bounces, 0 * bounces, "o", color=colour, clip_on=False)
    figure.savefig(arguments.out / "bouncing_balls.png", dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
