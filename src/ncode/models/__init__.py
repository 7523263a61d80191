"""Networks made of blocks: autoencoders, image classifiers, and an associative memory.

autoencoder.py  `Autoencoder`, the base class, and two common ones: `PlainAutoencoder`, `VariationalAutoencoder`
auto_ncode.py   `AutoNCODE`, whose code is the end of a linear flow that the image controls
coders.py       `Encoder` and `Decoder` of the paper's autoencoders
classifier.py   `ImageClassifier`, the base class, and `Classifier`: one block and a linear read-out
memory.py       `PlasticMemory`: Hebbian weights that store patterns
"""

from .auto_ncode import AutoNCODE, ControlNorm, ControlNormKind, FlowStart
from .autoencoder import Autoencoder, CodeNoise, PlainAutoencoder, TrainingCode, VariationalAutoencoder
from .classifier import GAMMAS, Classifier, ClassifierOutput, Gamma, ImageClassifier, gamma, shrunk_shape
from .coders import Architecture, Decoder, Encoder, architecture
from .memory import PlasticMemory

__all__ = [
    "GAMMAS",
    "Architecture",
    "AutoNCODE",
    "Autoencoder",
    "Classifier",
    "ClassifierOutput",
    "CodeNoise",
    "ControlNorm",
    "ControlNormKind",
    "Decoder",
    "Encoder",
    "FlowStart",
    "Gamma",
    "ImageClassifier",
    "PlainAutoencoder",
    "PlasticMemory",
    "TrainingCode",
    "VariationalAutoencoder",
    "architecture",
    "gamma",
    "shrunk_shape",
]
