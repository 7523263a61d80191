"""Configuration of all tests: of the library (tests, src) and of the lab (lab/tests, lab/src)."""

import pytest
import torch
from hypothesis import settings

# The same examples in every run, so that a test that passed does not fail by chance in someone else's change.
# `make fuzz` draws new ones. No deadline: the first example pays for imports, and machines are shared.
settings.register_profile("deterministic", deadline=None, max_examples=30, derandomize=True, print_blob=True)
settings.register_profile("fuzz", deadline=None, max_examples=300, print_blob=True)
settings.register_profile("fuzz-short", deadline=None, max_examples=40, print_blob=True)
settings.load_profile("deterministic")

# A module that raises when it is imported: see the file.
collect_ignore = ["tests/without_lab"]


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors are slower on many threads, and pytest-xdist already uses all cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def every_warning():
    """Torch tells some warnings once per process: which test then fails would depend on the order of tests."""
    torch.set_warn_always(True)


@pytest.fixture(autouse=True)
def seed():
    """Draw the same random numbers in every run of a test, whichever tests run before it."""
    torch.manual_seed(0)
