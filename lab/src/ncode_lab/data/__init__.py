"""Generated problems, and image data sets by name.

Everything random is a function of a seed, and is drawn on the CPU unless a generator of another device is given: the
same seed gives the same data whatever device trains.
"""

from .datasets import DATASETS, MissingData, check_dataset, find, load
from .download import cache_dir
from .drawing import draw_digits, draw_shapes
from .images import Images, ImageSets, Normalisation, hold_out
from .own import OwnData, check_consent, describe, load_own, own_name, summarise
from .problems import Episodes, Points, annuli, episodes, oscillation, reflection
from .sampling import augment, batch_indices, batches_per_epoch, stream
from .words import GROUPS, Words, products, words

__all__ = [
    "DATASETS",
    "GROUPS",
    "Episodes",
    "ImageSets",
    "Images",
    "MissingData",
    "Normalisation",
    "OwnData",
    "Points",
    "Words",
    "annuli",
    "augment",
    "batch_indices",
    "batches_per_epoch",
    "cache_dir",
    "check_consent",
    "check_dataset",
    "describe",
    "draw_digits",
    "draw_shapes",
    "episodes",
    "find",
    "hold_out",
    "load",
    "load_own",
    "oscillation",
    "own_name",
    "products",
    "reflection",
    "stream",
    "summarise",
    "words",
]
