"""The command. Thread counts are set before torch or jax is imported, since jax reads them only then."""

import argparse
import shlex
import sys
from pathlib import Path

from .environment import prepare
from .workloads import names


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for torch and XLA (1)")
    parser.add_argument("--repeats", type=int, default=11, help="turns per row; the median counts (11)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=names(), action="append", help="a workload; may be repeated (all)")
    parser.add_argument("--peers", nargs="*", help="libraries to run beside ncode (all that are installed)")
    parser.add_argument("--no-compile", action="store_true", help="leave out rows that use torch.compile")
    parser.add_argument("--no-search", action="store_true", help="each row's first formulation, not its fastest")
    parser.add_argument("--no-tf32", action="store_true", help="whole models in float32 throughout (cifar-epoch)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one turn, no search: does all run?")
    parser.add_argument("--json", type=Path, help="where to write numbers (results/bench-solver-DEVICE.json)")
    parser.add_argument("--append", action="store_true", help="keep other workloads that the file holds already")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    prepare(options.device, options.threads)
    from .run import run

    path = options.json
    if path is None and not options.only and not options.quick and options.peers is None:
        path = Path("results") / f"bench-solver-{options.device}.json"
    command = "python -m benchmarks " + shlex.join(sys.argv[1:])
    return run(options, command.strip(), path)


if __name__ == "__main__":
    sys.exit(main())
