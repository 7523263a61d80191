"""Words of groups: which element is the product of these letters?

Each letter is a permutation, and a word is their product. The answer after each letter depends on all letters before
it, and for groups that do not commute on their order.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from ncode.errors import check_choice, check_count

from .sampling import Randomness, as_generator, move

Permutation = tuple[int, ...]

# The letters of each group: two permutations that generate it.
GROUPS: dict[str, tuple[Permutation, ...]] = {
    "parity": ((0, 1), (1, 0)),  # nothing, or a swap
    "mod7": ((0, 1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 0)),  # nothing, or one step on a circle of seven
    "a5": ((1, 2, 3, 4, 0), (1, 0, 3, 2, 4)),  # a cycle of five, and two swaps
    "s5": ((1, 2, 3, 4, 0), (1, 0, 2, 3, 4)),  # a cycle of five, and one swap
}


class Words(NamedTuple):
    """Words, and the element that each of their beginnings is."""

    letters: Tensor  # (count, length), int64
    elements: Tensor  # (count, length), int64

    def to(self, device: str | torch.device) -> Words:
        """Copy to a device."""
        return Words(move(self.letters, device), move(self.elements, device))


@functools.cache
def products(group: str) -> Tensor:
    """The table (elements, letters) of a group: the element that an element becomes by a letter; element 0 is the unit.

    >>> from ncode_lab.data import products
    >>> products("parity").tolist(), [len(products(name)) for name in ("mod7", "a5", "s5")]
    ([[0, 1], [1, 0]], [7, 60, 120])
    """
    letters = GROUPS[check_choice("group", group, tuple(GROUPS))]
    elements, table = [tuple(range(len(letters[0])))], []
    place = {elements[0]: 0}
    for element in elements:  # grows until nothing is new
        row = [tuple(letter[i] for i in element) for letter in letters]
        for product in row:
            if product not in place:
                place[product] = len(elements)
                elements.append(product)
        table.append([place[product] for product in row])
    return torch.tensor(table)


def words(group: str, count: int, length: int, *, generator: Randomness) -> Words:
    """Draw words of letters that are equally likely, and find their elements.

    Args:
        group: One of `GROUPS`.
        count: Number of words.
        length: Letters of each.
        generator: A torch.Generator of the CPU, or a seed.

    >>> from ncode_lab.data import words
    >>> letters, elements = words("parity", 1, 6, generator=0)
    >>> torch.equal(elements, letters.cumsum(1) % 2)
    True
    """
    table, generator = products(group), as_generator(generator)
    count, length = check_count("count", count), check_count("length", length)
    letters = torch.randint(table.shape[1], (count, length), generator=generator)
    now, found = torch.zeros(count, dtype=torch.int64), []
    for letter in letters.unbind(1):
        now = table[now, letter]
        found.append(now)
    return Words(letters, torch.stack(found, 1))
