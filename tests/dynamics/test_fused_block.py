"""The convolution block as a whole: its kernels by an emulation of Triton's language, on a GPU themselves.

With Triton installed the emulation gives way to Triton's own: TRITON_INTERPRET=1 runs the kernels on a CPU.
"""

import contextlib
import copy
import itertools
import os
import re
import types

import pytest
import torch
import torch.fx.experimental.proxy_tensor

import ncode
from ncode.dynamics import ConvBlock, _convolution, _convolution_kernels, _fused_block, _fused_block_kernels, conv_block

NAMES = ("conv_in", "conv_in_bias", "conv_3x3", "conv_3x3_bias", "conv_out", "conv_out_bias")
BIASES = NAMES[1::2]
INTERPRETED = _convolution_kernels._found and os.environ.get("TRITON_INTERPRET") == "1"
needs_emulation = pytest.mark.skipif(
    _convolution_kernels._found and not INTERPRETED, reason="Triton is here: its kernels are no plain functions"
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Pointer:
    def __init__(self, memory, place=0):
        self.memory, self.place = memory, place
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, more):
        return Pointer(self.memory, self.place + more)

    def places(self, mask):
        """Where the mask allows for access: nowhere outside of the memory."""
        mask = torch.ones_like(self.place, dtype=torch.bool) if mask is None else mask
        mask, place = torch.broadcast_tensors(mask, self.place)
        assert ((place >= 0) & (place < len(self.memory)))[mask].all()
        return mask, place


class Language:
    """As much of triton.language as the kernels use, for one program at a time."""

    float32, int64 = torch.float32, torch.int64
    arange, zeros, where, trans = torch.arange, torch.zeros, torch.where, torch.t

    def __init__(self):
        self.program = 0

    def program_id(self, axis):
        return torch.tensor(self.program)

    def sum(self, x, axis):
        return x.sum(axis)

    def dot(self, a, b, total, input_precision):
        assert (a.dtype, total.dtype) == (b.dtype, torch.float32)
        assert all(size >= 16 and size & (size - 1) == 0 for size in (*a.shape, *b.shape))
        return total + a.float() @ b.float()

    def load(self, pointer, mask=None, other=None):
        mask, place = pointer.places(mask)
        found = torch.full(place.shape, torch.nan if other is None else other, dtype=pointer.memory.dtype)
        found[mask] = pointer.memory[place[mask]]
        return found

    def store(self, pointer, value, mask=None):
        assert value.dtype == pointer.memory.dtype
        mask, place = pointer.places(mask)
        assert place[mask].unique().numel() == mask.sum()
        pointer.memory[place[mask]] = value[mask]


