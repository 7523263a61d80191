"""Blocks of all members of the family: closed forms, gradients, batches and saved models agree."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ncode
from ncode import costs

from .promises import assert_agree, gradients, keeps_its_promises, some

FAMILY = ncode.NCODE.family()
LINEAR = {
    "linear": lambda dim: (ncode.dynamics.Linear(dim), ncode.Static()),
    "linear, open loop": lambda dim: (ncode.dynamics.Linear(dim), ncode.OpenLoop(torch.nn.Linear(dim, 4))),
}
COSTS = {"none": None, "kinetic energy": costs.KineticEnergy(), "a function": lambda t, x, theta: x.square().mean(1)}


@dataclass(frozen=True)
class Block:
    """A block, and what it is given."""

    name: str
    dim: int
    batch: int
    seed: int
    t1: float
    cost: str

    def build(self) -> tuple[ncode.NCODE, Tensor]:
        torch.manual_seed(self.seed)
        choose = LINEAR[self.name] if self.name in LINEAR else FAMILY[self.name].choose
        block = ncode.NCODE(*choose(self.dim), t1=self.t1, rtol=1e-8, atol=1e-9).double()
        return block, torch.randn(self.batch, self.dim, dtype=torch.float64, requires_grad=True)


blocks = st.builds(
    Block,
    st.sampled_from(sorted(FAMILY) + sorted(LINEAR)),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 100),
    st.sampled_from([1.0, 0.3, -1.0, 0.0]),
    st.sampled_from(sorted(COSTS)),
)


def solve(block: ncode.NCODE, x: Tensor, given: Block, **changes: Any) -> dict[str, Tensor]:
    with keeps_its_promises(x, dict(block.named_parameters())):
        solution = block.solve(x, cost=COSTS[given.cost], **changes)
    return {"x": solution.x, **({} if solution.cost is None else {"cost": solution.cost})}


def gradient(block: ncode.NCODE, x: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
    total = torch.stack([value.sin().sum() for value in values.values()]).sum()
    return gradients(total, {"x": x, **dict(block.named_parameters())})


@some
@given(blocks, st.sampled_from(["discrete", "autograd", "adjoint"]))
def test_all_gradients_and_closed_forms_agree(given_block, kind):
    block, x = given_block.build()
    usual = solve(block, x, given_block)
    generic = solve(block, x, given_block, exact=False, gradient=kind)
    assert_agree(generic, usual, 1e-5)
    assert_agree(gradient(block, x, generic), gradient(block, x, usual), 1e-4, "gradient of ")


@some
@given(blocks)
def test_samples_of_a_block_do_not_depend_on_their_batch(given_block):
    block, x = given_block.build()
    together = solve(block, x, given_block)
    for row in range(given_block.batch):
        alone = solve(block, x.detach()[row : row + 1], given_block)
        assert_agree({name: value[row : row + 1] for name, value in together.items()}, alone, 1e-6, f"sample {row}: ")


@some
@given(blocks)
def test_a_saved_block_is_the_same_block(given_block):
    block, x = given_block.build()
    try:
        with tempfile.TemporaryDirectory() as folder:
            block.save_pretrained(folder)
            loaded = ncode.NCODE.from_pretrained(folder)
    except ncode.InputError as error:
        # Drift takes a function, which needs a name that a file can use.
        assert "register" in str(error) or "import" in str(error), error  # noqa: PT017
        return
    assert_agree(solve(loaded, x, given_block), solve(block, x, given_block), 0.0)
