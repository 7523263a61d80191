import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicHermiteSpline, interp1d

import ncode
from ncode import paths

NAN = math.nan
KINDS = {"constant": paths.constant, "linear": paths.linear, "hermite": paths.hermite, "rectilinear": paths.rectilinear}
SMOOTH = [paths.linear, paths.hermite]


def data(batch=3, count=6, channels=2, seed=0):
    """Values, and knots of each sample's own."""
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, count, channels, generator=g, dtype=torch.float64)
    knots = torch.rand(batch, count, generator=g, dtype=torch.float64).add(0.1).cumsum(1)
    return values, knots


@pytest.mark.parametrize("make", [paths.constant, *SMOOTH])
def test_a_path_goes_through_its_values(make):
    values, knots = data()
    torch.testing.assert_close(make(values, knots).evaluate(knots), values)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_outside_of_its_knots_a_path_is_constant(make):
    values, knots = data()
    path = make(values, knots)
    for outside, at in ((path.start - 1e-3, path.start), (path.end + 1e-3, path.end), (path.end + 1e6, path.end)):
        torch.testing.assert_close(path.evaluate(outside), path.evaluate(at), atol=1e-14, rtol=1e-14)
        assert not path.derivative(outside).any()


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@given(seed=st.integers(0, 99))
def test_the_derivative_is_that_of_the_values(make, seed):
    path = make(*data(seed=seed))
    between = torch.rand(3, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    t = path.start[:, None] + between * (path.end - path.start)[:, None]
    slope = (path.evaluate(t + 1e-7) - path.evaluate(t - 1e-7)) / 2e-7
    away = ((t[..., None] - path.knots[:, None]).abs() > 1e-6).all(2)
    torch.testing.assert_close(path.derivative(t)[away], slope[away], atol=1e-5, rtol=1e-5)


def test_linear_and_constant_paths_are_those_of_scipy():
    values, knots = data(channels=1)
    t = knots[:, :1] + torch.linspace(0.001, 0.999, 50, dtype=torch.float64) * (knots[:, -1:] - knots[:, :1])
    for make, kind in ((paths.linear, "linear"), (paths.constant, "previous")):
        rows = zip(knots.numpy(), values[..., 0].numpy(), t.numpy(), strict=True)
        expected = [interp1d(s, v, kind=kind)(at) for s, v, at in rows]
        torch.testing.assert_close(make(values, knots).evaluate(t)[..., 0], torch.tensor(np.array(expected)))


def test_hermite_paths_are_those_of_scipy_with_backward_differences():
    values, knots = data(batch=1, channels=1)
    v, s = values[0, :, 0].numpy(), knots[0].numpy()
    slopes = np.diff(v) / np.diff(s)
    spline = CubicHermiteSpline(s, v, np.concatenate([slopes[:1], slopes]))
    t = np.linspace(s[0], s[-1], 101)
    path = paths.hermite(values, knots)
    torch.testing.assert_close(path.evaluate(torch.tensor(t)[None])[0, :, 0], torch.tensor(spline(t)))
    torch.testing.assert_close(path.derivative(torch.tensor(t)[None])[0, :, 0], torch.tensor(spline(t, 1)))


@pytest.mark.parametrize("make", [paths.linear, paths.hermite, paths.rectilinear])
def test_an_end_has_the_derivative_of_the_piece_inside(make):
    path = make(*data())
    for end, inside in ((path.start, path.start + 1e-9), (path.end, path.end - 1e-9)):
        torch.testing.assert_close(path.derivative(end), path.derivative(inside), atol=1e-6, rtol=1e-6)
        assert path.derivative(end).any()


def test_a_rectilinear_path_moves_in_time_and_then_in_value():
    values, knots = data(batch=2, count=3, channels=1)
    path = paths.rectilinear(values, knots)
    (s, v), at = (knots[0], values[0, :, 0]), torch.arange(5.0, dtype=torch.float64).expand(2, 5)
    expected = torch.stack([s[[0, 1, 1, 2, 2]], v[[0, 0, 1, 1, 2]]], 1)
    assert torch.equal(path.evaluate(at)[0], expected)


def test_missing_values_lie_between_their_neighbours():
    knots = torch.tensor([0.0, 1.0, 3.0, 4.0, 6.0])
    values = torch.tensor([[NAN, 1.0, NAN, 4.0, NAN], [NAN] * 5, [0.0, 0.0, 0.0, 0.0, 9.0]]).T[None]
    filled = paths.linear(values, knots).evaluate(knots[None])[0]
    assert torch.equal(filled[:, 0], torch.tensor([1.0, 1.0, 3.0, 4.0, 4.0]))
    assert not filled[:, 1].any()
    held = paths.constant(values, knots).evaluate(knots[None])[0, :, 0]
    assert torch.equal(held, torch.tensor([1.0, 1.0, 1.0, 4.0, 4.0]))


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_shorter_samples_are_given_by_lengths_or_by_padding_with_nan(make):
    values, knots = data(batch=2, count=6)
    lengths, padding = torch.tensor([6, 4]), (torch.arange(6) >= torch.tensor([6, 4])[:, None])
    by_lengths = make(values, knots, lengths)
    by_values = make(values.masked_fill(padding[..., None], NAN), knots)
    by_knots = make(values, knots.masked_fill(padding, NAN))
    for path in (by_values, by_knots):
        assert all(torch.equal(a, b) for a, b in zip(path, by_lengths, strict=True))
    alone = make(values[1:, :4], knots[1:, :4])
    t = torch.linspace(-1, 12, 300, dtype=torch.float64)[None]
    t = torch.cat([t, alone.knots], 1)
    together = by_lengths.rows(torch.tensor([1]))
    assert torch.equal(together.evaluate(t), alone.evaluate(t))
    assert torch.equal(together.derivative(t), alone.derivative(t))
    assert torch.equal(together.end, alone.end)


def test_time_is_the_first_channel_and_stops_with_the_sample():
    values, knots = data(batch=2, count=5, channels=1)
    path = paths.hermite(values, knots, torch.tensor([5, 3]), time=True)
    assert path.channels == 2
    t = knots[:, 1] + 0.01
    torch.testing.assert_close(path.evaluate(t)[:, 0], t)
    torch.testing.assert_close(path.evaluate(100.0)[:, 0], torch.stack([knots[0, 4], knots[1, 2]]))


def test_knots_may_be_shared_and_may_end_a_constant_path():
    values, _ = data(batch=2, count=3)
    edges = torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64)
    path = paths.constant(values, edges)
    assert torch.equal(path.end, torch.tensor([5.0, 5.0], dtype=torch.float64))
    assert torch.equal(path.knots, edges.expand(2, 4))
    assert torch.equal(path.evaluate(4.0), values[:, 2])
    short = paths.constant(values, edges, torch.tensor([3, 1]))
    assert torch.equal(short.end, torch.tensor([5.0, 1.0], dtype=torch.float64))
    assert torch.equal(short.evaluate(4.0)[1], values[1, 0])


