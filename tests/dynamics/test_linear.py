import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import ncode

DOUBLE = torch.float64


@given(batch=st.integers(1, 4), m=st.integers(1, 5), seed=st.integers(0, 99))
def test_linear_multiplies_each_sample_with_its_own_matrix(batch, m, seed):
    torch.manual_seed(seed)
    f, x, w = ncode.dynamics.Linear(m), torch.randn(batch, m), torch.randn(batch, m, m)
    one_by_one = torch.stack([w[b] @ x[b] for b in range(batch)])
    torch.testing.assert_close(f(torch.zeros(batch), x, {"weight": w}), one_by_one)


@given(batch=st.integers(1, 4), m=st.integers(1, 5))
def test_a_shared_matrix_needs_no_batch_dimension(batch, m):
    f, x, w = ncode.dynamics.Linear(m), torch.randn(batch, m), torch.randn(m, m)
    t = torch.zeros(batch)
    torch.testing.assert_close(f(t, x, {"weight": w}), f(t, x, {"weight": w.expand(batch, m, m)}))


@given(batch=st.integers(1, 4), m=st.integers(1, 6), k=st.integers(1, 6), seed=st.integers(0, 99))
def test_sparse_rows_are_those_of_the_dense_matrix(batch, m, k, seed):
    k = min(k, m)
    f = ncode.dynamics.SparseLinear(m, nonzeros=k, seed=seed)
    x, values, t = torch.randn(batch, m), torch.randn(batch, m, k), torch.zeros(batch)
    dense = f.dense(values)
    assert (dense != 0).sum(2).max() <= k
    torch.testing.assert_close(f(t, x, {"weight": values}), ncode.dynamics.Linear(m)(t, x, {"weight": dense}))
    torch.testing.assert_close(f(t, x, {"weight": values[0]})[0], f(t, x, {"weight": values})[0])


def test_the_seed_fixes_the_pattern_which_has_no_position_twice():
    f, again, other = (ncode.dynamics.SparseLinear(50, nonzeros=5, seed=s) for s in (3, 3, 4))
    assert torch.equal(f.columns, again.columns)
    assert not torch.equal(f.columns, other.columns)
    assert all(len(set(row)) == 5 for row in f.columns.tolist())
    assert "columns" in f.state_dict()


def test_the_pattern_leaves_the_stream_of_random_numbers_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ncode.dynamics.SparseLinear(10)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("columns", [[[0], [4]], [[-1], [0]], [[0.5], [1.0]], [[True], [False]], [[1j], [0]]], ids=repr)
@pytest.mark.parametrize("assign", [True, False])
def test_positions_outside_of_a_row_are_not_loaded(columns, assign):
    f = ncode.dynamics.SparseLinear(2, nonzeros=1)
    with pytest.raises(ncode.InputError, match="columns must hold whole numbers from 0 to 1"):
        f.load_state_dict({"columns": torch.tensor(columns)}, assign=assign)
    f.load_state_dict({"columns": torch.tensor([[1], [1]])}, assign=assign)
    assert f.columns.tolist() == [[1], [1]]


def test_gradients_reach_state_and_control():
    x, t = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True), torch.zeros(2, dtype=DOUBLE)
    w = torch.randn(2, 3, 3, dtype=DOUBLE, requires_grad=True)
    v = torch.randn(2, 3, 2, dtype=DOUBLE, requires_grad=True)
    f, g = ncode.dynamics.Linear(3), ncode.dynamics.SparseLinear(3, 2)
    assert gradcheck(lambda x, w: f(t, x, {"weight": w}), (x, w))
    assert gradcheck(lambda x, v: g(t, x, {"weight": v}), (x, v))


def test_recurrent_is_the_activation_of_a_product():
    f = ncode.dynamics.Recurrent(3)
    x, w = torch.randn(2, 3), torch.randn(2, 3, 3)
    torch.testing.assert_close(f(torch.zeros(2), x, {"weight": w}), torch.tanh((w @ x[..., None])[..., 0]))
