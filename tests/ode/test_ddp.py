import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from .ddp_worker import GRADIENTS, Net, data, train
from .systems import close

WORKER = Path(__file__).with_name("ddp_worker.py")


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_train_to_the_weights_of_one(tmp_path):
    commands = [[sys.executable, str(WORKER), str(rank), "2", str(tmp_path)] for rank in range(2)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [worker.communicate(timeout=240)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)

    start = Net().state_dict()
    for gradient in GRADIENTS:
        alone = Net()
        train(alone, data(), gradient)
        for name in ("0", "1", "plain-0", "plain-1"):
            weights = torch.load(tmp_path / f"{gradient}-{name}.pt")
            close(weights, alone.state_dict(), rtol=1e-4, atol=1e-6)
        for name, value in alone.state_dict().items():
            assert torch.equal(value, start[name]) == (name in ("frozen", "unused")), name
