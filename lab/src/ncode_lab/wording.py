"""What readers see: one name per model and one format of numbers, in figures, tables and reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

# By the key that settings and result files have.
MODEL_NAMES = {
    "node": "NODE",
    "anode": "ANODE",
    "anode-wide": "ANODE, wide",
    "data-control": "data-controlled NODE",
    "open-loop": "N-CODE open loop",
    "closed-loop": "N-CODE closed loop",
    # Classification: single blocks, and networks of them.
    "ncode": "N-CODE open loop",
    "ncode-3x3": "N-CODE open loop, 3×3",
    "ncode-closed": "N-CODE closed loop",
    "gamma-alone": "γ alone",
    "late-fusion": "ANODE and γ, late fusion",
    "gamma-channels": "ANODE, γ as channels",
    "ncode-net": "N-CODE network",
    "static-net": "static network",
    "static-net-wide": "static network, wide",
    # Memory.
    "ode-rnn": "ODE-RNN",
    "lstm": "LSTM",
    "lstm-miconi": "LSTM, Miconi's settings",
    "delta": "delta rule",
    "hebb-held": "Hebb's rule, bits held",
    "oja-held": "Oja's rule, bits held",
    "delta-held": "delta rule, bits held",
    "nearest": "nearest pattern (optimum)",
    # Tracking.
    "skew": "skew control",
    "skew-blocks": "skew control, blocks",
    "skew-planes": "skew control, planes",
    "dense": "dense control",
    "diagonal": "diagonal control",
    "diagonal-wide": "diagonal control, wide",
    "lstm-wide": "LSTM, wide",
    # Autoencoders.
    "auton-code": "AutoN-CODE",
    "ae": "AE",
    "ae-wide": "AE, wide",
    "vae": "VAE",
    "sparse": "sparse AE",
    "denoising": "denoising AE",
    "sphere": "sphere, no flow",
    "sphere-exp": "sphere, exponential",
    "rotation": "AutoN-CODE, rotation",
    # The Van der Pol oscillator.
    "constant": "constant control",
    "dynamic": "dynamic control",
}
# A key may stand for another model there.
NAMES_BY_EXPERIMENT = {"memory": {"ncode": "plastic N-CODE"}}

# Data sets, and groups of words, by the first part of the label of a result.
PROBLEM_NAMES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "celeba (first 10k)": "CelebA (first 10,000)",
    "a5": "A5",
    "s5": "S5",
    "mod7": "sums modulo 7",
    "networks": "Networks",
}
MEMORY = re.compile(r"n=(\d+) patterns=(\d+) degradation=(\d\.\d+)")

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# From here on, a power of ten is easier to read than digits.
LARGE = 1e6


def model_name(key: str, experiment: str = "") -> str:
    """The name of a model as readers see it; the key itself if it is unknown.

    >>> model_name("closed-loop"), model_name("ncode", "memory"), model_name("mine")
    ('N-CODE closed loop', 'plastic N-CODE', 'mine')
    """
    return NAMES_BY_EXPERIMENT.get(experiment, {}).get(key) or MODEL_NAMES.get(key, key)


def problem_name(label: str) -> str:
    """What a result was computed on, with the settings in its label, as readers see it.

    >>> problem_name("n=1000 patterns=2 degradation=0.9"), problem_name("mu=0.5")
    ('n = 1,000, 2 patterns, 90 % lost', 'µ = 0.5')
    >>> problem_name("cifar10, gamma linear, clip 1"), problem_name("mine")
    ('CIFAR-10, γ linear, clip 1', 'mine')
    """
    if memory := MEMORY.fullmatch(label):
        return f"n = {int(memory[1]):,}, {memory[2]} patterns, {per_cent(float(memory[3]), 0)} lost"
    if label.startswith("mu="):
        return label.replace("mu=", "µ = ", 1)
    first, *settings = label.split(", ")
    known = [re.sub("^gamma ", "γ ", each) for each in settings]
    return ", ".join([PROBLEM_NAMES.get(first, first), *known])


def format_number(value: float, digits: int = 2) -> str:
    """Format a number with digits after the point, or with a power of ten if it is very small or large.

    >>> format_number(0.5), format_number(3.14e-6), format_number(1940, 0), format_number(1.2e9)
    ('0.50', '3.1×10⁻⁶', '1,940', '1.2×10⁹')
    >>> format_number(float("nan"))
    'not finite'
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0 or is_plain(value, digits):
        return f"{value:,.{digits}f}"
    return _with_power(value)


def _with_power(value: float) -> str:
    mantissa, _, power = f"{value:.1e}".partition("e")
    return f"{mantissa}×10{str(int(power)).translate(SUPERSCRIPTS)}"


def format_alike(values: Iterable[float], digits: int = 2) -> list[str]:
    """Format numbers that stand side by side in one way: if one of them needs a power of ten, all have one.

    >>> format_alike([0.5, 0.25]), format_alike([0.75, 3.14e-6])
    (['0.50', '0.25'], ['7.5×10⁻¹', '3.1×10⁻⁶'])
    """
    values = list(values)
    powers = any(value and math.isfinite(value) and not is_plain(value, digits) for value in values)
    return [
        _with_power(value) if powers and value and is_plain(value, digits) else format_number(value, digits)
        for value in values
    ]


def is_plain(value: float, digits: int) -> bool:
    """Whether `format_number` needs no power of ten."""
    return 0.5 * 10.0**-digits <= abs(value) < LARGE


def per_cent(share: float, digits: int = 1) -> str:
    """Format a share in per cent. Below 1 it is never rounded up to 100 %.

    >>> per_cent(0.9996), per_cent(1.0), per_cent(2 / 3), per_cent(0.5, 0)
    ('99.9 %', '100 %', '66.7 %', '50 %')
    """
    if share == 1:
        return "100 %"
    most = 100 - 10.0**-digits
    return f"{min(100 * share, most) if share < 1 else 100 * share:.{digits}f} %"