def memory(tensor):
    """All that the kernels may touch: the tensor's own part of what is allocated."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,))


@pytest.fixture
def on_cpu(monkeypatch):
    """The operators on a CPU, and the block takes them."""
    language = Language()

    def launch(kernel, grid, tensors, sizes, blocks):
        for tensor in tensors:
            assert tensor.numel() == 0 or tensor[:1].is_contiguous() or tensor.stride()[2:] == (9, 3, 1)
        if INTERPRETED:
            kernel[grid](*tensors, *sizes)
            return
        for language.program in range(grid[0]):
            kernel(*(Pointer(memory(tensor)) for tensor in tensors), *sizes)

    library = torch.library.Library("ncode", "IMPL")
    _fused_block.implement(library, "CPU")
    monkeypatch.setattr(_fused_block_kernels, "_launch", launch)
    monkeypatch.setattr(_convolution, "triton_available", lambda x: x.dtype in _convolution.DTYPES)
    if not INTERPRETED:
        monkeypatch.setattr(_fused_block_kernels, "tl", language)
    yield
    library._destroy()


@pytest.fixture
def spoiled(monkeypatch):
    """What is allocated is nan at first."""

    def new_empty(tensor, *shape, **like):
        return tensor.new_full(shape, torch.nan, **like)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


@contextlib.contextmanager
def composed():
    """The three convolutions, one after the other."""
    whole, conv_block.can_fuse = conv_block.can_fuse, lambda *inputs: False
    try:
        yield
    finally:
        conv_block.can_fuse = whole


def problem(batch, c, o, f, height, width, time, shared, device="cpu"):
    """A block, t, x, its control and a gradient for y."""
    block = ConvBlock(c, f, NAMES, time=time, out=o).to(device)
    theta = {}
    for name, shape in block.control_shapes.items():
        terms = max(1, torch.Size(shape[1:]).numel())
        theta[name] = torch.randn(*([] if name in shared else [batch]), *shape, device=device) / terms**0.5
    x, grad = (torch.randn(batch, channels, height, width, device=device) for channels in (c, o))
    return block, torch.rand(batch, device=device), x, theta, grad


def decided(given):
    """The same problem with every filter far from the bend of its relu: rounding cannot change a side there.

    One number that does so changes gradients more than the rounding of all others.
    """
    block, t, x, theta, grad = given
    for name, far in (("conv_in_bias", 8.0), ("conv_3x3_bias", 60.0)):
        sides = torch.arange(theta[name].shape[-1], device=x.device) % 2 * 2 - 1
        theta = {**theta, name: theta[name] + far * sides}
    return block, t, x, theta, grad


def gradients(block, t, x, theta, grad, dtype=torch.float32, half=None):
    """y, and the gradients of x, all of theta, and t where the block sees it."""
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in (x, *theta.values(), t)]
    cast = torch.autocast(x.device.type, half) if half else contextlib.nullcontext()
    with cast:
        y = block(leaves[-1], leaves[0], dict(zip(theta, leaves[1:-1], strict=True)))
    wanted = leaves if block.time else leaves[:-1]
    return [y.detach(), *torch.autograd.grad(y, wanted, grad.to(y.dtype))]


def compare(problem, bound, half=None):
    """The kernels against the composition in double precision."""
    got = gradients(*problem, half=half)
    block, rest = problem[0], problem[1:]
    with composed():
        expected = gradients(copy.deepcopy(block).double(), *rest, dtype=torch.float64)
    assert got[0].dtype == torch.float32
    sizes = [exact.norm() for exact in expected]
    if block.time:
        # Kernels of the channel t are biases times t: its gradient is a sum over theirs, and may be small by chance.
        sizes[-1] = torch.stack([sizes[2 + NAMES.index(name)] for name in BIASES]).norm()
    for found, exact, size in zip(got, expected, sizes, strict=True):
        assert found.shape == exact.shape
        assert (found.double() - exact).norm() <= bound * size


CASES = [
    (2, 3, 3, 5, 5, 7, False, ()),
    (3, 13, 13, 20, 6, 6, False, BIASES),
    (2, 4, 6, 17, 7, 5, True, ()),
    (3, 3, 3, 6, 5, 5, False, NAMES),
    (2, 3, 5, 16, 8, 8, True, NAMES),
    (2, 16, 17, 7, 13, 12, False, ("conv_3x3",)),
    (1, 20, 7, 60, 3, 4, True, ()),
]


@needs_emulation
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_compute_the_block_and_its_gradients(on_cpu, spoiled, case):
    torch.manual_seed(0)
    given = problem(*case)
    assert whole_is_taken(given)
    compare(given, 2e-6)


@needs_emulation
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_under_autocast_only_what_lies_between_the_layers_has_16_bits(on_cpu, half):
    if INTERPRETED and half == torch.bfloat16:
        pytest.skip("Triton's interpreter takes the bits of bfloat16 for integers in products")
    torch.manual_seed(0)
    compare(decided(problem(2, 3, 4, 7, 6, 5, True, BIASES)), 2e-3 if half == torch.float16 else 2e-2, half)


@needs_emulation
def test_many_samples_share_kernels_whose_gradients_are_sums(on_cpu, monkeypatch):
    monkeypatch.setattr(_fused_block_kernels, "_GROUPS", 2)
    torch.manual_seed(0)
    compare(problem(5, 2, 2, 3, 3, 3, False, NAMES), 2e-6)


@needs_emulation
def test_every_size_of_a_program_gives_the_same(on_cpu, monkeypatch):
    torch.manual_seed(0)
    given = problem(2, 3, 3, 20, 6, 7, True, BIASES)
    for rows, inner in ((16, 16), (64, 32)):
        sizes = dict.fromkeys(_fused_block_kernels.BLOCKS["tf32"], _fused_block_kernels.Blocks(rows, inner, 4, 1))
        monkeypatch.setattr(_fused_block_kernels, "BLOCKS", dict.fromkeys(_fused_block_kernels.BLOCKS, sizes))
        compare(given, 2e-6)


@pytest.mark.slow
@needs_emulation
@pytest.mark.parametrize("tf32", [False, True])
def test_programs_for_many_filters_are_of_other_sizes_and_give_the_same(on_cpu, spoiled, monkeypatch, tf32):
    monkeypatch.setattr(_fused_block, "MAX_FILTERS", 256)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    torch.manual_seed(0)
    given = problem(2, 2, 3, 130, 8, 9, True, NAMES)
    assert whole_is_taken(given)
    compare(given, 2e-6)


@needs_emulation
def test_images_may_have_any_strides(on_cpu):
    torch.manual_seed(0)
    block, t, x, theta, grad = problem(2, 3, 3, 5, 4, 6, False, BIASES)
    last = {"memory_format": torch.channels_last}
    expected = gradients(block, t, x, theta, grad)
    got = gradients(block, t, x.contiguous(**last), theta, grad.contiguous(**last))
    for found, exact in zip(got, expected, strict=True):
        torch.testing.assert_close(found, exact)
    spread = {name: value.movedim(0, -1).contiguous().movedim(-1, 0) for name, value in theta.items()}
    with torch.no_grad():
        torch.testing.assert_close(block(t, x, spread), expected[0])


@needs_emulation
def test_nothing_is_kept_if_no_gradient_is_needed(on_cpu, monkeypatch):
    block, t, x, theta, grad = problem(2, 3, 3, 5, 4, 4, False, BIASES)
    kept, forward = [], _fused_block_kernels.forward
    monkeypatch.setattr(_fused_block_kernels, "forward", lambda *inputs: kept.append(inputs[-1]) or forward(*inputs))
    with torch.no_grad():
        block(t, x, theta)
    block(t, x, theta)
    block(t, x.requires_grad_(), theta).backward(grad)
    assert kept == [False, False, True]


@needs_emulation
def test_gradients_of_kernels_are_computed_only_if_needed(on_cpu, monkeypatch):
    block, t, x, theta, grad = problem(2, 3, 3, 5, 4, 4, False, BIASES)
    made = []
    for name in ("front", "taps"):
        work = getattr(_fused_block_kernels, name)
        monkeypatch.setattr(_fused_block_kernels, name, lambda *i, name=name, work=work: made.append(name) or work(*i))
    block(t, x.requires_grad_(), theta).backward(grad)
    assert made == ["front"]
    made.clear()
    theta["conv_out"].requires_grad_()
    block(t, x.detach(), theta).backward(grad)
    assert made == []


@needs_emulation
def test_second_derivatives_are_those_of_the_convolutions(on_cpu):
    torch.manual_seed(0)
    block, t, x, theta, grad = problem(2, 2, 3, 4, 4, 5, True, BIASES)
    found = [penalised(block, t, x, theta, grad)]
    with composed():
        found.append(penalised(block, t, x, theta, grad))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def penalised(block, t, x, theta, grad):
    """The gradient of the square of a gradient."""
    leaves = [leaf.detach().requires_grad_() for leaf in (x, *theta.values())]
    y = block(t, leaves[0], dict(zip(theta, leaves[1:], strict=True)))
    first = torch.autograd.grad(y, leaves, grad, create_graph=True)
    return torch.autograd.grad(sum(each.square().sum() for each in first), leaves[:4], allow_unused=False)


@pytest.mark.slow
@needs_emulation
def test_a_solve_has_the_same_gradient_and_compiled_the_same_again(on_cpu):
    torch.manual_seed(0)
    block, _, x, theta, _ = problem(2, 2, 2, 3, 4, 4, True, BIASES)
    found = []
    for compile, way in ((False, composed), (False, contextlib.nullcontext), (True, contextlib.nullcontext)):
        leaves = [leaf.detach().requires_grad_() for leaf in (x, *theta.values())]
        # A field of its own each time: compiled steps are kept for the field that they were made for.
        field = copy.deepcopy(block)
        with way():
            control = dict(zip(theta, leaves[1:], strict=True))
            own = {name: value.expand(2, *field.control_shapes[name]) for name, value in control.items()}
            sol = ncode.solve(field, leaves[0], 0.0, 1.0, theta=own, method="euler", dt=1.0, compile=compile)
            found.append([sol.x, *torch.autograd.grad(sol.x.square().sum(), leaves)])
    for other in found[1:]:
        for got, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)


@needs_emulation
@pytest.mark.parametrize("time", [False, True])
def test_compilers_know_the_operators_shapes(on_cpu, time):
    _, _, x, theta, grad = problem(2, 3, 4, 5, 4, 6, time, ())
    operators = torch.ops.ncode
    w1, w2, w3 = (theta[name][:, :, : -1 if time else None].contiguous() for name in NAMES[::2])
    b1, b2, b3 = (theta[name] for name in BIASES)
    rim = torch.randn(2, 5, 9) if time else None
    check = {"test_utils": ("test_schema", "test_faketensor")}
    for dtype, turned in itertools.product((torch.float16, torch.float32), (False, True)):
        torch.library.opcheck(operators.conv_block_kernels.default, (w2, dtype, turned), **check)
    for dtype in (torch.float16, torch.float32):
        kernels = operators.conv_block_kernels(w2, dtype, False)
        inputs = (x, w1.flatten(2).mT.contiguous(), b1, kernels, b2, w3.flatten(2), b3, rim)
        for keep in (False, True):
            torch.library.opcheck(operators.conv_block.default, (*inputs, keep), **check)
        _, laid, h2, planes = operators.conv_block(*inputs, True)
        last = (grad, inputs[5], h2, 4, 6, time)
        torch.library.opcheck(operators.conv_block_back.default, last, **check)
        slope, slopes = operators.conv_block_back(*last)[:2]
        torch.library.opcheck(operators.conv_block_front.default, (slope, laid, kernels, inputs[1], x), **check)
        layers = (slope, laid) if dtype == torch.float16 else (slopes, planes)
        for shared in (False, True):
            torch.library.opcheck(operators.conv_block_taps.default, (*layers, 5, shared), **check)


@needs_emulation
def test_tracers_see_the_operators_and_exports_do_not(on_cpu):
    block, t, x, theta, grad = problem(2, 2, 2, 3, 3, 4, False, BIASES)

    def slopes(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(block(t, x, theta), x, grad)

    def used(graph):
        return {str(node.target).split(".")[1] for node in graph.nodes if str(node.target).startswith("ncode")}

    expected = {"conv_block_kernels", "conv_block", "conv_block_back", "conv_block_front"}
    assert used(torch.fx.experimental.proxy_tensor.make_fx(slopes)(x).graph) == expected
    assert not used(torch.export.export(block, (t, x, theta)).graph)


@needs_emulation
def test_gradients_can_be_asked_for_in_batches(on_cpu):
    torch.manual_seed(0)
    block, t, x, theta, grad = problem(2, 2, 2, 3, 3, 4, True, BIASES)
    y, grads = block(t, x.requires_grad_(), theta), torch.stack([grad, 2 * grad])
    (found,) = torch.autograd.grad(y, x, grads, is_grads_batched=True, retain_graph=True)
    for got, each in zip(found, grads, strict=True):
        torch.testing.assert_close(got, *torch.autograd.grad(y, x, each, retain_graph=True))


def whole(c=3, f=5, o=3, dtype=torch.float32):
    kernels = [torch.zeros(shape, dtype=dtype) for shape in ((f, c, 1, 1), (f, f, 3, 3), (o, f, 1, 1))]
    return torch.zeros(2, c, 4, 4, dtype=dtype), kernels, [torch.zeros(len(kernel), dtype=dtype) for kernel in kernels]


def test_without_a_gpu_the_convolutions_are_taken():
    assert not _fused_block.can_fuse(*whole())


def test_the_kernels_are_taken_only_for_what_they_can(monkeypatch):
    monkeypatch.setattr(_convolution, "triton_available", lambda x: True)
    assert _fused_block.can_fuse(*whole())
    assert _fused_block.can_fuse(*whole(c=32, o=32, f=64))
    assert not _fused_block.can_fuse(*whole(c=33))
    assert not _fused_block.can_fuse(*whole(o=33))
    assert not _fused_block.can_fuse(*whole(f=65))
    assert not _fused_block.can_fuse(*whole(dtype=torch.float64))
    assert not _fused_block.can_fuse(*whole(dtype=torch.bfloat16))
    x, kernels, biases = whole()
    assert not _fused_block.can_fuse(x[:0], kernels, biases)
    assert not _fused_block.can_fuse(x[..., :1, :1], kernels, biases)
    assert not _fused_block.can_fuse(x, [kernels[0].double(), *kernels[1:]], biases)
    with torch.autocast("cpu", torch.bfloat16):
        assert _fused_block.can_fuse(x, kernels, biases)


def test_in_full_single_precision_one_kernel_per_sample_uses_the_convolutions(monkeypatch):
    monkeypatch.setattr(_convolution, "triton_available", lambda x: True)
    x, kernels, biases = whole()
    own = [kernel.expand(2, -1, -1, -1, -1) for kernel in kernels]
    for tf32 in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
        assert _fused_block.can_fuse(x, own, biases) == tf32
        assert _fused_block.can_fuse(x, kernels, biases)
        with torch.autocast("cpu", torch.bfloat16):
            assert _fused_block.can_fuse(x, own, biases)


# Forward mode imports a part of torch that torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_the_kernels_are_not_taken_under_transforms(monkeypatch):
    monkeypatch.setattr(_convolution, "triton_available", lambda x: True)
    x, kernels, biases = whole()
    taken = []

    def ask(x):
        taken.append(_fused_block.can_fuse(x, kernels, biases))
        return x.sum()

    torch.func.vmap(ask)(x[None])
    torch.func.grad(ask)(x)
    torch.func.jvp(ask, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        ask(torch.autograd.forward_ad.make_dual(x, x))
    assert taken == [False] * 4


def test_only_the_automatic_choice_with_relu_takes_the_kernels(monkeypatch):
    asked = []
    monkeypatch.setattr(conv_block, "can_fuse", lambda *inputs: asked.append(inputs) or False)
    x, t = torch.zeros(1, 2, 3, 3), torch.zeros(1)
    for changes in ({"activation": "tanh"}, {"convolution": "grouped"}, {"convolution": "unfolded"}):
        ConvBlock(2, 3, (), **changes)(t, x, {})
    assert not asked
    ConvBlock(2, 3, ())(t, x, {})
    ConvBlock(2, 3, (), time=True)(t, x, {})
    assert [inputs[-1] for inputs in asked] == [None, t]


# On a GPU.


@pytest.fixture
def always(monkeypatch):
    """The kernels, be they faster or not."""
    monkeypatch.setattr(_fused_block, "is_faster", lambda x, w2: True)


@pytest.fixture
def inspected(monkeypatch):
    """Check that the factors of products are wide, or of one step: see `_fused_block_kernels.py`."""
    launch = _fused_block_kernels._launch

    def look(kernel, grid, tensors, sizes, blocks):
        how = {"num_warps": blocks.warps, "num_stages": blocks.stages}
        compiled = kernel.warmup(*tensors, *sizes, grid=grid, **how)
        # The address of a further step of a factor; the sign says that it is narrower than 128 bytes.
        assert not re.search(r"add\.s64[^;]*, -\d{19};", compiled.asm["ptx"])
        launch(kernel, grid, tensors, sizes, blocks)

    monkeypatch.setattr(_fused_block_kernels, "_launch", look)


BIG = [
    (4, 13, 13, 50, 32, 32, False, BIASES),
    (40, 13, 13, 64, 32, 32, True, NAMES),
    (3, 13, 13, 50, 28, 28, True, ()),
    (2, 20, 7, 60, 6, 6, True, BIASES),
    (33, 32, 32, 33, 13, 12, True, ("conv_3x3",)),
    (3, 13, 13, 50, 7, 7, True, ()),
]


@needs_cuda
@pytest.mark.parametrize("case", [*CASES, *BIG])
@pytest.mark.parametrize("way", ["float32", "tf32", "bfloat16", "float16"])
def test_a_gpu_computes_the_block_and_its_gradients(case, way, always, inspected, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", way == "tf32")
    torch.manual_seed(0)
    given = problem(*case, device="cuda")
    if case in BIG or way != "float32":
        given = decided(given)
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(way)
    assert whole_is_taken(given)
    compare(given, {"float32": 5e-6, "tf32": 3e-3, "bfloat16": 2e-2, "float16": 3e-3}[way], half)


def whole_is_taken(given):
    block, t, x, theta, _ = given
    parts = [theta[name] for name in NAMES[::2]], [theta[name] for name in BIASES]
    return _fused_block.can_fuse(x, *parts, t if block.time else None)


@needs_cuda
def test_a_gpu_has_second_derivatives_and_maps(always, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    block, t, x, theta, grad = problem(2, 2, 3, 4, 4, 5, True, BIASES, device="cuda")
    found = [penalised(block, t, x, theta, grad)]
    ys = torch.func.vmap(lambda x: block(t, x, theta))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(ys[0], block(t, x, theta), atol=1e-4, rtol=1e-4)
    with composed():
        found.append(penalised(block, t, x, theta, grad))
    for got, expected in zip(*found, strict=True):
        assert (got - expected).norm() < 1e-4 * expected.norm()


@needs_cuda
def test_a_gpu_records_the_block_as_a_graph():
    torch.manual_seed(0)
    given = problem(4, 13, 13, 50, 8, 8, False, BIASES, device="cuda")
    expected = gradients(*given)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gradients(*given)
    for found in got:
        found.zero_()
    graph.replay()
    for found, exact in zip(got, expected, strict=True):
        torch.testing.assert_close(found, exact)


@needs_cuda
@pytest.mark.parametrize("half", [None, torch.bfloat16])
def test_a_gpu_solves_with_the_same_gradient_compiled_or_not(half, always, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    gamma = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4), torch.nn.Tanh())
    field = ncode.dynamics.Augmented(ConvBlock(5, filters=20), zeros=2)
    x, found = torch.randn(4, 3, 8, 8, device="cuda"), []
    start = ncode.NCODE(field, ncode.OpenLoop(gamma), method="rk4", dt=0.25)
    start(x.cpu())
    for compile, way in itertools.product((False, True), (composed, contextlib.nullcontext)):
        block = copy.deepcopy(start).cuda()
        cast = torch.autocast("cuda", half) if half else contextlib.nullcontext()
        with way(), cast:
            y = block.solve(x, compile=compile).x
            found.append([y, *torch.autograd.grad(y.float().square().sum(), list(block.parameters()))])
    for other in found[1:]:
        for got, expected in zip(other, found[0], strict=True):
            # With 16 bits some filters end up on the other side of their relu.
            assert (got - expected).norm() < (0.2 if half else 1e-3) * expected.norm() + 1e-6
