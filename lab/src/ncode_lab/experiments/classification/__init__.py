"""Image classification (section 4.2 and appendix C.2 of the paper): MNIST, Fashion-MNIST and CIFAR-10."""

from .experiment import Classification
from .models import ClassifierSettings, build_classifier

__all__ = ["Classification", "ClassifierSettings", "build_classifier"]
