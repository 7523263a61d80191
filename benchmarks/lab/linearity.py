"""How much of AutoN-CODE's flow is linear in its control.

    python -m benchmarks.lab.linearity [--controls 20000] [--seeds 3] [--json lab/results/linearity.json]

Controls are drawn uniformly from the sphere that the norm maps them to, without an encoder, and each is mapped to its
code, the end of the flow. A linear map with an offset is fitted to half of the pairs by least squares. The fraction of
the variance of the other codes that it explains is 1 if the flow does what a linear layer could do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from ncode_lab.experiments.coding.models import AutoencoderSettings, build_autoencoder
from ncode_lab.experiments.coding.settings import PAPER

from ncode.models import AutoNCODE

from .record import write_record

FORMS = {
    "our recipe for CIFAR-10": AutoencoderSettings("cifar10", width=0.01),
    "our recipe for MNIST": AutoencoderSettings("mnist", width=0.01),
    "the paper's for CIFAR-10": AutoencoderSettings("cifar10", width=0.01, **PAPER),
}


def main() -> None:
    """Measure, print, and write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controls", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    rows = []
    for name, settings in FORMS.items():
        found = [explained(settings, given.controls, seed) for seed in range(given.seeds)]
        rows.append({"form": name, "flow": str(settings.flow), "explained": [round(each, 4) for each in found]})
        print(rows[-1], flush=True)
    write_record("linearity", {"controls": given.controls, "seeds": given.seeds, "forms": rows}, "cpu", given.json)


@torch.no_grad()
def explained(settings: AutoencoderSettings, count: int, seed: int) -> float:
    """The fraction of the variance of codes that a linear map of the control explains.

    The seed draws the pattern of non-zeros, x(0) and the controls.
    """
    model = build_autoencoder("auton-code", settings, seed)
    assert isinstance(model, AutoNCODE)
    generator = torch.Generator().manual_seed(seed)
    size = model.latent * model.nonzeros
    directions = torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)
    controls = settings.flow.gain * directions
    codes = model.flow(controls.unflatten(1, (model.latent, model.nonzeros))).double()
    inputs = torch.cat([controls.double(), torch.ones(count, 1, dtype=torch.float64)], 1)
    fitted, seen = inputs[::2], codes[::2]
    rest = codes[1::2] - inputs[1::2] @ torch.linalg.lstsq(fitted, seen).solution
    return float(1 - rest.square().sum() / (codes[1::2] - codes[1::2].mean(0)).square().sum())


if __name__ == "__main__":
    main()
