import math

import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

import ncode
from ncode import InputError
from ncode.closed_forms import linear_flow, taylor

from ..ode.meter import Meter
from ..ode.systems import DOUBLE, close

every_formulation = pytest.mark.parametrize("formulation", ["matrix", "action"])


def full(m):
    """A pattern in which every row is full, so that any matrix is also sparse rows."""
    return torch.arange(m).expand(m, m).contiguous()


def flow(theta, x0, t0, t1, formulation, **options):
    """The flow of full matrices by either formulation."""
    columns = full(x0.shape[1]) if formulation == "action" else None
    return linear_flow(theta, x0, t0, t1, columns=columns, formulation=formulation, **options)


def sparse(batch=3, m=6, k=2, scale=1.0, dtype=DOUBLE):
    """Sparse rows, their columns, and x0."""
    columns = torch.stack([torch.randperm(m)[:k] for _ in range(m)])
    return scale * torch.randn(batch, m, k, dtype=dtype), columns, torch.randn(batch, m, dtype=dtype)


def dense(values, columns):
    batch, m, _ = values.shape
    return values.new_zeros(batch, m, m).scatter_add(2, columns.expand_as(values), values)


def generic(theta, x0, t0, t1, **options):
    """The same by the solver."""
    return ncode.solve(
        lambda t, x, theta: (theta @ x[..., None])[..., 0],
        x0,
        t0,
        t1,
        theta=theta,
        method="dopri8",
        rtol=1e-12,
        atol=1e-13,
        **options,
    )


# Closed forms.


@every_formulation
def test_a_skew_matrix_turns(formulation):
    angle = torch.tensor([0.3, 2.0, 31.4], dtype=DOUBLE)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=DOUBLE)
    x0 = torch.tensor([[1.0, 0.0]] * 3, dtype=DOUBLE)
    x = flow(turn * angle[:, None, None], x0, 0.0, 1.0, formulation).x
    close(x, torch.stack([angle.cos(), angle.sin()], 1), rtol=1e-12, atol=1e-13)


@every_formulation
def test_a_diagonal_matrix_grows_and_decays_each_element_by_itself(formulation):
    rates = torch.tensor([[-40.0, -1.0, 0.0, 1.0, 40.0]], dtype=DOUBLE)
    x = flow(torch.diag_embed(rates), torch.ones_like(rates), 0.0, 2.0, formulation).x
    close(x, (2 * rates).exp(), rtol=1e-12, atol=0)


@every_formulation
def test_a_nilpotent_matrix_makes_a_polynomial(formulation):
    shift = 30 * torch.diag(torch.ones(3, dtype=DOUBLE), 1)[None]
    x0 = torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=DOUBLE)
    xs = flow(shift, x0, 0.0, 1.0, formulation, save_at=[0.0, 0.25, 1.0]).xs
    s = 30 * torch.tensor([0.0, 0.25, 1.0], dtype=DOUBLE)
    close(xs[0], torch.stack([s**3 / 6, s**2 / 2, s, torch.ones_like(s)], 1), rtol=1e-13)


@every_formulation
def test_no_time_leads_nowhere(formulation):
    theta, x0 = torch.randn(2, 3, 3), torch.randn(2, 3)
    reached = flow(theta, x0, 1.0, 1.0, formulation, save_at=[1.0])
    assert torch.equal(reached.x, x0)
    assert torch.equal(reached.xs[:, 0], x0)


@every_formulation
def test_the_way_back_ends_where_it_began(formulation):
    theta, x0 = torch.randn(2, 4, 4, dtype=DOUBLE), torch.randn(2, 4, dtype=DOUBLE)
    there = flow(theta, x0, 0.5, 2.5, formulation).x
    close(flow(theta, there, 2.5, 0.5, formulation).x, x0, rtol=1e-10)


# Single precision.


