"""Save a model over a copy of a folder, in one process per file operation, which is killed before that operation.

    python save_and_be_killed.py MODEL OLD OUT

MODEL is the folder of the model that is saved, OLD the folder over whose copies OUT/1, OUT/2, ... it is saved. Prints
the number of processes that were killed; the last copy is saved to the end.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from ncode.block import from_pretrained, save_pretrained


def kill_before(number, folder):
    """Kill this process when it begins the file operation of this number in a folder."""
    begun = 0

    def count(event, args):
        nonlocal begun
        writes = event in ("os.rename", "os.remove", "os.mkdir") or (
            event == "open" and args[2] & (os.O_RDWR | os.O_WRONLY)
        )
        if event == "fsync" or (writes and str(folder) in str(args[0])):
            begun += 1
            if begun == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sync = os.fsync  # Python has no audit event for it

    def counted_sync(handle):
        count("fsync", ())
        sync(handle)

    os.fsync = counted_sync
    sys.addaudithook(count)


def main():
    model, old, out = from_pretrained(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    for number in range(1, 100):
        folder = out / str(number)
        shutil.copytree(old, folder)
        process = os.fork()
        if process == 0:
            kill_before(number, folder)
            save_pretrained(model, folder)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0
            print(number - 1)
            return


if __name__ == "__main__":
    main()
