"""Networks made of blocks, and those that the paper compares them with.

Autoencoders, image classifiers and memories of bit patterns. Each family has classes, which take networks of your own,
and a function that builds its members by the names that tables have.
"""

from .auto_ncode import AutoNCODE
from .autoencoder import Autoencoder, Coded, PlainAutoencoder, VariationalAutoencoder
from .classifier import Classifier, ImageClassifier
from .classifier_field import WeighedConv
from .classifier_net import ClassifierNet
from .classifier_trunk import TrunkClassifier
from .code_noise import CodeNoise
from .coders import Decoder, Encoder, architecture
from .control_norms import ControlNorm
from .gammas import gamma
from .memory_plastic import PlasticMemory

__all__ = [
    "AutoNCODE",
    "Autoencoder",
    "Classifier",
    "ClassifierNet",
    "CodeNoise",
    "Coded",
    "ControlNorm",
    "Decoder",
    "Encoder",
    "ImageClassifier",
    "PlainAutoencoder",
    "PlasticMemory",
    "TrunkClassifier",
    "VariationalAutoencoder",
    "WeighedConv",
    "architecture",
    "gamma",
]
