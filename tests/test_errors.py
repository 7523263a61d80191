"""Checks of arguments refuse every odd value with an `InputError`, never with an error of Python or torch."""

from fractions import Fraction

import pytest
import torch

from ncode.errors import InputError, check_choice, check_count, check_flag, check_fraction, check_number, format_value


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")


ODD = [
    None,
    "16",
    b"16",
    [1],
    10**400,
    -(10**400),
    10**5000,  # more digits than Python prints
    Fraction(10**400),
    float("nan"),
    float("inf"),
    1j,
    torch.tensor(1.0),
    torch.zeros(2, 2),
    torch.zeros(2, 2).to_sparse(),
    torch.zeros(2, device="meta"),
    Unprintable(),
]
SHOWN = [f"{number} {type(value).__name__}" for number, value in enumerate(ODD)]


@pytest.mark.parametrize("value", [*ODD, True], ids=[*SHOWN, "True"])
@pytest.mark.parametrize("check", [check_number, check_count, check_fraction])
def test_what_is_no_finite_number_is_refused(check, value):
    options = {} if check is check_fraction else {"low": 0}
    with pytest.raises(InputError, match="rate must be a finite number; given "):
        check("rate", value, **options)


@pytest.mark.parametrize("value", [*ODD, 1], ids=[*SHOWN, "1"])
def test_what_is_neither_true_nor_false_is_refused(value):
    with pytest.raises(InputError, match="time must be True or False; given "):
        check_flag("time", value)


@pytest.mark.parametrize("value", ODD, ids=SHOWN)
def test_what_is_no_known_name_is_refused(value):
    with pytest.raises(InputError, match=r"unknown method .* \(known: euler, rk4\)"):
        check_choice("method", value, ["euler", "rk4"])


@pytest.mark.parametrize("value", ODD, ids=SHOWN)
def test_messages_show_values_in_a_few_words(value):
    assert 0 < len(format_value(value)) <= 80


def test_counts_are_exact():
    assert check_count("seed", 2**53 + 1) == 2**53 + 1
    assert check_count("seed", 2**64 - 1) == 2**64 - 1
    with pytest.raises(InputError, match=r"seed must be below 2\*\*64"):
        check_count("seed", 10**30)