@pytest.mark.parametrize("make", SMOOTH)
@pytest.mark.parametrize("of", ["evaluate", "derivative"])
def test_gradients_reach_values_knots_and_times(make, of):
    values, knots = data(batch=2, count=5)
    missing = values.clone()
    missing[0, 2, 1] = missing[1, 0, 0] = NAN
    t = knots[:, 2] + 0.3 * (knots[:, 3] - knots[:, 2])

    def function(values, knots, t):
        hidden = torch.where(missing.isnan(), NAN, values)
        return getattr(make(hidden, knots, torch.tensor([5, 4]), time=True), of)(t)

    assert torch.autograd.gradcheck(function, [leaf.requires_grad_() for leaf in (values, knots, t)])


@pytest.mark.parametrize("make", [paths.constant, paths.rectilinear])
def test_gradients_reach_values_that_are_carried_forward(make):
    values, knots = data(batch=2, count=4)
    t = torch.tensor([[0.5, 1.4, 2.2], [0.1, 1.7, 5.0]], dtype=torch.float64)
    hidden = torch.zeros_like(values, dtype=torch.bool)
    hidden[0, 0, 0] = hidden[1, 2, 1] = True
    function = lambda v: make(torch.where(hidden, NAN, v), knots).evaluate(t)  # noqa: E731
    assert torch.autograd.gradcheck(function, values.requires_grad_())


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
@pytest.mark.parametrize("how", ["theta", "captured"])
def test_a_solve_integrates_a_path_up_to_the_end_of_each_sample(gradient, how):
    values, knots = data(batch=4, count=6, channels=1)
    values.requires_grad_()
    path = paths.hermite(values, knots, torch.tensor([6, 2, 4, 3]))
    f = (lambda t, x, p: p.derivative(t)) if how == "theta" else (lambda t, x, p: path.derivative(t))
    sol = ncode.solve(
        f,
        path.evaluate(path.start).detach(),
        path.start.detach(),
        path.end.detach(),
        theta=path if how == "theta" else None,
        gradient=gradient,
        rtol=1e-9,
        atol=1e-9,
    )
    last = values[range(4), [5, 1, 3, 2]]
    torch.testing.assert_close(sol.x, last, atol=1e-7, rtol=0)
    sol.x.sum().backward()
    expected = torch.zeros_like(values)
    expected[range(4), [5, 1, 3, 2]] = 1.0
    expected[:, 0] -= 1.0  # x0 is given
    torch.testing.assert_close(values.grad, expected, atol=1e-6, rtol=0)


