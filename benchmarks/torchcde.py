"""torchcde's own example, time-series classification by a neural CDE, with torchcde and with the drop-in for it.

    python -m benchmarks.torchcde --snapshot FOLDER           # a checkout of github.com/patrick-kidger/torchcde
    python -m benchmarks.torchcde --snapshot FOLDER --full    # also train with torchcde to the end

Data and model are those of the checkout's `example/time_series_classification.py`, imported as it is, once with
`torchcde` and once with `ncode.compat.torchcde` in its place. Steps of both start from the same seed, in one process
with one thread; then a model is trained to the end, and tested on new data by both. A training step is forward,
backward and the optimiser; its time is processor time, so that other programs disturb it less. torchsde, which torchcde
imports and the example does not use, is replaced by an empty module.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any

from .environment import describe, prepare

EXAMPLE = "example/time_series_classification.py"
COEFFICIENTS = {
    "hermite": ("cubic", "hermite_cubic_coefficients_with_backward_differences"),
    "natural": ("cubic", "natural_cubic_coeffs"),
    "linear": ("linear", "linear_interpolation_coeffs"),
}


def load_example(snapshot: Path, torchcde: Any) -> Any:
    """The example as a module, with this torchcde."""
    sys.modules["torchcde"] = torchcde
    spec = importlib.util.spec_from_file_location("example", snapshot / EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(example: Any, kind: str, steps: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """Train as the example does: the model, and the seconds and evaluations of each step."""
    import torch

    torch.manual_seed(seed)
    interpolation, coefficients = COEFFICIENTS[kind]
    x, y = example.get_data()
    model = example.NeuralCDE(3, 8, 1, interpolation=interpolation)
    optimizer, data = torch.optim.Adam(model.parameters()), getattr(example.torchcde, coefficients)(x)
    calls, seconds, evaluations, loss = [0], [], [], torch.tensor(0.0)
    model.func.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    for step in range(steps):
        rows = slice(32 * step % 128, 32 * step % 128 + 32)
        calls[0], begin = 0, time.process_time()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(data[rows]).squeeze(-1), y[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - begin)
        evaluations.append(calls[0])
    return model, {
        "steps": steps,
        "median_seconds": statistics.median(seconds),
        "seconds": [round(each, 4) for each in seconds],
        "median_evaluations": statistics.median(evaluations),
        "loss": float(loss.detach()),
    }


def logits_of(example: Any, kind: str, weights: Any, seed: int) -> tuple[Any, float]:
    """The logits of a trained model on new data, and its accuracy."""
    import torch

    torch.manual_seed(seed + 1)
    interpolation, coefficients = COEFFICIENTS[kind]
    x, y = example.get_data()
    model = example.NeuralCDE(3, 8, 1, interpolation=interpolation)
    model.load_state_dict(weights)
    with torch.no_grad():
        logits = model(getattr(example.torchcde, coefficients)(x)).squeeze(-1)
    return logits, float(((logits > 0) == (y > 0.5)).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10, help="training steps that are timed")
    parser.add_argument("--epochs", type=int, default=30, help="of the training whose accuracy is compared")
    parser.add_argument("--full", action="store_true", help="train with torchcde for all epochs, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("results/bench-torchcde-cpu.json"))
    options = parser.parse_args()
    prepare("cpu", 1)
    sys.modules.setdefault("torchsde", types.ModuleType("torchsde"))
    sys.path.insert(0, str(options.snapshot))
    import torchcde  # pyright: ignore[reportMissingImports]

    from ncode.compat import torchcde as drop_in

    libraries = {"ncode": drop_in, "torchcde": torchcde}
    examples = {name: load_example(options.snapshot, library) for name, library in libraries.items()}
    rows = {}
    for kind in COEFFICIENTS:
        row = {name: train(example, kind, options.steps, options.seed)[1] for name, example in examples.items()}
        row["speedup"] = row["torchcde"]["median_seconds"] / row["ncode"]["median_seconds"]
        rows[kind], ours, theirs = row, row["ncode"], row["torchcde"]
        print(
            f"{kind:8} {ours['median_seconds']:.3f} s per step, torchcde {theirs['median_seconds']:.3f} s:"
            f" {row['speedup']:.1f} times faster",
            flush=True,
        )
    trained = {}
    for trainer in libraries if options.full else ["ncode"]:
        model, record = train(examples[trainer], "hermite", 4 * options.epochs, options.seed)
        found = {name: logits_of(each, "hermite", model.state_dict(), options.seed) for name, each in examples.items()}
        accuracy = {name: value for name, (_, value) in found.items()}
        difference = float((found["ncode"][0] - found["torchcde"][0]).abs().max())
        trained[trainer] = {**record, "accuracy": accuracy, "largest_difference_of_logits": difference}
        print(f"trained with {trainer}: accuracy by {accuracy}; logits differ by {difference:.1e}", flush=True)
    facts = describe("cpu", 1)
    facts["versions"] = {**facts["versions"], "torchcde": torchcde.__version__}  # pyright: ignore
    chosen = [f"--{name}={getattr(options, name)}" for name in ("steps", "epochs", "seed")] + ["--full"] * options.full
    command = shlex.join(["python", "-m", "benchmarks.torchcde", "--snapshot", "FOLDER", *chosen])
    data = {
        "command": command,
        "clock": "processor time",
        "seed": options.seed,
        **facts,
        "rows": rows,
        "trained": trained,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
