import pytest
import torch
from ncode_lab.training import Loss, RunError, RunOptions
from ncode_lab.training.devices import start_fabric
from ncode_lab.training.graph import WARM_UP, GraphedStep, error_location
from torch import nn

from ncode import InputError

from .tiny import Tiny, context_at

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


# What is refused.


def test_a_graph_on_the_cpu_is_refused():
    with pytest.raises(InputError, match="this run is on the CPU: leave it out"):
        start_fabric(RunOptions(device="cpu", graph=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2}, "works on one device, but 2 were requested"),
        ({"nodes": 3}, "works on one device, but 3 were requested"),
        ({"precision": "16"}, "choose --precision bf16, or leave --graph out"),
    ],
)
def test_a_graph_of_what_cannot_be_recorded_is_refused(monkeypatch, options, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(InputError, match=message):
        start_fabric(RunOptions(graph=True, **options))


def test_an_optimiser_that_counts_in_python_is_refused():
    optimiser = torch.optim.Adagrad([nn.Parameter(torch.zeros(2))])
    with pytest.raises(InputError, match="Adagrad cannot be part of a CUDA graph: use Adam"):
        GraphedStep(optimiser, torch.device("cuda"))


def test_an_error_is_placed_where_the_task_made_it_and_not_inside_of_torch():
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(2, 1)(torch.zeros(3, 5))
    assert error_location(caught.value).startswith("test_graph.py, line ")


# The bookkeeping, with a stand-in for CUDA: a graph that computes nothing while it is recorded, and when it is replayed
# runs again what was recorded, on the memory it was recorded with.


class Pretended:
    """The parts of torch.cuda that a graphed step uses."""

    def __init__(self):
        self.recording, self.again, self.replays = False, None, 0

    def take(self, compute):
        """A step, as CUDA would take it."""

        def step(batch):
            if not self.recording:
                return compute(batch)
            told = torch.zeros(())
            self.again = lambda: told.copy_(compute(batch).value)
            return Loss(told, {})

        return step

    def replay(self):
        self.replays += 1
        self.again()

    def wait_stream(self, other):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.recording = False

    def graph(self, graph, stream):
        self.recording = True
        return self


@pytest.fixture
def cuda(monkeypatch):
    pretended = Pretended()
    for name in ("Stream", "stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: pretended)
    monkeypatch.setattr(torch.cuda, "graph", pretended.graph)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    return pretended


def fitted(sizes, cuda=None, betas=None):
    """A line through points, fitted with batches of these sizes and a learning rate that falls."""
    torch.manual_seed(0)
    line = nn.Linear(2, 1)
    optimiser = torch.optim.AdamW(line.parameters(), lr=2.0**-5, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, 4, 0.5)

    def compute(batch):
        loss = (line(batch["x"]) - batch["scale"] * batch["x"].sum(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return Loss(loss.detach(), {})

    step = compute if cuda is None else GraphedStep(optimiser, torch.device("cpu"))
    losses = []
    for number, size in enumerate(sizes):
        if betas and number == betas[0]:
            optimiser.param_groups[0]["betas"] = betas[1]
        batch = {"x": torch.randn(size, 2), "scale": 2.0}
        losses.append(compute(batch).value if cuda is None else step(cuda.take(compute), batch).value)
        schedule.step()
    return torch.stack(losses), line, optimiser


@pytest.mark.parametrize(
    ("sizes", "betas", "replayed"),
    [
        ([4] * 12, None, 12 - WARM_UP),
        ([4] * 6 + [3] + [4] * 5, None, 11 - WARM_UP),  # a smaller batch is taken as it comes
        ([3] + [4] * 11, None, 11 - WARM_UP),  # and if it is the first, it is not the one recorded
        ([4] * 12, (8, (0.5, 0.9)), 8 - WARM_UP),  # so are steps of another optimiser than was recorded
    ],
)
def test_a_recorded_step_follows_batches_and_learning_rates(cuda, sizes, betas, replayed):
    losses, line, optimiser = fitted(sizes, cuda, betas)
    wanted, plain, other = fitted(sizes, betas=betas)
    assert cuda.replays == replayed
    torch.testing.assert_close(losses, wanted)
    torch.testing.assert_close(line.weight, plain.weight)
    # A checkpoint is that of a run without a graph.
    assert optimiser.state_dict()["param_groups"] == other.state_dict()["param_groups"]


def test_a_step_that_cannot_be_recorded_is_told_so_and_leaves_the_optimiser_as_it_was(cuda):
    optimiser = torch.optim.Adam([nn.Parameter(torch.zeros(2))], lr=0.1)

    def looks(batch):
        if cuda.recording:
            raise RuntimeError("called a synchronizing CUDA operation\nand more")
        return Loss(torch.zeros(()), {})

    step = GraphedStep(optimiser, torch.device("cpu"))
    for _ in range(WARM_UP):
        step(looks, torch.zeros(2))
    with pytest.raises(RunError, match=r"test_graph.py, line \d+: called a synchronizing CUDA operation\. A recorded"):
        step(looks, torch.zeros(2))
    group = optimiser.param_groups[0]
    assert (group["lr"], group["capturable"]) == (0.1, False)


# The real thing.


@pytest.fixture
def replays(monkeypatch):
    made, real = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (made.append(1), real(graph)))
    return made


class Uneven(Tiny):
    """One batch is smaller than the others."""

    def batch(self, step, generator):
        whole = super().batch(step, generator)
        return {name: each[:5] for name, each in whole.items()} if step == 7 else whole


class Steady(Tiny):
    """The learning rate stays, so that each step counts."""

    def schedule(self, optimiser):
        return None


class Held(Tiny):
    """From the seventh step on nothing is learned."""

    def schedule(self, optimiser):
        return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: float(step < 6))


def on_cuda(folder, task=Tiny, graph=True, precision="32", steps=12, **told):
    context = context_at(folder, device="cuda", graph=graph, precision=precision)
    return context.fit(task(steps=steps, **told)).state_dict()


def assert_near(first, second):
    for name, weight in first.items():
        torch.testing.assert_close(weight, second[name], rtol=1e-3, atol=2e-4)


@needs_cuda
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_replayed_run_is_the_same_run_dropout_included(tmp_path, replays, precision):
    graphed = on_cuda(tmp_path / "graphed", Steady, precision=precision)
    assert len(replays) == 12 - WARM_UP
    assert_near(graphed, on_cuda(tmp_path / "plain", Steady, graph=False, precision=precision))
    assert len(replays) == 12 - WARM_UP


@needs_cuda
@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_run_stops_and_goes_on_with_a_graph_or_without(tmp_path, before, after):
    with pytest.raises(ZeroDivisionError):
        on_cuda(tmp_path / "broken", graph=before, at_step={7: lambda: 1 / 0})
    assert_near(on_cuda(tmp_path / "broken", graph=after), on_cuda(tmp_path / "whole"))


@needs_cuda
def test_a_batch_of_another_size_is_taken_as_it_comes(tmp_path, replays):
    graphed = on_cuda(tmp_path / "graphed", Uneven)
    assert len(replays) == 12 - WARM_UP - 1
    assert_near(graphed, on_cuda(tmp_path / "plain", Uneven, graph=False))


@needs_cuda
def test_a_schedule_acts_on_a_replayed_step(tmp_path):
    early = on_cuda(tmp_path / "early", Held, steps=6, noisy=False)
    late = on_cuda(tmp_path / "late", Held, steps=12, noisy=False)
    early.pop("mean"), late.pop("mean")  # of the batches seen, and not learned
    torch.testing.assert_close(early, late)


@needs_cuda
def test_a_task_that_looks_at_a_value_is_told_where_and_what_to_do(tmp_path):
    class Looks(Tiny):
        def loss(self, model, batch):
            loss = super().loss(model, batch)
            return Loss(loss.value, {"twice": 2 * float(loss.value.detach())})

    with pytest.raises(RunError, match=r"test_graph.py, line \d+: .*leave --graph out"):
        on_cuda(tmp_path / "looks", Looks)
    # The device is none the worse for it.
    assert_near(on_cuda(tmp_path / "after"), on_cuda(tmp_path / "plain", graph=False))
