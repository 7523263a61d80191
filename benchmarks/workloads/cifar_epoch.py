"""A training step of the paper's CIFAR-10 classifier, and what an epoch of 50,000 images takes by it.

The whole model: gamma (convolutional, as in our experiments), the block with 50 filters and 10 extra channels, the
linear read-out, cross-entropy, backward and Adam; dopri5 at rtol = atol = 1e-3. All rows have the same weights, random
images and labels. Adam's rate is 0: it does all its work and leaves the weights, so every step of every row solves the
same problem, that of the first step of a training.

"as the paper writes it" has theta in the state, with zero derivative, and torchdiffeq's adjoint; "backprop" leaves
theta out of the state. Both may write the convolutions in every way that torch offers, grouped ones first.
`torchdiffeq + ncode` is given our `ConvBlock`.

**TF32.** On CUDA all rows may round the factors of products to TF32, as our experiments do; none may with `--no-tf32`.

**Memory** is that of batch 512 in its first two steps, beyond weights and images, so that what a compiled solve keeps
for its CUDA graphs counts. On a CPU it is not measured. Compiled rows compile again for it, and go without where that
would take the workload beyond a minute and a half.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ncode import NCODE, OpenLoop
from ncode.dynamics import Augmented, ConvBlock
from ncode.models import Classifier, ClassifierOutput, gamma

from ..contest import Aim, Contest, Entry, Nfe, Outcome, Runner, Settings, synchronise
from ..libraries.ours import ROWS
from ..measure import Row
from ..memory import peak_bytes
from .convolutions import TORCH

TITLE = (
    "CIFAR-10 classifier, a training step: batch 256, 3 x 32 x 32, memory at batch 512 (a CPU: batch 8, 3 x 16 x 16)"
)
PAPER = "as the paper writes it"
AIMS = (Aim("", "torchdiffeq", 0.2, "cuda", row=PAPER), Aim("", "torchdiffeq", 1.0, "cuda"))
IMAGES, TOLERANCE, MEMORY_BATCH = 50_000, 1e-3, 512
LATEST = 70.0  # seconds into the workload: no compilation for memory begins later
FORMULATIONS = {"grouped": TORCH["grouped"], **TORCH}  # what `--no-search` takes comes first
Step = tuple[Tensor, Tensor]
Say = Callable[[Tensor], tuple[Tensor, Callable[[], Nfe]]]  # of images: logits, and once backward has run, the counts


@dataclass(frozen=True, eq=False)
class Problem:
    """Images, labels and sizes. Weights are drawn from the seed whenever they are needed."""

    images: Tensor  # uint8
    labels: Tensor
    batch: int
    filters: int
    seed: int
    device: str
    tf32: bool
    began: float

    @property
    def side(self) -> int:
        """Of an image, in pixels."""
        return self.images.shape[-1]

    def classifier(self, **solver: Any) -> Classifier:
        """The model with the weights that all rows start from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = build(self.side, self.filters, **solver)
        # Uniform noise has mean 1/2 and variance 1/12.
        return model.set_normalisation(torch.full((3,), 0.5), torch.full((3,), 12**-0.5)).to(self.device)


def build(side: int, filters: int, **solver: Any) -> Classifier:
    """The classifier of `ncode run classification`, for colour images; a test of the lab compares the two."""
    kernels = ("conv_in", "conv_3x3", "conv_out")
    f = Augmented(ConvBlock(3 + 10, filters, controlled=kernels), zeros=10)
    controller = OpenLoop(gamma("conv-pool", (3, side, side), 10), scale=0.1)
    options: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE, "max_steps": 1000, **solver}
    return Classifier(NCODE(f, controller, **options), (3, side, side), 10)


def contest(settings: Settings) -> Contest:
    """Everyone on the same problem."""
    problem = draw(settings)
    entries, skipped = _ours(problem, settings), {}
    if settings.peers is None or "torchdiffeq" in settings.peers:
        try:
            entries += _torchdiffeq(problem, settings)
        except ModuleNotFoundError as missing:
            skipped["torchdiffeq"] = f"{missing.name} is not installed"
    size = [3, problem.side, problem.side]
    about = {"batch": problem.batch, "image": size, "tf32": problem.tf32, "memory_batch": MEMORY_BATCH}
    columns: dict[str, Any] = {"loss": lambda row, rows: row.loss, "/ paper": _over_paper}
    if problem.side == 32:
        columns["epoch, s"] = lambda row, rows: row.seconds * IMAGES / problem.batch
    return Contest(entries, reference(problem), AIMS, skipped, columns=columns, about=about, patience=1.0)


