"""torch.export and ONNX, for steps that are known beforehand."""

import pytest
import torch
from torch import nn

import ncode

FIXED = {"method": "rk4", "dt": 0.5, "gradient": "autograd"}
FAMILY = ncode.NCODE.family()
BLOCKS = {
    **{name: lambda name=name: ncode.NCODE(*FAMILY[name].choose(2), **FIXED) for name in FAMILY},
    "linear": lambda: ncode.NCODE(ncode.dynamics.Linear(2), ncode.OpenLoop(nn.Linear(2, 3)), **FIXED),
    "sparse": lambda: ncode.NCODE(ncode.dynamics.SparseLinear(2, 1), ncode.OpenLoop(nn.Linear(2, 3)), **FIXED),
}
ANY_BATCH = {"x": {0: torch.export.Dim.DYNAMIC}}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_with_fixed_steps_is_exported(name):
    block, x = BLOCKS[name]().eval(), torch.randn(3, 2)
    program = torch.export.export(block, (x,))
    torch.testing.assert_close(program.module()(x), block(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NODE", "closed-loop N-CODE"])
def test_an_exported_block_takes_batches_of_any_size(name):
    block = BLOCKS[name]().eval()
    program = torch.export.export(block, (torch.randn(3, 2),), dynamic_shapes=ANY_BATCH)
    x = torch.randn(7, 2)
    torch.testing.assert_close(program.module()(x), block(x))


@pytest.mark.parametrize("options", [{}, {"dt": 0.5}])
def test_a_block_that_chooses_its_steps_says_what_it_needs(options):
    block = ncode.NCODE(ncode.dynamics.Linear(2), **options)
    with pytest.raises(ncode.InputError, match="steps are known beforehand"):
        torch.export.export(block, (torch.randn(3, 2),), strict=False)


def convolutional():
    gamma = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5), nn.Tanh()
    )
    f = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(5, filters=4, time=True), zeros=2)
    return ncode.NCODE(f, ncode.OpenLoop(gamma), **FIXED)


@pytest.mark.slow
def test_a_block_of_images_is_exported():
    block, x = convolutional().eval(), torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(torch.export.export(block, (x,)).module()(x), block(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the exporter
@pytest.mark.parametrize(("make", "shape"), [(BLOCKS["open-loop N-CODE"], (3, 2)), (convolutional, (2, 3, 6, 6))])
def test_onnxruntime_gives_the_same_answer(make, shape, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    block, x = make().eval(), torch.randn(*shape)
    path = str(tmp_path / "block.onnx")
    torch.onnx.export(block, (x,), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), block(x).detach(), atol=1e-5, rtol=1e-4)
