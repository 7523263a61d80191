"""A script that kills a run at every moment it has, one after the other, and lets it go on each time.

Each life is a process of its own, forked here, where torch is loaded already. Prints how many moments there were, and
at which of them the run ended otherwise than one that was never killed. The best weights are not the last ones.
"""

import json
import os
import shutil
import signal
import stat
import sys
from pathlib import Path

import torch
from ncode_lab.training.progress import MetricsLog
from safetensors.torch import load_file

from .tiny import Tiny, context_at, same, train


class Killer:
    """Counts the moments at which something is written or computed, and kills the process at one of them."""

    def __init__(self, moment, folder):
        self.left = moment
        files = [path.stat() for path in folder.rglob("*") if path.is_file()]
        self.on_disk = {file.st_ino: file.st_size for file in files}
        for name in ("fsync", "rename", "replace", "mkdir"):
            self.watch(os, name, self.tear if name == "fsync" else None)
        self.watch(Tiny, "loss")
        self.watch(MetricsLog, "write", self.half_a_line)

    def watch(self, owner, name, damage=None):
        real = getattr(owner, name)

        def watched(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                if damage:
                    damage(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            if name == "fsync":
                file = os.fstat(args[0])
                self.on_disk[file.st_ino] = file.st_size
            return result

        setattr(owner, name, watched)

    def tear(self, handle):
        """Half of what is not on the disk yet is lost."""
        file = os.fstat(handle)
        if not stat.S_ISDIR(file.st_mode):
            kept = min(self.on_disk.get(file.st_ino, 0), file.st_size)
            os.ftruncate(handle, (kept + file.st_size) // 2)

    def half_a_line(self, log, *args):
        with open(log.path, "ab") as file:
            file.write(b'{"step": 3, "ki')


def life(folder, moment):
    """Run until killed at the moment, or to the end. Returns whether it came to the end."""
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        Killer(moment, folder)
        context = context_at(folder)
        model = context.fit(Tiny(scores=(0.9, 0.5)))
        context.save_tensors(
            "weights", **model.state_dict(), best=torch.tensor([context.final["best step"], context.final["error"]])
        )
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status):
        raise SystemExit(f"a life ended with an error after {moment} moments")
    return not os.WIFSIGNALED(status)


def weights(folder):
    return load_file(folder / "kept" / "weights.safetensors")


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def main(out):
    torch.set_num_threads(1)
    # Loads what is loaded when first used, so that no life has to.
    train(out / "first")
    assert life(out / "whole", 0)
    moment, wrong = 0, []
    while True:
        moment += 1
        folder = out / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        if life(folder, moment):
            break
        if moment % 3 == 0:
            # Killed again in its second life.
            life(folder, moment % 17 + 3)
        assert life(folder, 0)
        if not same(weights(folder), weights(out / "whole")) or metrics(folder) != metrics(out / "whole"):
            wrong.append(moment)
    print(json.dumps({"moments": moment - 1, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
