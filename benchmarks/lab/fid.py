"""FID and KID of CIFAR-10's training images to its test images, with the time of each part.

    python -m benchmarks.lab.fid [--data-dir DIR] [--device cuda] [--precision tf32] [--json FILE]

The published value is 3.15: agreement shows that the network, its weights, the resizing and the distance are those of
the published FID.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from ncode_lab.data import find, load
from ncode_lab.metrics import FrechetDistance, extract, kernel_distance, load_inception

from .record import Stopwatch, write_record


def main() -> None:
    """Measure, print, and write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=None, help="of CIFAR-10 and the network's weights; default: NCODE_DATA")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="ieee", help="of convolutions: ieee or tf32")
    parser.add_argument("--images", type=int, default=None, help="images per set, for a trial run on a CPU")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    network = load_inception(find("inception", given.data_dir)[0], precision=given.precision).to(given.device)
    sets = load("cifar10", given.data_dir)
    clock = Stopwatch(given.device)
    train, test = (extract(network, part.images[: given.images]) for part in sets)
    seconds = {"features": clock.lap()}
    score = FrechetDistance(network)
    score.update_features(train, real=True)
    score.update_features(test, real=False)
    found = {"score": score.name, "train to test": float(score.compute())}
    seconds["distance"] = clock.lap()
    kid = kernel_distance(train, test, subset_size=min(1000, len(test)), generator=torch.Generator().manual_seed(0))
    found |= {"KID": float(kid.mean), "KID, deviation": float(kid.std)}
    seconds["KID"] = clock.lap()
    seconds = {part: round(each, 2) for part, each in seconds.items()}
    found |= {"images": [len(train), len(test)], "precision": given.precision, "seconds": seconds}
    print(found)
    write_record("fid", found, given.device, given.json)


if __name__ == "__main__":
    main()
