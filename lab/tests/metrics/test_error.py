import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.metrics import bit_error_rate

from ncode import InputError


@given(n=st.integers(1, 50), wrong=st.integers(0, 50))
def test_the_bit_error_rate_counts_signs(n, wrong):
    target = torch.randn(n, 3).sign()
    bits = target * torch.rand(n, 3).add(0.01)
    wrong = min(wrong, 3 * n)
    bits.view(-1)[:wrong] *= -1
    assert bit_error_rate(bits, target).item() == pytest.approx(wrong / (3 * n))


def test_a_bit_that_says_nothing_is_wrong():
    assert bit_error_rate(torch.zeros(4), torch.ones(4)) == 1


@pytest.mark.parametrize(
    ("bits", "target", "sentence"),
    [
        (torch.ones(2), torch.ones(3), r"of one shape: given \(2,\), \(3,\)"),
        (torch.ones(2), torch.tensor([0.0, 1.0]), "2 \\* target - 1"),
        (torch.tensor([float("nan")]), torch.ones(1), "1 of 1 are nan"),
        ([1.0], torch.ones(1), "given list"),
    ],
)
def test_bits_that_cannot_be_compared_get_a_sentence(bits, target, sentence):
    with pytest.raises(InputError, match=sentence):
        bit_error_rate(bits, target)
