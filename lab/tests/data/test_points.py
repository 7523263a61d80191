import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.data import annuli, reflection

import ncode


@given(size=st.integers(1, 200), dim=st.integers(1, 5), seed=st.integers(0, 2**40))
def test_a_reflection_is_minus_the_point_and_lies_in_the_cube(size, dim, seed):
    x, y = reflection(size, dim=dim, generator=seed)
    assert x.shape == (size, dim)
    assert torch.equal(y, -x)
    assert x.abs().max() <= 1


@given(inner=st.integers(1, 60), outer=st.integers(1, 60), dim=st.integers(1, 6), seed=st.integers(0, 100))
def test_each_class_of_the_annuli_keeps_to_its_radii(inner, outer, dim, seed):
    x, y = annuli(inner, outer, dim=dim, generator=seed)
    radius = x.double().norm(dim=1)
    assert y.bincount().tolist() == [inner, outer]
    assert radius[y == 0].max() <= 0.5 + 1e-6
    assert radius[y == 1].min() >= 1.0 - 1e-6
    assert radius[y == 1].max() <= 1.5 + 1e-6


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_radius_is_drawn_as_in_the_anode_paper(dim):
    x, y = annuli(20_000, 20_000, dim=dim, generator=0)
    for label, low, high in ((0, 0.0, 0.5), (1, 1.0, 1.5)):
        u = ((x[y == label].norm(dim=1) - low) / (high - low)) ** dim
        shares = torch.histc(u.double(), bins=10, min=0, max=1) / len(u)
        assert (shares - 0.1).abs().max() < 0.01


def test_directions_are_even_around_the_circle():
    x, _ = annuli(20_000, 1, generator=0)
    angle = torch.atan2(x[:, 1], x[:, 0])
    shares = torch.histc(angle, bins=8, min=-torch.pi, max=torch.pi) / len(angle)
    assert (shares - 1 / 8).abs().max() < 0.01


def test_classes_come_in_random_order():
    _, y = annuli(500, 1000, generator=0)
    assert 0.2 < (y[:500] == 0).float().mean() < 0.5


def test_the_same_generator_gives_the_same_points_and_then_others():
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    train, again = annuli(50, 100, generator=first), annuli(50, 100, generator=second)
    held_out = annuli(50, 100, generator=first)
    assert torch.equal(train.x, again.x)
    assert torch.equal(train.y, again.y)
    assert not torch.isin(held_out.x[:, 0], train.x[:, 0]).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_seed_gives_the_same_points_on_every_device():
    for make in (lambda **k: annuli(50, 100, generator=1, **k), lambda **k: reflection(20, generator=1, **k)):
        assert torch.equal(make(device="cuda").x.cpu(), make().x)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: reflection(0, generator=0), "size must be at least 1; given 0"),
        (lambda: reflection(5, generator=None), "must be a torch.Generator or a seed; given None"),
        (lambda: annuli(generator=0, inner_radius=(1.0, 0.5)), "r_min at most r_max"),
        (lambda: annuli(generator=0, outer_radius=(1.0,)), "must be .r_min, r_max."),
        (lambda: annuli(generator=0, dim=1.5), "dim must be a whole number"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()
