import os

import pytest
import torch
from hypothesis import settings

# No deadline: the first example pays for imports and for whatever else this machine is doing.
settings.register_profile("local", deadline=None, max_examples=30)
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors are slower on many threads, and pytest-xdist already uses all cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
