"""A trained block in other programs: a folder, torch.export, ONNX and AOTInductor.

Adaptive steps depend on values, so what is exported takes fixed steps. How many: as many as keep the error small.

    python examples/deployment.py --out out/deployment          # needs the extras hub and onnx
    python examples/deployment.py --out out/deployment --aoti   # also needs a C++ compiler, and a minute
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import ncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/deployment"))
    parser.add_argument("--aoti", action="store_true", help="compile a program that needs no Python")
    given = parser.parse_args()
    torch.manual_seed(0)

    trunk = nn.Sequential(nn.Linear(2, 16), nn.Tanh())
    trained = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(trunk))  # train it here
    trained.save_pretrained(given.out, {"Task": "an example"})  # weights, configuration and a model card
    block = ncode.NCODE.from_pretrained(given.out)

    x = torch.randn(100, 2)
    exact = block.with_options(rtol=1e-7, atol=1e-7)(x)
    for dt in (1.0, 0.5, 0.25):
        error = (block.with_options(method="rk4", dt=dt)(x) - exact).abs().max().item()
        print(f"rk4, dt = {dt}: error {error:.1e}")
    fixed = block.with_options(method="rk4", dt=0.25)  # shares the weights of `block`

    any_batch = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(fixed, (x,), dynamic_shapes=any_batch)
    torch.export.save(program, given.out / "block.pt2")
    compare("torch.export", torch.export.load(given.out / "block.pt2").module(), fixed)

    import onnxruntime

    file = str(given.out / "block.onnx")
    torch.onnx.export(fixed, (x,), file, dynamo=True, verbose=False, dynamic_shapes=({0: "batch"},))
    session = onnxruntime.InferenceSession(file)
    name = session.get_inputs()[0].name
    compare("ONNX", lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0]), fixed)

    if given.aoti:
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(given.out / "compiled.pt2"))
        compare("AOTInductor", torch._inductor.aoti_load_package(package), fixed)


def compare(name, run, block):
    differences = [(run(x) - block(x)).abs().max().item() for x in (torch.randn(batch, 2) for batch in (1, 7, 1000))]
    print(f"{name}: batches of 1, 7 and 1000 differ by at most {max(differences):.1e}")


if __name__ == "__main__":
    main()
