"""Networks made of blocks, and those that the paper compares them with.

Autoencoders, image classifiers and memories of bit patterns. Each family has classes, which take networks of your own,
and a function that builds its members by the names that tables have.
"""

from .auto_ncode import AutoNCODE
from .autoencoder import Autoencoder, Coded, PlainAutoencoder, VariationalAutoencoder
from .autoencoder_family import Plan, build_autoencoder
from .classifier import Classifier, ImageClassifier
from .classifier_family import Design, Solver, build_classifier
from .classifier_field import WeighedConv
from .classifier_net import ClassifierNet
from .classifier_trunk import TrunkClassifier
from .code_noise import CodeNoise
from .coders import Decoder, Encoder, architecture
from .control_norms import ControlNorm
from .gammas import gamma
from .memory import build_memory, recall
from .memory_lstm import ClampedLSTMMemory, LSTMMemory
from .memory_plastic import PlasticMemory
from .memory_static import DataControlledMemory, ODERNNMemory
from .texture import Texture

__all__ = [
    "AutoNCODE",
    "Autoencoder",
    "ClampedLSTMMemory",
    "Classifier",
    "ClassifierNet",
    "CodeNoise",
    "Coded",
    "ControlNorm",
    "DataControlledMemory",
    "Decoder",
    "Design",
    "Encoder",
    "ImageClassifier",
    "LSTMMemory",
    "ODERNNMemory",
    "PlainAutoencoder",
    "Plan",
    "PlasticMemory",
    "Solver",
    "Texture",
    "TrunkClassifier",
    "VariationalAutoencoder",
    "WeighedConv",
    "architecture",
    "build_autoencoder",
    "build_classifier",
    "build_memory",
    "gamma",
    "recall",
]
