"""The models that the paper's tables compare, by name."""

from .autoencoder_family import Plan, build_autoencoder
from .classifier_family import Design, Solver, build_classifier
from .memory import build_memory, recall
from .memory_lstm import ClampedLSTMMemory, LSTMMemory
from .memory_static import DataControlledMemory, ODERNNMemory
from .texture import Texture

__all__ = [
    "ClampedLSTMMemory",
    "DataControlledMemory",
    "Design",
    "LSTMMemory",
    "ODERNNMemory",
    "Plan",
    "Solver",
    "Texture",
    "build_autoencoder",
    "build_classifier",
    "build_memory",
    "recall",
]
