"""Codes in units of their own deviations."""

import torch
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from ncode_lab.experiments.coding.codes import Units

factors = arrays(float, 4, elements=some.floats(1e-6, 1e6))
shifts = arrays(float, 4, elements=some.floats(-10, 10))


@given(factors, shifts)
def test_units_take_scale_and_place_out_of_codes_and_give_them_back(factor, shift):
    codes = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moved = torch.from_numpy(factor) * (codes + torch.from_numpy(shift))
    units = Units.of(moved)
    torch.testing.assert_close(units(moved), Units.of(codes)(codes), rtol=0, atol=1e-9)
    torch.testing.assert_close(units.undo(units(moved)), moved)


def test_each_value_has_mean_0_and_deviation_1_and_one_that_does_not_vary_stays_finite():
    codes = torch.cat([3 + 7 * torch.randn(100, 2), torch.full((100, 1), 5.0)], 1)
    told = Units.of(codes)(codes)
    torch.testing.assert_close(told.mean(0), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(told.std(0), torch.tensor([1.0, 1.0, 0.0]))
