"""Every model of the library is exported for batches of any size: torch.export, ONNX and AOTInductor."""

import shutil

import pytest
import torch
from torch import nn

import ncode
from ncode.models import AutoNCODE, Classifier, PlasticMemory, gamma


def classifier():
    f = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(3, filters=4), zeros=2)
    return Classifier(ncode.NCODE(f, ncode.OpenLoop(gamma("conv", (1, 6, 6)))), (1, 12, 12), shrink=2)


def autoencoder():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(4, 36), nn.Sigmoid(), nn.Unflatten(1, (1, 6, 6)))
    return AutoNCODE(encoder, decoder, width=8, latent=4, norm="l2")


MODELS = {
    "classifier": (classifier, {"method": "rk4", "dt": 1.0}, lambda batch: (torch.rand(batch, 1, 12, 12),)),
    "AutoN-CODE": (autoencoder, {"method": "rk4", "dt": 2.5}, lambda batch: (torch.rand(batch, 1, 6, 6),)),
    "memory": (
        lambda: PlasticMemory(5),
        {"dt": 0.5},
        lambda batch: (torch.randn(batch, 2, 5).sign(), torch.randn(batch, 5).sign()),
    ),
}


def fixed(name):
    make, options, inputs = MODELS[name]
    return make().with_options(**options).eval(), inputs


def check(run, model, inputs, batches):
    for batch in batches:
        given = inputs(batch)
        torch.testing.assert_close(run(*given), model(*given).detach(), atol=1e-5, rtol=1e-5)


def export(model, given):
    return torch.export.export(model, given, dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in given))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_exported(name):
    model, inputs = fixed(name)
    check(export(model, inputs(3)).module(), model, inputs, (1, 2, 7))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the exporter
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_agrees_at_every_batch_size(name, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, inputs = fixed(name)
    given, file = inputs(3), str(tmp_path / "model.onnx")
    torch.onnx.export(model, given, file, dynamo=True, verbose=False, dynamic_shapes=tuple({0: "batch"} for _ in given))
    session = runtime.InferenceSession(file)

    def run(*tensors):
        named = zip(session.get_inputs(), tensors, strict=True)
        return torch.from_numpy(session.run(None, {it.name: tensor.numpy() for it, tensor in named})[0])

    check(run, model, inputs, (1, 2, 7, 33))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_aot_inductor_makes_a_program_without_python(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(nn.Linear(2, 3))).with_options(method="rk4", dt=0.5)
    program = export(block.eval(), (torch.randn(3, 2),))
    file = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "block.pt2"))
    check(torch._inductor.aoti_load_package(file), block, lambda batch: (torch.randn(batch, 2),), (1, 2, 7))