def test_a_path_as_theta_leaves_the_batch_with_its_sample():
    values, knots = data(batch=32, count=8)
    path = paths.hermite(values, knots)
    sizes = []

    def f(t, x, p):
        sizes.append(len(t))
        return (p or path).evaluate(t) - x

    x0, t1 = torch.zeros(32, 2, dtype=torch.float64), torch.linspace(0.1, 9.0, 32, dtype=torch.float64)
    travels = ncode.solve(f, x0, 0.0, t1, theta=path, rtol=1e-6).x
    assert min(sizes) < 32
    sizes.clear()
    captured = ncode.solve(f, x0, 0.0, t1, rtol=1e-6).x
    assert min(sizes) == 32
    torch.testing.assert_close(travels, captured)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_solve_with_a_path_does_not_depend_on_its_companions(make):
    values, knots = data(batch=5, count=6)
    path = make(values, knots, torch.tensor([6, 3, 2, 5, 1]))
    f = lambda t, x, p: torch.tanh(p.evaluate(t)) - x  # noqa: E731
    x0, ends = torch.zeros(5, path.channels, dtype=torch.float64), torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5])
    together = ncode.solve(f, x0, 0.0, ends, theta=path).x
    for row in range(5):
        one = torch.tensor([row])
        alone = ncode.solve(f, x0[one], 0.0, ends[one], theta=path.rows(one)).x
        torch.testing.assert_close(together[one], alone, atol=1e-12, rtol=0)


def test_paths_are_selected_shared_and_converted():
    values, knots = data(batch=3)
    path = paths.linear(values, knots)
    assert torch.equal(path.rows(torch.tensor([False, True, True])).evaluate(1.0), path.evaluate(1.0)[1:])
    assert path.to(torch.float32).evaluate(1.0).dtype == torch.float32
    shared = paths.linear(values[:1]).expand(4)
    assert torch.equal(shared.evaluate(1.5), shared.evaluate(torch.full((4,), 1.5)))
    assert repr(shared) == "Path(batch=4, knots=6, channels=2, degree=1)"
    with pytest.raises(ncode.InputError, match="a path of 3 samples cannot be that of 4"):
        path.expand(4)


def test_a_path_of_another_batch_than_x0_is_refused_by_name():
    follow, x0 = (lambda t, x, path: path.evaluate(t) - x), torch.zeros(4, 2)
    for count, hint in ((1, r"1 sample, x0 has 4: use path\.expand\(4\)"), (3, "3 samples, x0 has 4: make a path")):
        with pytest.raises(ncode.InputError, match=f"the path has {hint}"):
            ncode.solve(follow, x0, 0.0, 1.0, theta=paths.linear(torch.zeros(count, 3, 2)))


BAD = [
    ({"values": torch.zeros(2, 3)}, "values must be a floating tensor"),
    ({"values": torch.zeros(2, 3, 1, dtype=torch.int64)}, r"values must be a floating tensor.*use values\.float\(\)"),
    ({"values": torch.zeros(2, 0, 1)}, "hold nothing"),
    ({"values": torch.full((2, 3, 1), math.inf)}, "infinite in sample 0"),
    ({"values": torch.full((2, 3, 1), NAN)}, "sample 0 has no values"),
    ({"knots": torch.zeros(3)}, "increase"),
    ({"knots": torch.tensor([0.0, 2.0, 1.0])}, "those of sample 0"),
    ({"knots": torch.tensor([0.0, NAN, 1.0])}, "increase"),
    ({"knots": torch.arange(5.0)}, r"knots must be \(3,\), \(2, 3\)"),
    ({"knots": torch.zeros(3, 3)}, r"knots must be \(3,\), \(2, 3\)"),
    ({"knots": torch.ones(3, dtype=torch.bool)}, "real"),
    ({"knots": [0.0, 1.0, 2.0]}, "knots must be a tensor"),
    ({"lengths": torch.tensor([1, 4])}, "between 1 and 3"),
    ({"lengths": torch.tensor([0, 1])}, "between 1 and 3"),
    ({"lengths": torch.tensor([1.0, 2.0])}, "whole numbers"),
    ({"lengths": torch.tensor([1])}, "2 whole numbers"),
]


@pytest.mark.parametrize("make", [paths.linear, paths.hermite, paths.rectilinear])
@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_data_are_refused_with_a_sentence(make, arguments, message):
    with pytest.raises(ncode.InputError, match=message):
        make(**{"values": torch.zeros(2, 3, 1), **arguments})


@pytest.mark.parametrize("t", [torch.zeros(3), torch.zeros(2, 1, 1), torch.zeros(1, 5)])
def test_times_of_another_batch_are_refused(t):
    with pytest.raises(ncode.InputError, match="for 2 paths"):
        paths.linear(torch.zeros(2, 3, 1)).evaluate(t)


def test_a_compiled_solve_traces_a_path_and_sees_the_next_one(traced):
    f = lambda t, x, p: p.evaluate(t) - x  # noqa: E731
    x0, found = torch.zeros(3, 2, dtype=torch.float64), []
    for seed in (0, 1):
        values, knots = data(seed=seed)
        values.requires_grad_()
        for compiled in (False, True):
            sol = ncode.solve(f, x0, 0.0, 2.0, theta=paths.hermite(values, knots), compile=compiled)
            found.append((sol.x, torch.autograd.grad(sol.x.sum(), values)[0]))
    assert traced
    for eager, compiled in (found[:2], found[2:]):
        torch.testing.assert_close(eager, compiled)
