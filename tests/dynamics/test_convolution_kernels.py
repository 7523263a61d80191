"""The Triton kernels for per-sample convolutions: here by an emulation of Triton's language, on a GPU themselves."""

import itertools
import types

import pytest
import torch
from torch.nn import functional as F

from ncode.dynamics import _convolution, _convolution_kernels
from ncode.dynamics._convolution import sample_conv2d

from .reference import one_by_one

SHAPES = [(2, 3, 4, 5, 4, 3), (2, 5, 70, 6, 7, 3), (1, 2, 3, 4, 9, 5), (3, 4, 2, 12, 12, 1)]


def problem(batch, c, o, height, width, k, **like):
    """x, w, y, and the gradients of x and w for a gradient of y."""
    x, w = torch.randn(batch, c, height, width, **like), torch.randn(batch, o, c, k, k, **like)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = one_by_one(x, w)
    grad = torch.randn_like(y)
    return x.detach(), w.detach(), y.detach(), grad, *torch.autograd.grad(y, [x, w], grad)


class Pointer:
    def __init__(self, memory, place=0):
        self.memory, self.place = memory, place
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, more):
        return Pointer(self.memory, self.place + more)

    def places(self, mask):
        """Where the mask allows for access: nowhere outside of the memory."""
        shape = torch.broadcast_shapes(mask.shape, self.place.shape)
        mask, place = mask.expand(shape), self.place.expand(shape)
        assert ((place >= 0) & (place < len(self.memory)))[mask].all()
        return mask, place


class Language:
    """As much of triton.language as the kernels use, for one program at a time."""

    float32, int64 = torch.float64, torch.int64

    def __init__(self):
        self.program = (0, 0, 0)

    def program_id(self, axis):
        return torch.tensor(self.program[axis])

    def arange(self, start, end):
        return torch.arange(start, end)

    def zeros(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype)

    def dot(self, a, b, total, input_precision):
        return total + a @ b

    def load(self, pointer, mask, other):
        mask, place = pointer.places(mask)
        found = torch.full(place.shape, other, dtype=pointer.memory.dtype)
        found[mask] = pointer.memory[place[mask]]
        return found

    def store(self, pointer, value, mask):
        mask, place = pointer.places(mask)
        pointer.memory[place[mask]] = value[mask]


@pytest.fixture
def emulated(monkeypatch):
    language = Language()

    def launch(kernel, grid, tensors, sizes, blocks):
        for program in itertools.product(*map(range, grid)):
            language.program = program
            kernel(*(Pointer(tensor.view(-1)) for tensor in tensors), *sizes)

    monkeypatch.setattr(_convolution_kernels, "tl", language)
    monkeypatch.setattr(_convolution_kernels, "_launch", launch)


@pytest.mark.skipif(_convolution_kernels._found, reason="Triton is here: its kernels are no plain functions")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [16, 128])
def test_the_kernels_compute_convolutions_and_stay_within_memory(emulated, shape, rows):
    x, w, y, grad, x_grad, w_grad = problem(*shape, dtype=torch.float64)
    blocks = _convolution_kernels.Blocks(rows, 16, 4, 3)
    turned = w.transpose(1, 2).flip(3, 4)
    torch.testing.assert_close(_convolution_kernels.convolve(x, w, blocks), y)
    torch.testing.assert_close(_convolution_kernels.convolve(grad, turned, blocks), x_grad)
    torch.testing.assert_close(_convolution_kernels.correlate(grad, x, shape[-1], blocks), w_grad)


@pytest.mark.skipif(_convolution_kernels._found, reason="Triton is here: its kernels are no plain functions")
@pytest.mark.parametrize(("dtype", "channels"), [(torch.float64, 6), (torch.float32, 8), (torch.bfloat16, 8)])
def test_an_image_is_laid_out_with_its_border_and_whole_lines(emulated, dtype, channels, monkeypatch):
    x = torch.randn(2, 5, 3, 4).to(dtype)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *shape: self.new_full(shape, torch.nan))
    laid = _convolution_kernels.lay(x, 3)
    expected = F.pad(x, (1, 1, 1, 1)).permute(0, 2, 3, 1)
    torch.testing.assert_close(laid, F.pad(expected, (0, channels - 5)))


@pytest.fixture
def on_cpu(monkeypatch):
    """The operators with plain torch in place of the kernels."""
    library = torch.library.Library("ncode", "IMPL")
    library.impl("sample_conv2d", lambda x, w: one_by_one(x, w), "CPU")

    def correlate(y, x, k):
        shape = (y.shape[1], x.shape[1], k, k)
        pairs = zip(x.split(1), y.split(1), strict=True)
        return torch.stack([torch.nn.grad.conv2d_weight(a, shape, b, padding=k // 2) for a, b in pairs])

    library.impl("sample_conv2d_kernels", correlate, "CPU")
    monkeypatch.setattr(_convolution, "triton_available", lambda x: True)
    yield
    library._destroy()


def convolve(x, w):
    return sample_conv2d(x, w, "implicit")


# Forward mode imports a part of torch that torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_the_operators_have_derivatives_of_first_and_second_order(on_cpu):
    x, w = torch.randn(2, 2, 3, 2, dtype=torch.float64), torch.randn(2, 2, 2, 3, 3, dtype=torch.float64)
    inputs = x.requires_grad_(), w.requires_grad_()
    assert torch.autograd.gradcheck(convolve, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(convolve, inputs)


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 2)])
def test_the_operators_can_be_mapped(on_cpu, dims):
    xs, ws = torch.randn(2, 2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 2, 2, 3, 3, 3, dtype=torch.float64)
    x = xs[0] if dims[0] is None else xs.movedim(0, dims[0])
    w = ws[0] if dims[1] is None else ws.movedim(0, dims[1])
    found = torch.func.vmap(convolve, in_dims=dims)(x, w)
    pairs = [(xs[0 if dims[0] is None else i], ws[0 if dims[1] is None else i]) for i in range(2)]
    torch.testing.assert_close(found, torch.stack([one_by_one(*pair) for pair in pairs]))


@pytest.mark.slow
def test_compilers_know_the_operators_shapes(on_cpu):
    x, w = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 3, 3, 3)
    torch.library.opcheck(torch.ops.ncode.sample_conv2d.default, (x, w))
    torch.library.opcheck(torch.ops.ncode.sample_conv2d_kernels.default, (convolve(x, w), x, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [*SHAPES, (4, 50, 50, 32, 32, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tf32", [False, True])
def test_a_gpu_computes_the_same(shape, dtype, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    x, w, y, grad, x_grad, w_grad = (leaf.cuda() for leaf in problem(*shape, dtype=torch.float64))
    leaves = [leaf.to(dtype).requires_grad_() for leaf in (x, w)]
    found = _convolution._Convolution.apply(*leaves, None, _convolution._FORMS["implicit"])
    grads = torch.autograd.grad(found, leaves, grad.to(dtype))
    bound = 2e-2 if dtype == torch.bfloat16 else 2e-3 if tf32 else 2e-6
    for got, expected in zip((found, *grads), (y, x_grad, w_grad), strict=True):
        assert got.dtype == dtype
        assert (got.double() - expected).norm() < bound * expected.norm()