def large_matrices(m=12):
    """Of norm 100, with solutions that single precision can hold: turning, decaying, growing, and far from normal."""
    random = torch.randn(4, m, m)
    skew = random - random.mT
    damped = random - 1.5 * m**0.5 * torch.eye(m)
    decaying = -random @ random.mT
    matrices = torch.cat([random, skew, damped, decaying])
    matrices = 100 * matrices / torch.linalg.matrix_norm(matrices, 2)[:, None, None]
    jordan = 50 * (torch.diag(torch.ones(m - 1), 1) - torch.eye(m))
    shifted = torch.triu(10 * torch.randn(m, m), 1) - 60 * torch.eye(m)
    spread = torch.diag(torch.linspace(-80, 80, m))
    return torch.cat([0.8 * matrices[:4], matrices[4:], jordan[None], shifted[None], spread[None]])


@every_formulation
def test_single_precision_keeps_its_digits_at_norm_100(formulation):
    a = large_matrices()
    x0 = torch.randn(len(a), a.shape[1])
    x = flow(a / 10, x0, 0.0, 10.0, formulation).x
    exact = torch.as_tensor(scipy.linalg.expm((a / 10).double().numpy() * 10)) @ x0.double()[..., None]
    error = (x.double() - exact[..., 0]).norm(dim=1) / exact[..., 0].norm(dim=1)
    assert exact.abs().max() < 3e38
    assert error.max() < 2e-7


