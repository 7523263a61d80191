from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ncode
from ncode import InputError
from ncode.dynamics import _convolution
from ncode.dynamics._convolution import FORMULATIONS, sample_conv2d

from .reference import one_by_one

DOUBLE = torch.float64

# test_convolution_kernels.py has the one that needs a GPU.
every_formulation = pytest.mark.parametrize("formulation", [name for name in FORMULATIONS if name != "implicit"])
every_kernel = pytest.mark.parametrize("k", [1, 3, 5])


def problem(batch=2, c=3, o=4, k=3, height=5, width=4, dtype=DOUBLE):
    x, w = torch.randn(batch, c, height, width, dtype=dtype), torch.randn(batch, o, c, k, k, dtype=dtype)
    return x.requires_grad_(), w.requires_grad_()


@every_formulation
@given(
    batch=st.integers(1, 3),
    c=st.integers(1, 3),
    o=st.integers(1, 3),
    k=st.sampled_from([1, 3, 5]),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
)
def test_values_and_gradients_are_those_of_one_sample_at_a_time(formulation, batch, c, o, k, height, width):
    x, w = problem(batch, c, o, k, height, width)
    ours, theirs = sample_conv2d(x, w, formulation), one_by_one(x, w)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    got, expected = (torch.autograd.grad(y.sin().sum(), [x, w]) for y in (ours, theirs))
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


# Forward mode imports a part of torch that torch itself has deprecated.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@every_formulation
@every_kernel
def test_derivatives_of_first_and_second_order_are_those_of_finite_differences(formulation, k):
    inputs = problem(c=2, o=2, k=k, height=3, width=2)

    def convolve(x, w):
        return sample_conv2d(x, w, formulation)

    assert torch.autograd.gradcheck(convolve, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(convolve, inputs)


@every_formulation
@every_kernel
def test_it_can_be_mapped_and_differentiated_by_torch_func(formulation, k):
    x, w = (leaf.detach() for leaf in problem(k=k))
    xs, ws = torch.stack([x, 2 * x]), torch.stack([w, w])
    mapped = torch.func.vmap(lambda x, w: sample_conv2d(x, w, formulation))(xs, ws)
    torch.testing.assert_close(mapped, torch.stack([one_by_one(x, w), one_by_one(2 * x, w)]))

    def energy(x, convolve):
        return convolve(x).square().sum()

    def ours(x):
        return sample_conv2d(x, w, formulation)

    got = torch.func.grad(energy)(x, ours)
    torch.testing.assert_close(got, torch.func.grad(energy)(x, lambda x: one_by_one(x, w)))
    each = torch.func.vmap(torch.func.grad(energy), in_dims=(0, None))(xs, ours)
    torch.testing.assert_close(each, torch.stack([got, 2 * got]))


@every_formulation
def test_a_sample_does_not_depend_on_its_companions(formulation):
    x, w = problem(batch=3)
    y = sample_conv2d(x, w, formulation)
    with torch.no_grad():
        x[1:], w[1:] = torch.nan, 0.0
    torch.testing.assert_close(sample_conv2d(x, w, formulation)[:1], y[:1], rtol=1e-13, atol=1e-13)


@every_formulation
@every_kernel
def test_autocast_computes_in_the_coarser_precision_and_gives_gradients_in_the_finer(formulation, k):
    x, w = problem(k=k, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = sample_conv2d(x, w, formulation)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), one_by_one(x, w), rtol=0.05, atol=0.2)
    for leaf, grad in zip((x, w), torch.autograd.grad(y.float().sum(), [x, w]), strict=True):
        assert grad.dtype == leaf.dtype
        assert grad.isfinite().all()


@every_formulation
def test_a_flow_of_convolutions_has_the_values_and_gradients_of_one_sample_at_a_time(formulation):
    x, w = problem(c=3, o=3)

    def end(convolve):
        return ncode.solve(lambda t, x, theta: torch.tanh(convolve(x, theta)), x, 0.0, 1.0, theta=w, dt=0.25).x

    ours, theirs = end(lambda x, w: sample_conv2d(x, w, formulation)), end(one_by_one)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), [x, w]) for y in (ours, theirs)))


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        ((2, 3, 4), (2, 3, 3, 3, 3), r"x must be \(batch, c, H, W\) and w \(batch, o, c, k, k\)"),
        ((2, 3, 4, 4), (3, 3, 3, 3), "one kernel per sample"),
        ((2, 3, 4, 4), (1, 3, 3, 3, 3), r"given x \(2, 3, 4, 4\) and w \(1, 3, 3, 3, 3\)"),
        ((2, 3, 4, 4), (2, 3, 4, 3, 3), "one kernel per sample"),
        ((2, 3, 4, 4), (2, 3, 3, 2, 2), "square and of odd size; given 2 x 2"),
        ((2, 3, 4, 4), (2, 3, 3, 3, 1), "square and of odd size; given 3 x 1"),
    ],
)
def test_bad_shapes_get_a_sentence(x, w, message):
    with pytest.raises(InputError, match=message):
        sample_conv2d(torch.zeros(x), torch.zeros(w))


def test_a_misspelt_formulation_gets_the_nearest():
    with pytest.raises(InputError, match='did you mean "grouped"'):
        sample_conv2d(*problem(), "groups")


def test_the_formulation_for_gpus_says_what_it_needs():
    with pytest.raises(InputError, match=r'needs Triton, an NVIDIA GPU .* given torch.float64 on cpu: use "auto"'):
        sample_conv2d(*problem(), "implicit")


class Somewhere(NamedTuple):
    device: torch.device
    dtype: torch.dtype


@pytest.mark.parametrize(
    ("device", "dtype", "tf32", "triton", "expected"),
    [
        ("cpu", torch.float32, True, True, "grouped"),
        ("cuda", torch.float32, False, True, "implicit"),
        ("cuda", torch.float32, True, True, "implicit"),
        ("cuda", torch.float64, True, True, "unfolded"),
        ("cuda", torch.float32, False, False, "unfolded"),
        ("cuda", torch.float32, True, False, "grouped"),
        ("mps", torch.float32, True, True, "grouped"),
    ],
)
def test_the_choice_follows_device_precision_and_what_is_installed(monkeypatch, device, dtype, tf32, triton, expected):
    monkeypatch.setattr(_convolution, "_has_triton", lambda index: triton)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    assert _convolution._fastest(Somewhere(torch.device(device), dtype)) == expected
