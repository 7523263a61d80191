"""A block is a module like any other."""

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import multiprocessing, nn

import ncode

FAMILY = ncode.NCODE.family()


def block_of(name, **more):
    return ncode.NCODE(*FAMILY[name].choose(2), **more)


@pytest.mark.parametrize("name", FAMILY)
def test_copies_are_equal_and_independent(name):
    block, x = block_of(name), torch.randn(3, 2)
    stream = io.BytesIO()
    torch.save(block, stream)
    stream.seek(0)
    copies = (
        copy.deepcopy(block),
        pickle.loads(pickle.dumps(block)),
        torch.load(stream, weights_only=False),
    )
    expected = block(x)
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    for other in copies:
        assert torch.equal(other(x), expected)


@pytest.mark.parametrize("name", FAMILY)
def test_a_state_dict_makes_two_blocks_equal(name):
    block, other, x = block_of(name), block_of(name), torch.randn(3, 2)
    other.load_state_dict(block.state_dict())
    assert torch.equal(other(x), block(x))


@pytest.mark.parametrize("name", FAMILY)
def test_precision_moves_with_the_block(name):
    block, x = block_of(name).double(), torch.randn(3, 2, dtype=torch.float64)
    sol = block.solve(x)
    assert sol.x.dtype == torch.float64
    assert all(theta.dtype == torch.float64 for theta in sol.theta.values())


@pytest.mark.parametrize("name", FAMILY)
def test_autocast_lowers_the_networks_and_not_the_state(name):
    block, x = block_of(name), torch.randn(3, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(x)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert all(p.grad is not None for p in block.parameters())
    torch.testing.assert_close(y, block(x), atol=0.1, rtol=0.1)


def test_autocast_of_an_exact_flow_stays_exact():
    block, x = ncode.NCODE(ncode.dynamics.Linear(2), ncode.OpenLoop(nn.Linear(2, 4))), torch.randn(3, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sol = block.solve(x)
    torch.testing.assert_close(sol.x, block.solve(x, theta=sol.theta).x)


def test_a_block_is_a_layer_of_a_larger_network():
    net = nn.Sequential(nn.Linear(3, 2), block_of("open-loop N-CODE"), nn.ReLU(), nn.Linear(2, 1))
    net(torch.randn(4, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert net.eval()(torch.randn(4, 3)).shape == (4, 1)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.25, "gradient": "autograd"}])
def test_torch_compile_leaves_values_and_gradients_as_they_are(options):
    block, x = block_of("open-loop N-CODE", **options), torch.randn(3, 2)
    block(x).square().sum().backward()
    expected, grads = block(x).detach(), [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    y = torch.compile(block)(x)
    y.square().sum().backward()
    torch.testing.assert_close(y.detach(), expected, atol=1e-6, rtol=1e-5)
    for parameter, grad in zip(block.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_torch_compile_leaves_exact_flows_as_they_are():
    block, x = ncode.NCODE(ncode.dynamics.Linear(2), ncode.OpenLoop(nn.Linear(2, 4))), torch.randn(3, 2)
    torch.testing.assert_close(torch.compile(block)(x), block(x))


def test_a_block_whose_solver_compiles_knows_its_graphs_again(traced):
    block, x = block_of("closed-loop N-CODE", compile=True), torch.randn(3, 2)
    plain = block.solve(x, compile=False).x
    known = []
    for _ in range(3):
        y = block(x)
        y.sum().backward()
        torch.testing.assert_close(y, plain, atol=1e-6, rtol=1e-5)
        known.append(len(traced))
    assert known[0] == known[1] == known[2] > 0


@pytest.mark.parametrize("name", FAMILY)
def test_torch_func_gives_gradients_and_those_of_each_sample(name):
    block, x = block_of(name, method="rk4", dt=0.5, gradient="autograd").double(), torch.randn(3, 2).double()
    parameters = {key: value.detach() for key, value in block.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(block, parameters, (x,)).square().sum()

    whole = torch.func.grad(loss)(parameters, x)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x[:, None])
    block(x).square().sum().backward()
    for key, value in block.named_parameters():
        torch.testing.assert_close(whole[key], value.grad)
        torch.testing.assert_close(each[key].sum(0), value.grad)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize("name", FAMILY)
def test_tensors_in_the_place_of_parameters_get_the_gradients_of_those(name, gradient):
    block = block_of(name, gradient=gradient, rtol=1e-8, atol=1e-8).double()
    others = {key: 0.5 * torch.randn_like(value) for key, value in block.named_parameters()}
    given = {key: value.requires_grad_() for key, value in others.items()}
    x = torch.randn(3, 2).double()
    torch.func.functional_call(block, given, (x,)).square().sum().backward()
    block.load_state_dict({key: value.detach() for key, value in others.items()}, strict=False)
    block(x).square().sum().backward()
    for key, value in block.named_parameters():
        torch.testing.assert_close(given[key].grad, value.grad)


def _work(rank, world, port, x, y, state, queue):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    block = block_of("closed-loop N-CODE")
    block.load_state_dict(state)
    parallel = nn.parallel.DistributedDataParallel(block)
    half = slice(rank * len(x) // world, (rank + 1) * len(x) // world)
    (parallel(x[half]) - y[half]).square().mean().backward()
    if rank == 0:
        queue.put([p.grad.tolist() for p in block.parameters()])
    torch.distributed.barrier()
    del parallel  # what holds the group; threads of gloo that outlive Python abort it
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_get_the_gradients_of_one(unused_port):
    block, x, y = block_of("closed-loop N-CODE"), torch.randn(8, 2), torch.randn(8, 2)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    arguments = (x, y, {k: v.clone() for k, v in block.state_dict().items()}, queue)
    workers = [context.Process(target=_work, args=(rank, 2, unused_port, *arguments)) for rank in range(2)]
    for worker in workers:
        worker.start()
    grads = queue.get(timeout=120)
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    (block(x) - y).square().mean().backward()
    for parameter, grad in zip(block.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, torch.tensor(grad), atol=1e-6, rtol=1e-4)


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
