"""Networks made of blocks: AutoN-CODE, image classifiers, and an associative memory.

autoencoder.py  `Autoencoder`, the base class
auto_ncode.py   `AutoNCODE`, whose code is the end of a linear flow that the image controls
classifier.py   `ImageClassifier`, the base class, and `Classifier`: one block and a linear read-out
memory.py       `PlasticMemory`: Hebbian weights that store patterns
scaling.py      the range of values that a model of images expects
"""

from .auto_ncode import AutoNCODE, ControlNorm, ControlNormKind, FlowStart
from .autoencoder import Autoencoder, TrainingCode
from .classifier import GAMMAS, Classifier, ClassifierOutput, Gamma, ImageClassifier, gamma, shrunk_shape
from .memory import PlasticMemory

__all__ = [
    "GAMMAS",
    "AutoNCODE",
    "Autoencoder",
    "Classifier",
    "ClassifierOutput",
    "ControlNorm",
    "ControlNormKind",
    "FlowStart",
    "Gamma",
    "ImageClassifier",
    "PlasticMemory",
    "TrainingCode",
    "gamma",
    "shrunk_shape",
]
