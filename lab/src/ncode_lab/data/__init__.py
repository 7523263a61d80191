"""Problems that are generated, and readers of published formats.

Whatever is random here is a function of a seed, and is drawn on the CPU unless a generator of another device is given:
the same seed gives the same data whatever device trains.
"""

from .augment import augment
from .batches import batch_indices, batches_per_epoch, epoch_order
from .celeba import read_celeba
from .cifar import read_cifar10
from .drawing import draw_digits, draw_shapes
from .episodes import Episodes, episodes
from .fetch import fetch
from .find import MissingData, cache_dir, find
from .idx import read_idx
from .images import Images, ImageSets, hold_out
from .load import DATASETS, load
from .normalisation import Normalisation
from .oscillation import Trajectories, oscillation
from .points import Points, annuli, reflection
from .streams import stream

__all__ = [
    "DATASETS",
    "Episodes",
    "ImageSets",
    "Images",
    "MissingData",
    "Normalisation",
    "Points",
    "Trajectories",
    "annuli",
    "augment",
    "batch_indices",
    "batches_per_epoch",
    "cache_dir",
    "draw_digits",
    "draw_shapes",
    "episodes",
    "epoch_order",
    "fetch",
    "find",
    "hold_out",
    "load",
    "oscillation",
    "read_celeba",
    "read_cifar10",
    "read_idx",
    "reflection",
    "stream",
]
