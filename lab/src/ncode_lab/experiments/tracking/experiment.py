"""Say which element of a group a word is, after training on short words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ncode import InputError

from ...data import Words, products, stream, words
from ...training import Column, Loss, Result, Task, Trial, TrialContext
from ..base import Experiment, Finished, Picture
from ..common import check_choices, check_not_negative, check_positive
from .models import MODELS, Model, Tracker, build_tracker

Group = Literal["a5", "s5", "parity", "mod7"]
GROUPS: tuple[Group, ...] = ("a5", "s5", "parity", "mod7")
LR = 0.02
RATES = {"diagonal": 0.03, "diagonal-wide": 0.003, "lstm": 0.005, "lstm-wide": 0.01}  # of the rivals
CLIP = 1.0  # largest norm of the gradients of an LSTM
HELD_OUT = 512  # words of the length in training, for evaluations
SPREAD = 1.0
_QUICK = {"steps": 1500, "rival_steps": 1500, "lengths": (20, 100, 1000)}
TOKENS_AT_ONCE = 50_000  # of all words together, in the evaluation of long words


@dataclass(frozen=True)
class Tracking(Experiment):
    """Read words of up to 16 letters, and say after each letter which element of the group they are; then go on.

    After training, words of the longest of `lengths` are drawn, and read from their first letter to their last.
    """

    name = "tracking"
    line = "words of groups, learnt from 16 letters and continued to 10,000 (not in the paper)"
    question = (
        "Each letter of a word is a permutation, and the word is their product. After each letter, which element of the"
        " group is it? The answer depends on every letter and on their order, so nothing may be forgotten. Models see"
        " words of up to 16 letters in training, and are then asked about words of up to 10,000. A letter controls a"
        " linear flow: with a skew matrix it turns the state and keeps its norm; with a positive diagonal, as in S4D"
        " and Mamba, the state fades. Chance is 1.7 % for A5, 0.8 % for S5, 50 % for parity and 14 % modulo 7."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {"groups": ("parity",), "steps": 4, "rival_steps": 4, "batch": 4, "lengths": (20, 100), "words": 8},
        "quick": {"groups": ("a5",), "models": ("skew", "diagonal", "lstm"), **_QUICK},
        "full": {},
    }
    columns = (
        Column("accuracy 16", "after 16, %", scale=100),
        Column("accuracy 20", "after 20, %", scale=100),
        Column("accuracy 100", "after 100, %", scale=100),
        Column("accuracy 1000", "after 1,000, %", scale=100),
        Column("accuracy 10000", "after 10,000, %", scale=100),
        Column("all letters", "all letters, %", scale=100),
    )

    groups: tuple[Group, ...] = GROUPS
    """Groups: the even (a5) and all (s5) permutations of five things, parity, and sums modulo 7."""
    models: tuple[Model, ...] = MODELS
    """Models to train."""
    states: int = 24
    """Elements of the state of skew, skew-blocks, skew-planes and dense; others have at least as many parameters."""
    block: int = 6
    """Size of the blocks of skew-blocks."""
    length: int = 16
    """Letters of the words in training. The first tenth of the steps has a quarter of them, the second half of them."""
    steps: int = 6000
    """Training steps of skew, skew-blocks, skew-planes and dense."""
    rival_steps: int = 12_000
    """Training steps of the other models."""
    batch: int = 64
    """Words per training step, all of them new."""
    lr: float = 0.0
    """Initial learning rate of Adam; it falls linearly to 0. Default: 0, for the one chosen for each model."""
    spread: float = SPREAD
    """Weight of the spread of states within elements, next to the cross-entropy, for all models."""
    lengths: tuple[int, ...] = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    """Lengths at which long words are scored, after training."""
    words: int = 250
    """Long words."""

    def __post_init__(self) -> None:
        check_choices("model", self.models, MODELS)
        check_choices("group", self.groups, GROUPS)
        check_positive(self, "states", "block", "length", "steps", "rival_steps", "batch", "lengths", "words")
        check_not_negative(self, "lr", "spread")
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise InputError(f"lengths must hold at least one length, and go up; given {self.lengths}")
        for model, block in (("skew-blocks", self.block), ("skew-planes", 2)):
            if model in self.models and (self.states % block or block < 2):
                raise InputError(
                    f"{model} needs states that are a multiple of its blocks, of at least 2; given states={self.states}"
                    f" for blocks of {block}"
                )

    @property
    def metrics(self) -> tuple[str, ...]:
        at = dict.fromkeys([f"accuracy {length}" for length in (self.length, *self.lengths)])
        return (*at, "all letters", "loss", "spread")

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        changed = f", spread {self.spread:g}" if self.spread != SPREAD else ""
        pairs = product(self.groups, self.models)
        return [Trial(model, f"{group}{changed}", seed, {"group": group}) for group, model in pairs for seed in seeds]

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        task = Track(self, trial)
        model = context.fit(task)
        assert isinstance(model, Tracker)
        context.save_model(model, build_tracker, **task.arguments)
        group, seed = trial.about["group"], trial.seed
        fresh = words(group, self.words, self.lengths[-1], generator=stream(seed, "long words", group))
        right = score(model, fresh.to(context.device))
        at = {f"accuracy {length}": float(right[length - 1]) for length in self.lengths}
        return {**context.final, **at, "all letters": float(right.mean())}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        return self.redraw([done.result for done in finished])

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """Accuracy against length, from result files."""
        from .figures import draw_lengths

        results = [result for result in results if any(name.startswith("accuracy ") for name in result.metrics)]
        return [Picture("lengths", draw_lengths(results), CAPTION)] if results else []


CAPTION = (
    "Right answers after the last letter, against the number of letters. Lines: means over seeds; bands: minimum to"
    " maximum. Grey: lengths in training. Dotted: chance."
)


class Track(Task):
    """One model, on words of one group."""

    def __init__(self, settings: Tracking, trial: Trial):
        self.settings, self.group = settings, trial.about["group"]
        self.steps = settings.rival_steps if trial.model in RATES else settings.steps
        elements, letters = products(self.group).shape
        sizes = {"states": settings.states, "block": settings.block}
        self.arguments = {"name": trial.model, "letters": letters, "elements": elements, **sizes}
        self.model: nn.Module = build_tracker(**self.arguments)
        self.elements = elements
        self.lr = settings.lr or RATES.get(trial.model, LR)
        self.clip = CLIP if trial.model.startswith("lstm") else 0.0
        self.evaluate_every = max(1, self.steps // 10)
        self.held_out = words(
            self.group, HELD_OUT, settings.length, generator=stream(trial.seed, "held out", self.group)
        )

    def batch(self, step: int, generator: torch.Generator) -> Words:
        return words(self.group, self.settings.batch, self.length_at(step), generator=generator)

    def length_at(self, step: int) -> int:
        """The length of the words of a step: short ones come first."""
        part = 4 if step < 0.1 * self.steps else 2 if step < 0.2 * self.steps else 1
        return max(1, self.settings.length // part)

    def loss(self, model: nn.Module, batch: Words) -> Loss:
        states, scores = model(batch.letters)
        entropy = F.cross_entropy(scores.flatten(0, 1), batch.elements.flatten())
        apart = spread(states, batch.elements, self.elements)
        right = (scores.detach().argmax(-1) == batch.elements).float().mean()
        return Loss(entropy + self.settings.spread * apart, {"accuracy": right, "spread": apart.detach()})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Scores on new words of the length in training: the only ones that settings were chosen by."""
        states, scores = model(self.held_out.letters)
        truth = self.held_out.elements
        return {
            f"accuracy {self.settings.length}": float((scores[:, -1].argmax(-1) == truth[:, -1]).double().mean()),
            "loss": float(F.cross_entropy(scores.flatten(0, 1), truth.flatten())),
            "spread": float(spread(states, truth, self.elements)),
        }

    def schedule(self, optimiser: Optimizer) -> LRScheduler:
        return LambdaLR(optimiser, lambda step: max(0.0, 1 - step / self.steps))

    def to(self, device: torch.device) -> None:
        self.held_out = self.held_out.to(device)


def spread(states: Tensor, elements: Tensor, count: int) -> Tensor:
    """The share of the variance of states (batch, K, m) that is within elements: 0 if equal words have equal states."""
    x, element = states.flatten(0, 1), elements.flatten()
    sums = x.new_zeros(count, x.shape[1]).index_add(0, element, x)
    means = sums / element.bincount(minlength=count).clamp(min=1)[:, None]
    return (x - means[element]).square().sum() / (x - x.mean(0)).square().sum()


@torch.no_grad()
def score(model: Tracker, long: Words) -> Tensor:
    """The share of right answers after each letter, (length,). Words are read part by part."""
    before, right = None, []
    size = max(1, TOKENS_AT_ONCE // len(long.letters))
    for letters, elements in zip(long.letters.split(size, 1), long.elements.split(size, 1), strict=True):
        states, before = model.states(letters, before)
        right.append((model.read_out(states).argmax(-1) == elements).double().mean(0))
    return torch.cat(right)