def draw(settings: Settings) -> Problem:
    """Noise, as uint8, and labels."""
    cuda = settings.device == "cuda"
    batch, side, filters = (2, 8, 10) if settings.quick else (256, 32, 50) if cuda else (8, 16, 50)
    generator = torch.Generator().manual_seed(settings.seed)
    count = max(batch, MEMORY_BATCH) if cuda else batch
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    on = images.to(settings.device), labels.to(settings.device)
    return Problem(*on, batch, filters, settings.seed, settings.device, cuda and settings.tf32, time.perf_counter())


def reference(problem: Problem) -> Outcome:
    """A tight solve in float64; tighter would only be slower, since relu has kinks."""
    model = problem.classifier(rtol=1e-6, atol=1e-6).double()
    logits = model(problem.images[: problem.batch])
    loss = F.cross_entropy(logits, problem.labels[: problem.batch])
    loss.backward()
    return read(model, (loss.detach(), logits.detach()))


def read(model: nn.Module, result: Step) -> Outcome:
    """Loss, gradients of all weights, and logits for the state."""
    loss, logits = result
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return Outcome(float(loss), [grad.double().cpu() for grad in grads], logits.double().cpu())


def _over_paper(row: Row, rows: Sequence[Row]) -> float | None:
    paper = [other.seconds for other in rows if other.entry.label == PAPER]
    return row.seconds / paper[0] if paper else None


def _ours(problem: Problem, settings: Settings) -> list[Entry]:
    """The usual rows."""

    def build(how: dict[str, Any]) -> tuple[nn.Module, Say]:
        model = problem.classifier(**how)

        def say(images: Tensor) -> tuple[Tensor, Callable[[], Nfe]]:
            answer = model.classify(images)
            return answer.logits, functools.partial(_count, answer)

        return model, say

    return [
        Entry("ncode", label, {"ConvBlock": _runner(problem, functools.partial(build, how), bool(how.get("compile")))})
        for label, how in ROWS.items()
        if settings.compile or not how.get("compile")
    ]


def _count(answer: ClassifierOutput) -> Nfe:
    forward = answer.nfe.double()
    return Nfe(float(forward.mean()), float(forward.max()), float(answer.nfe_backward.double().mean()))


def _torchdiffeq(problem: Problem, settings: Settings) -> list[Entry]:
    """The paper's way, and the better one: theta outside, and backpropagation."""
    from ..libraries.torchdiffeq_classifier import ClassifierByTorchdiffeq

    def build(field: Any, in_state: bool) -> tuple[nn.Module, Say]:
        model = ClassifierByTorchdiffeq(problem.classifier(), field, in_state, TOLERANCE)

        def say(images: Tensor) -> tuple[Tensor, Callable[[], Nfe]]:
            model.calls = 0
            logits = model(images)
            forward = model.calls
            return logits, lambda: Nfe(forward, backward=model.calls - forward)

        return model, say

    def row(label: str, fields: dict[str, Any], in_state: bool = False, library: str = "torchdiffeq") -> Entry:
        builds = {name: functools.partial(build, field, in_state) for name, field in fields.items()}
        compiled = label.endswith("compiled")
        return Entry(library, label, {name: _runner(problem, it, compiled) for name, it in builds.items()})

    rows = [row(PAPER, FORMULATIONS, in_state=True), row("backprop", FORMULATIONS)]
    if settings.compile:
        rows.append(row("backprop, f compiled", {"products": torch.compile(TORCH["products"])}))
    return [*rows, row("backprop", {"ConvBlock": None}, library="torchdiffeq + ncode")]


def _runner(problem: Problem, build: Callable[[], tuple[nn.Module, Say]], compiled: bool) -> Callable[[], Runner]:
    """How to make a row's training step, with weights of its own."""
    on = functools.partial(tensor_cores, problem.tf32, problem.device)

    def make() -> Runner:
        model, say = build()
        step = _step(problem, model, say, problem.batch)

        def memory() -> int | None:
            if problem.device != "cuda" or (compiled and time.perf_counter() - problem.began > LATEST):
                return None
            larger = _step(problem, *build(), MEMORY_BATCH)
            return peak_bytes(lambda: (larger(), larger()), problem.device)

        def run() -> Step:
            return step()[0]

        return Runner(on()(run), functools.partial(read, model), on()(lambda: step()[1]()), on()(memory))

    return make


def _step(problem: Problem, model: nn.Module, say: Say, batch: int) -> Callable[[], tuple[Step, Callable[[], Nfe]]]:
    images, labels = problem.images[:batch], problem.labels[:batch]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.0)

    def step() -> tuple[Step, Callable[[], Nfe]]:
        optimiser.zero_grad()
        logits, count = say(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimiser.step()
        synchronise(problem.device)
        return (loss.detach(), logits.detach()), count

    return step


@contextlib.contextmanager
def tensor_cores(enabled: bool, device: str) -> Iterator[None]:
    """Whether products on CUDA may round their factors to TF32, as in our experiments."""
    if device != "cuda":
        yield
        return
    before: Any = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    torch.backends.cudnn.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
