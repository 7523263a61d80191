"""Words of groups, against products of permutations."""

import pytest
import torch
from ncode_lab.data import GROUPS, products, words

from ncode import InputError


@pytest.mark.parametrize(("group", "size"), [("parity", 2), ("mod7", 7), ("a5", 60), ("s5", 120)])
def test_the_letters_generate_the_whole_group_and_each_letter_permutes_it(group, size):
    table = products(group)
    assert table.shape == (size, 2)
    assert all(column.sort().values.tolist() == list(range(size)) for column in table.T)


@pytest.mark.parametrize("group", GROUPS)
def test_two_words_are_the_same_element_exactly_if_their_products_are_the_same(group):
    letters, elements = words(group, 20, 12, generator=0)
    known = {}
    for word, found in zip(letters.tolist(), elements.tolist(), strict=True):
        now = tuple(range(len(GROUPS[group][0])))
        for letter, element in zip(word, found, strict=True):
            now = tuple(GROUPS[group][letter][i] for i in now)
            assert known.setdefault(now, element) == element
    assert len(set(known.values())) == len(known)


def test_sums_modulo_seven_count_steps_and_parity_counts_swaps():
    for group, modulus in (("mod7", 7), ("parity", 2)):
        letters, elements = words(group, 5, 40, generator=1)
        assert torch.equal(elements, letters.cumsum(1) % modulus)


def test_the_same_seed_draws_the_same_words():
    first, again, other = (words("a5", 3, 30, generator=seed) for seed in (4, 4, 5))
    assert torch.equal(first.letters, again.letters)
    assert not torch.equal(first.letters, other.letters)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match='did you mean "a5"'):
        words("a55", 1, 1, generator=0)
    with pytest.raises(InputError, match="length must be at least 1"):
        words("a5", 1, 0, generator=0)