@every_formulation
def test_gradients_in_single_precision_keep_their_digits_at_norm_100(formulation):
    a = large_matrices()[4:]
    x0, u = torch.randn(2, len(a), a.shape[1])

    def gradients(theta, x0):
        theta, x0 = theta.detach().requires_grad_(), x0.detach().requires_grad_()
        x = flow(theta, x0, 0.0, 10.0, formulation).x
        return torch.autograd.grad(x, [theta, x0], u.to(x.dtype))

    single, exact = gradients(a / 10, x0), gradients((a / 10).double(), x0.double())
    for got, expected in zip(single, exact, strict=True):
        error = (got - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
        assert error.max() < 1e-5


@every_formulation
def test_what_is_too_large_is_not_finite_and_spoils_no_companion(formulation):
    theta = torch.stack([torch.eye(3), 1e3 * torch.eye(3)])
    x = flow(theta, torch.ones(2, 3), 0.0, 1.0, formulation).x
    close(x[0], torch.full((3,), math.e), rtol=1e-6)
    assert not x[1].isfinite().any()


# Beside the generic solver.


@pytest.mark.parametrize("formulation", ["auto", "matrix", "action"])
def test_values_and_gradients_are_those_of_the_solver(formulation):
    values, columns, x0 = sparse()
    t0, t1 = torch.tensor([0.0, 0.1, -0.2], dtype=DOUBLE), torch.tensor([2.0, 1.0, -3.0], dtype=DOUBLE)
    save_at = t0[:, None] + (t1 - t0)[:, None] * torch.tensor([0.0, 0.3, 0.31, 0.8, 1.0], dtype=DOUBLE)
    inputs = [leaf.requires_grad_() for leaf in (values, x0, t0, t1, save_at)]
    ours = linear_flow(values, x0, t0, t1, columns=columns, save_at=save_at, formulation=formulation)
    theirs = generic(dense(values, columns), x0, t0, t1, save_at=save_at)
    close((ours.x, ours.xs), (theirs.x, theirs.xs), rtol=1e-9, atol=1e-9)

    def loss(solution):
        return solution.x.sin().sum() + (solution.xs.cos() * torch.arange(5)[:, None]).sum()

    got, expected = (torch.autograd.grad(loss(solution), inputs) for solution in (ours, theirs))
    close(got, expected, rtol=1e-8, atol=1e-8)


def test_dense_control_has_the_values_and_gradients_of_the_solver():
    theta, x0 = (
        torch.randn(3, 4, 4, dtype=DOUBLE, requires_grad=True),
        torch.randn(3, 4, dtype=DOUBLE, requires_grad=True),
    )
    ours, theirs = linear_flow(theta, x0, 0.0, 2.0).x, generic(theta, x0, 0.0, 2.0).x
    close(ours, theirs, rtol=1e-9)
    close(*(torch.autograd.grad(x.sin().sum(), [theta, x0]) for x in (ours, theirs)), rtol=1e-8, atol=1e-9)


@every_formulation
def test_gradients_are_those_of_finite_differences(formulation):
    values, columns, x0 = sparse(batch=2, m=3)
    save_at = torch.tensor([[0.1, 1.0], [0.7, 0.9]], dtype=DOUBLE)
    inputs = [leaf.requires_grad_() for leaf in (values, x0, save_at)]

    def both(values, x0, save_at):
        return linear_flow(values, x0, 0.0, 4.0, columns=columns, save_at=save_at, formulation=formulation)

    assert torch.autograd.gradcheck(both, inputs)


def test_the_matrix_formulation_has_second_derivatives():
    theta, x0 = (
        torch.randn(2, 3, 3, dtype=DOUBLE, requires_grad=True),
        torch.randn(2, 3, dtype=DOUBLE, requires_grad=True),
    )
    assert torch.autograd.gradgradcheck(lambda theta, x0: linear_flow(theta, x0, 0.0, 2.0).x, [theta, x0])


def test_the_action_says_that_it_has_no_second_derivatives():
    values, columns, x0 = sparse()
    values.requires_grad_()
    x = linear_flow(values, x0, 0.0, 1.0, columns=columns, formulation="action").x
    (first,) = torch.autograd.grad(x.sum(), values, create_graph=True)
    with pytest.raises(InputError, match='use formulation="matrix"'):
        first.sum().backward()


@given(
    batch=st.integers(1, 4),
    m=st.integers(1, 9),
    k=st.integers(1, 4),
    size=st.floats(0, 60),
    saved=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_formulations_agree_on_any_shape_and_size(batch, m, k, size, saved, dtype):
    columns = torch.randint(m, (m, k))  # columns may repeat: their entries add up
    values = torch.randn(batch, m, k, dtype=dtype)
    values = size * values / values.abs().sum(2).amax(1)[:, None, None]
    x0, save_at = torch.randn(batch, m, dtype=dtype), torch.rand(batch, saved, dtype=DOUBLE).sort(1).values
    one, other = (
        linear_flow(values, x0, 0.0, 1.0, columns=columns, save_at=save_at, formulation=formulation)
        for formulation in ("matrix", "action")
    )
    assert one.x.shape == (batch, m)
    assert one.xs.shape == (batch, saved, m)
    assert one.x.dtype == one.xs.dtype == dtype
    # A growing part of the state hides the digits of a decaying one.
    scale = max(float(one.x.abs().max()), float(one.xs.abs().max()) if saved else 0.0)
    close(one, other, rtol=0.0, atol=scale * (1e-6 if dtype == torch.float32 else 1e-11))


# Details.


@every_formulation
def test_saved_times_shared_or_own_give_the_same(formulation):
    theta, x0 = torch.randn(2, 3, 3, dtype=DOUBLE), torch.randn(2, 3, dtype=DOUBLE)
    shared = torch.linspace(0, 2, 50, dtype=DOUBLE)
    one = flow(theta, x0, 0.0, 2.0, formulation, save_at=shared).xs
    close(one, flow(theta, x0, 0.0, 2.0, formulation, save_at=shared.expand(2, 50)).xs, rtol=0)
    for i in (1, 24, 49):
        close(one[:, i], flow(theta, x0, 0.0, float(shared[i]), formulation).x, rtol=1e-11)


@every_formulation
def test_a_sample_does_not_depend_on_its_companions(formulation):
    theta, x0 = torch.randn(2, 4, 4), torch.randn(2, 4)
    theta[1] = 50 * (theta[1] - theta[1].mT)
    alone = flow(theta[:1], x0[:1], 0.0, 1.0, formulation, save_at=[0.4]).xs
    close(flow(theta, x0, 0.0, 1.0, formulation, save_at=[0.4]).xs[:1], alone, rtol=1.2e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reach_of_the_matrix_is_what_its_degree_allows(dtype):
    reach = taylor._MATRIX_REACH[dtype]
    assert taylor.sufficient_degree(reach, dtype) == taylor._DEGREE
    assert taylor.sufficient_degree(1.01 * reach, dtype) == taylor._DEGREE + 1


def test_parts_and_degree_follow_the_norm_and_the_number_of_saved_times():
    assert taylor.plan_action(0.0, torch.float32) == (1, 5)
    assert taylor.plan_action(100.0, torch.float32)[0] == 17
    assert taylor.plan_action(1.0, torch.float64)[1] > taylor.plan_action(1.0, torch.float32)[1]
    assert taylor.plan_action(20.0, torch.float32, saved=50)[0] > taylor.plan_action(20.0, torch.float32)[0]


def test_a_bound_lets_the_flow_be_mapped():
    theta, x0 = torch.randn(3, 2, 4, 4, dtype=DOUBLE), torch.randn(3, 2, 4, dtype=DOUBLE)
    mapped = torch.func.vmap(lambda theta, x0: linear_flow(theta, x0, 0.0, 1.0, bound=20.0).x)(theta, x0)
    close(mapped, torch.stack([linear_flow(a, x, 0.0, 1.0).x for a, x in zip(theta, x0, strict=True)]))


def test_no_samples_give_no_results():
    reached = linear_flow(torch.zeros(0, 2, 2), torch.zeros(0, 2), 0.0, 1.0, save_at=[0.5, 1.0])
    assert reached.x.shape == (0, 2)
    assert reached.xs.shape == (0, 2, 2)


def test_the_action_never_forms_a_matrix():
    batch, m, k = 4, 256, 2
    columns = torch.randint(m, (m, k))
    values = torch.randn(batch, m, k, requires_grad=True)
    x0 = torch.randn(batch, m)
    with Meter() as meter:
        linear_flow(values, x0, 0.0, 10.0, columns=columns, formulation="action").x.sum().backward()
    assert max(meter.made) <= 8 * batch * m * k
    assert meter.peak < 8 * batch * m * m / 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"theta": torch.zeros(2, 3, 4)}, r"theta must be \(2, 3, 3\), one matrix per sample; given \(2, 3, 4\)"),
        ({"theta": torch.zeros(3, 3)}, "theta must be"),
        ({"theta": [[1.0]]}, "theta must be a tensor; given list"),
        ({"theta": torch.zeros(2, 3, 3, dtype=DOUBLE)}, "theta is torch.float64 and x0 torch.float32"),
        ({"theta": torch.full((2, 3, 3), torch.nan)}, r"theta \(t1 - t0\) is not finite in 2 of 2 samples: 0, 1"),
        ({"x0": torch.tensor([[1.0, 2.0, 3.0], [1.0, torch.inf, 3.0]])}, "x0 is not finite in 1 of 2 samples: 1"),
        ({"x0": torch.zeros(3)}, r"x0 must be real and of shape \(batch, m\)"),
        ({"x0": torch.zeros(2, 3, dtype=torch.complex64)}, "x0 must be real"),
        ({"x0": torch.zeros(2, 3, dtype=torch.int64)}, "floating"),
        ({"theta": torch.full((2, 3, 3), 1.0), "t1": 1e308}, "as large as inf: no digit"),
        ({"theta": torch.full((2, 3, 3), 1.0), "t1": 1e17}, r"as large as 3e\+17: no digit"),
        ({"theta": torch.full((2, 3, 3), 2.0), "t1": 1e308}, r"theta \(t1 - t0\) is not finite"),
        (
            {"theta": torch.ones(2, 3, 3), "t1": 1e9, "columns": full(3), "formulation": "action"},
            "the action would take",
        ),
        ({"t1": math.inf}, "t1 must be a finite number"),
        ({"save_at": [0.5, 2.0]}, "outside"),
        ({"save_at": [0.5, 0.2]}, "out of order"),
        ({"formulation": "matrx"}, 'did you mean "matrix"'),
        ({"formulation": "action"}, "for sparse rows"),
        ({"bound": -1.0}, "bound must be at least 0"),
        ({"columns": torch.zeros(3, 3)}, "columns must be an int64 tensor"),
        ({"columns": torch.zeros(2, 3, dtype=torch.int64)}, r"columns must be \(3, k\)"),
        ({"columns": torch.zeros(3, 2, dtype=torch.int64)}, r"theta must be \(2, 3, 2\)"),
        ({"columns": torch.full((3, 3), 3)}, "columns must be between 0 and 2"),
    ],
)
def test_bad_input_gets_a_sentence(change, message):
    good = {"theta": torch.zeros(2, 3, 3), "x0": torch.zeros(2, 3), "t0": 0.0, "t1": 1.0}
    with pytest.raises(InputError, match=message):
        linear_flow(**{**good, **change})
