"""What a classifier's row is called: the data, the regime, and whatever else differs from the defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ..models.classifier_family import CONTROLLED
from .classification_regimes import REGIMES

if TYPE_CHECKING:
    from .classification import Classification

SIZE = ("gamma", "hidden")  # of gamma
GAMMA = (*SIZE, "dropout", "scale", "control_cost")
ALL = ("kinetic_cost", "weight_decay", "label_smoothing", "clip")


def label_of(settings: Classification, model: str) -> str:
    """The name of what a model is trained on. Settings that mean nothing to the model are left out.

    >>> from ncode_lab.experiments.classification import Classification
    >>> settings = Classification(regime="modern", dropout=0.5)
    >>> [label_of(settings, model) for model in ("ncode", "anode", "ncode-net")]
    ['cifar10, modern, dropout 0.5', 'cifar10, modern', 'cifar10, modern, networks']
    """
    parts = [settings.dataset, *(["modern"] if settings.regime == "modern" else [])]
    if is_network(model):
        parts.append("networks")
    usual = {field.name: field.default for field in fields(settings)}
    regime = REGIMES[settings.regime]
    usual |= {"weight_decay": regime.weight_decay, "clip": regime.clip}
    planned = {"weight_decay": settings.planned_decay, "clip": settings.planned_clip}
    for name in matters(model):
        value = planned.get(name, getattr(settings, name))
        if value != usual[name]:
            parts.append(_written(name, value))
    if settings.planned_augment != regime.modern:
        parts.append("augmentation" if settings.planned_augment else "no augmentation")
    if settings.planned_keep != regime.keep:
        parts.append(f"{settings.planned_keep} epoch")
    return ", ".join(parts)


def matters(model: str) -> tuple[str, ...]:
    """The settings that tell one training of a model from another, in the order of a label.

    anode-wide has no gamma, but is as large as ncode is with it. Networks of blocks have a gamma of their own.

    >>> matters("anode")
    ('kinetic_cost', 'weight_decay', 'label_smoothing', 'clip', 'filters', 'zeros')
    """
    if is_network(model):
        return ("control_cost", *ALL, "width")
    if not has_flow(model):
        return (*SIZE, "dropout", *[name for name in ALL if name != "kinetic_cost"])
    gamma = GAMMA if model in CONTROLLED else SIZE if model == "anode-wide" else ()
    return (*gamma, *ALL, "filters", *(() if model == "node" else ("zeros",)))


def is_network(model: str) -> bool:
    """Whether a model has several blocks; such are compared with each other, and not with single blocks."""
    return "-net" in model


def has_flow(model: str) -> bool:
    """Whether there is anything to solve in a model."""
    return model != "gamma-alone"


def _written(name: str, value: object) -> str:
    if name == "zeros" and isinstance(value, int) and value < 0:
        return "zeros none"
    return f"{name.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
