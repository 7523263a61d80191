import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck

import ncode
from ncode.dynamics import BlockLinear, Linear, Skew

DOUBLE = torch.float64
KINDS = {
    "blocks": lambda: BlockLinear(6, 2),
    "diagonal": lambda: BlockLinear(4),
    "skew": lambda: Skew(4),
    "both": lambda: Skew(6, 3),
}


def control(f, *batch, dtype=torch.float32):
    return torch.randn(*batch, *f.control_shapes["weight"], dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_multiply_as_their_dense_matrix_also_shared(kind):
    f, t = KINDS[kind](), torch.zeros(5)
    x, w = torch.randn(5, f.m), control(f, 5)
    torch.testing.assert_close(f(t, x, {"weight": w}), Linear(f.m)(t, x, {"weight": f.dense(w)}))
    torch.testing.assert_close(f(t, x, {"weight": w[0]})[0], f(t, x, {"weight": w})[0])


@given(count=st.integers(1, 4), block=st.integers(1, 4))
def test_each_entry_of_a_block_linear_control_is_one_entry_of_its_blocks(count, block):
    f = BlockLinear(count * block, block)
    w = torch.arange(1.0, f.m * block + 1).reshape(f.m, block)
    blocks = torch.block_diag(*w.split(block))
    assert torch.equal(f.dense(w), blocks)


@given(count=st.integers(1, 4), block=st.integers(2, 5))
def test_each_entry_of_a_skew_control_is_two_entries_of_opposite_sign(count, block):
    f = Skew(count * block, block)
    rows, entries = f.control_shapes["weight"]
    dense = f.dense(torch.arange(1.0, rows * entries + 1).reshape(rows, entries))
    assert torch.equal(dense.T, -dense)
    # Above the diagonal, row by row, block by block.
    assert dense.triu(1)[dense.triu(1) != 0].tolist() == list(range(1, rows * entries + 1))
    assert torch.equal(dense, torch.block_diag(*(dense[i : i + block, i : i + block] for i in range(0, f.m, block))))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_state_and_control(kind):
    f, t = KINDS[kind]().double(), torch.zeros(2, dtype=DOUBLE)
    x, w = torch.randn(2, f.m, dtype=DOUBLE, requires_grad=True), control(f, 2, dtype=DOUBLE).requires_grad_()
    assert gradcheck(lambda x, w: f(t, x, {"weight": w}), (x, w))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_exact_flow_agree_with_finite_differences(kind):
    f = KINDS[kind]()
    block = ncode.NCODE(f, ncode.Static(), t1=1.5).double()
    x, w = torch.randn(2, f.m, dtype=DOUBLE, requires_grad=True), control(f, 2, dtype=DOUBLE).requires_grad_()

    def flow(x, w):
        sol = block.solve(x, theta={"weight": w}, save_at=torch.tensor([0.4, 1.1], dtype=DOUBLE))
        assert sol.stats.nfe.max() == 0
        return sol.x, sol.xs

    assert gradcheck(flow, (x, w))


@pytest.mark.parametrize("block", [None, 2, 3])
def test_a_skew_control_keeps_norms_and_distances_up_to_rounding(block):
    torch.manual_seed(0)
    turning = ncode.NCODE(Skew(6, block), ncode.OpenLoop(nn.Linear(6, 8), scale=3.0), t1=50.0).double()
    x = torch.randn(8, 6, dtype=DOUBLE)
    torch.testing.assert_close(turning(x).norm(dim=1), x.norm(dim=1), rtol=1e-13, atol=0)
    theta = {"weight": control(turning.dynamics, dtype=DOUBLE).expand(8, -1, -1)}
    ends = turning.solve(x, theta=theta).x
    torch.testing.assert_close(torch.cdist(ends, ends), torch.cdist(x, x), rtol=1e-12, atol=1e-12)


def test_ten_thousand_inputs_change_the_norm_by_rounding_only():
    torch.manual_seed(0)
    block = ncode.NCODE(Skew(4), ncode.InputControl(nn.Linear(2, 6)), t1=10_000.0).double()
    path = ncode.paths.constant(torch.randn(2, 10_001, 2, dtype=DOUBLE))
    x = torch.randn(2, 4, dtype=DOUBLE)
    torch.testing.assert_close(block(x, path=path).norm(dim=1), x.norm(dim=1), rtol=1e-11, atol=0)


def test_rotations_commute_in_planes_and_not_in_larger_blocks():
    torch.manual_seed(0)
    x = torch.randn(3, 6, dtype=DOUBLE)
    for size, commute in ((2, True), (3, False), (6, False)):
        block = ncode.NCODE(Skew(6, size)).double()
        first, second = ({"weight": control(block.dynamics, 3, dtype=DOUBLE)} for _ in range(2))
        one = block.solve(block.solve(x, theta=first).x, theta=second).x
        other = block.solve(block.solve(x, theta=second).x, theta=first).x
        assert torch.allclose(one, other, atol=1e-12) == commute


@pytest.mark.parametrize("kind", KINDS)
def test_the_solver_and_a_stiff_method_find_the_same_flow(kind):
    block = ncode.NCODE(KINDS[kind](), ncode.OpenLoop(nn.LazyLinear(4)), t1=2.0).double()
    x = torch.randn(3, block.dynamics.m, dtype=DOUBLE)
    exact = block(x)
    for method in ("dopri5", "rodas5p"):
        found = block.solve(x, exact=False, method=method, rtol=1e-9, atol=1e-11)
        assert found.stats.nfe.min() > 0
        torch.testing.assert_close(found.x, exact, rtol=1e-6, atol=1e-7)


def test_sizes_that_do_not_fit_are_refused():
    for kind in (BlockLinear, Skew):
        with pytest.raises(ncode.InputError, match=r"m must be a multiple of block.*m = 7 with block = 3"):
            kind(7, 3)
    with pytest.raises(ncode.InputError, match="m must be at least 2"):
        Skew(1)
    with pytest.raises(ncode.InputError, match="block must be at least 2"):
        Skew(4, block=1)


def test_plasticity_is_refused_since_the_control_is_no_matrix_of_synapses():
    with pytest.raises(ncode.InputError, match=r"Hebbian drives one square matrix.*'weight' \(1, 6\)"):
        ncode.NCODE(Skew(4), ncode.Hebbian(), method="rk4", dt=0.1)
