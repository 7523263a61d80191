import pytest
import torch

from ncode.closed_forms import _linear_kernels, linear_flow
from ncode.closed_forms.select import kernels_fit
from ncode.dynamics import SparseLinear

from . import triton_stand_in

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.fixture(params=["stand-in", CUDA])
def device(request, monkeypatch):
    """Kernels run by Triton where there is a GPU, and by a stand-in for its language."""
    if request.param == "cuda":
        return "cuda"
    if _linear_kernels._found:
        pytest.skip("Triton is installed: its kernels are not plain functions")
    monkeypatch.setattr(_linear_kernels, "tl", triton_stand_in)
    monkeypatch.setattr(_linear_kernels, "_launch", triton_stand_in.launch)
    return "cpu"


def problem(m, k, size, device, batch=3, dtype=torch.float64):
    columns = SparseLinear(m, k).columns.to(device)
    # Samples of different sizes take different numbers of parts.
    scale = size * torch.tensor([1.0, 0.3, 0.01], device=device)[:batch, None, None]
    theta = torch.randn(batch, m, k, dtype=dtype).to(device) * scale
    return theta.to(dtype).requires_grad_(), columns, torch.randn(batch, m, dtype=dtype).to(device).requires_grad_()


def both(theta, columns, x0, span):
    ours = _linear_kernels.flow(theta, columns, x0, span)
    theirs = linear_flow(theta, x0, 0.0, span, columns=columns, formulation="matrix").x
    weight = torch.randn_like(ours)
    grads = [torch.autograd.grad((end * weight).sum(), (theta, x0)) for end in (ours, theirs)]
    return (ours, *grads[0]), (theirs, *grads[1])


@pytest.mark.parametrize(("m", "k", "size"), [(5, 1, 0.1), (25, 1, 0.2), (16, 2, 0.05), (40, 3, 0.3), (8, 8, 0.2)])
def test_the_fused_flow_and_its_gradients_are_those_of_the_matrix_exponential(device, m, k, size):
    for ours, theirs in zip(*both(*problem(m, k, size, device), span=10.0), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10 * float(theirs.detach().abs().max()))


def test_a_long_flow_keeps_some_states_only_and_computes_the_others_again(device, monkeypatch):
    monkeypatch.setattr(_linear_kernels, "KEPT", 2)
    theta, columns, x0 = problem(6, 2, 0.6, device)
    for ours, theirs in zip(*both(theta, columns, x0, span=10.0), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9 * float(theirs.detach().abs().max()))


def test_single_precision_in_gives_single_precision_out_right_to_its_rounding(device):
    theta, columns, x0 = problem(30, 2, 0.2, device, dtype=torch.float32)
    exact = _linear_kernels.flow(theta.double(), columns, x0.double(), 10.0)
    ours = _linear_kernels.flow(theta, columns, x0, 10.0)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, exact.float(), rtol=1e-6, atol=1e-6 * float(exact.detach().abs().max()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e12])
def test_a_sample_that_cannot_be_computed_is_nan_and_the_others_are_not(device, bad):
    theta, columns, x0 = problem(7, 2, 0.1, device)
    with torch.no_grad():
        good = _linear_kernels.flow(theta, columns, x0, 10.0)
        theta[1, 0, 0] = bad
        ours = _linear_kernels.flow(theta, columns, x0, 10.0)
    assert ours[1].isnan().all()
    assert torch.equal(ours[[0, 2]], good[[0, 2]])


def test_a_second_derivative_is_refused_with_a_sentence(device):
    theta, columns, x0 = problem(5, 2, 0.1, device)
    (slope,) = torch.autograd.grad(_linear_kernels.flow(theta, columns, x0, 1.0).sum(), theta, create_graph=True)
    with pytest.raises(ValueError, match="second derivative"):
        slope.sum().backward()


def test_the_pattern_by_columns_follows_a_pattern_that_changes():
    columns = torch.tensor([[0, 1], [1, 2], [0, 2]])
    assert _linear_kernels.pattern_of(columns).starts.tolist() == [0, 2, 4, 6]
    assert _linear_kernels.pattern_of(columns) is _linear_kernels.pattern_of(columns)
    columns.copy_(torch.tensor([[0, 1], [0, 1], [0, 1]]))
    assert _linear_kernels.pattern_of(columns).starts.tolist() == [0, 3, 6, 6]


def test_on_a_cpu_the_kernels_are_not_asked_for():
    columns = SparseLinear(4, 2).columns
    assert not kernels_fit(torch.zeros(1, 4, 2), columns)
