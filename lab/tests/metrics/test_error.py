import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.metrics import accuracy, bit_error_rate, top_k

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


def test_accuracy_and_top_k_count_the_largest_logits():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).expand(4, 4)
    labels = torch.arange(4)
    assert accuracy(logits, labels) == 0.25
    assert [top_k(logits, labels, k).item() for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_equal_logits_do_not_count_for_every_class():
    assert accuracy(torch.zeros(10, 10), torch.arange(10)).item() == pytest.approx(0.1)


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


@pytest.mark.parametrize(
    ("logits", "labels", "k", "sentence"),
    [
        (torch.ones(2, 3), torch.tensor([0, 3]), 1, "labels must be below 3, the number of logits; the largest is 3"),
        (torch.ones(2, 3), torch.tensor([0]), 1, "as many as the samples, 2; given 1"),
        (torch.ones(2, 3), torch.tensor([0, 1]), 4, "k must be at most 3"),
        (torch.ones(2), torch.tensor([0, 1]), 1, r"logits must be a tensor \(n, classes\); given \(2,\)"),
        (torch.full((2, 3), float("nan")), torch.tensor([0, 1]), 1, "2 of 2 rows hold nan"),
    ],
)
def test_logits_that_cannot_be_judged_get_a_sentence(logits, labels, k, sentence):
    with pytest.raises(InputError, match=sentence):
        top_k(logits, labels, k)
