"""torch.export, ONNX and torch.jit.trace, for steps that are known beforehand."""

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
BLOCKS_THAT_CHOOSE = {
    "steps": lambda: ncode.NCODE(ncode.dynamics.MLP(2)),
    "episode": lambda: ncode.models.PlasticMemory(4),
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


def gamma():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5), nn.Tanh()
    )


def convolutional(convolution="auto", **solver):
    f = ncode.dynamics.ConvBlock(5, filters=4, time=True, convolution=convolution)
    return ncode.NCODE(ncode.dynamics.Augmented(f, zeros=2), ncode.OpenLoop(gamma()), **{**FIXED, **solver})


def classifier(**solver):
    return ncode.models.Classifier(convolutional(**solver), (3, 6, 6))


def driven_kernels():
    f = ncode.dynamics.ConvBlock(3, filters=4, controlled=("conv_3x3",))
    return ncode.NCODE(f, ncode.ClosedLoop(ncode.control.Feedback(gamma())), **FIXED)


IMAGES = {
    "classifier": classifier,
    "driven kernels": driven_kernels,
    "grouped": lambda: convolutional(convolution="grouped"),
    "unfolded": lambda: convolutional(convolution="unfolded"),
}


@pytest.mark.slow
def test_a_block_of_images_is_exported():
    block, x = convolutional().eval(), torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(torch.export.export(block, (x,)).module()(x), block(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGES)
def test_one_kernel_per_sample_is_exported_for_batches_of_any_size(name):
    block = IMAGES[name]().eval()
    program = torch.export.export(block, (torch.rand(3, 3, 6, 6),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for batch in (1, 2, 7):
        x = torch.rand(batch, 3, 6, 6)
        torch.testing.assert_close(program.module()(x), block(x))


def onnx_session(model, x, path, **options):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    torch.onnx.export(model, (x,), str(path), dynamo=True, verbose=False, **options)
    session = runtime.InferenceSession(str(path))
    return lambda x: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the exporter
@pytest.mark.parametrize(("make", "shape"), [(BLOCKS["open-loop N-CODE"], (3, 2)), (convolutional, (2, 3, 6, 6))])
def test_onnxruntime_gives_the_same_answer(make, shape, tmp_path):
    block, x = make().eval(), torch.randn(*shape)
    run = onnx_session(block, x, tmp_path / "block.onnx")
    torch.testing.assert_close(run(x), block(x).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", ["dynamic_shapes", "dynamic_axes"])
def test_onnxruntime_takes_another_batch_than_the_exporter_was_given(given, tmp_path):
    model, x = classifier(method="euler", dt=1.0).eval(), torch.rand(9, 3, 6, 6)
    options = {
        "dynamic_shapes": {"dynamic_shapes": ({0: "batch"},)},
        "dynamic_axes": {"input_names": ["images"], "dynamic_axes": {"images": {0: "batch"}}},
    }[given]
    run = onnx_session(model, x[:3], tmp_path / "model.onnx", **options)
    torch.testing.assert_close(run(x), model(x).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_convolutions_that_onnx_lacks_are_refused(tmp_path):
    pytest.importorskip("onnxscript")
    block, x = convolutional(convolution="grouped").eval(), torch.rand(3, 3, 6, 6)
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        torch.onnx.export(block, (x,), str(tmp_path / "x.onnx"), verbose=False, dynamic_shapes=({0: "batch"},))
    cause = caught.value.__cause__
    assert isinstance(cause, ncode.InputError)
    assert 'use "auto"' in str(cause)


@pytest.mark.filterwarnings("ignore:.*trac:Warning", "ignore:.*TorchScript:DeprecationWarning")
def test_a_traced_block_takes_batches_of_any_size():
    model = classifier().eval()
    traced = torch.jit.trace(model, (torch.rand(3, 3, 6, 6),), check_trace=False)
    x = torch.rand(7, 3, 6, 6)
    torch.testing.assert_close(traced(x), model(x))


@pytest.mark.filterwarnings("ignore:.*trac:Warning", "ignore:.*TorchScript:DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (BLOCKS_THAT_CHOOSE["steps"], (torch.randn(3, 2),), "steps are known beforehand"),
        (BLOCKS_THAT_CHOOSE["episode"], (torch.randn(3, 2, 4), torch.randn(3, 4)), "steps are known beforehand"),
        (lambda: convolutional(convolution="grouped"), (torch.rand(3, 3, 6, 6),), 'use "auto"'),
    ],
)
def test_a_program_that_would_hold_for_its_example_alone_is_not_traced(model, inputs, message):
    with pytest.raises(ncode.InputError, match=message):
        torch.jit.trace(model().eval(), inputs, check_trace=False)


def test_a_memory_that_is_exported_says_what_it_needs():
    model = BLOCKS_THAT_CHOOSE["episode"]()
    with pytest.raises(ncode.InputError, match="steps are known beforehand"):
        torch.export.export(model, (torch.randn(3, 2, 4), torch.randn(3, 4)))
