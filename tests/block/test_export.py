"""torch.export, ONNX and torch.jit.trace, for steps that are known beforehand."""

import pytest
import torch
from torch import nn

import ncode

FIXED = {"method": "rk4", "dt": 0.5}
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


class Plain(nn.Module):
    """A module that calls `ncode.solve` itself."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return ncode.solve(lambda t, x, theta: -x, x, 0.0, 1.0, **self.options).x


REFUSED = {
    "adaptive steps": (lambda: ncode.NCODE(ncode.dynamics.MLP(2)), r'block.with_options\(method="rk4", dt=0.1\)'),
    "a closed form": (lambda: ncode.NCODE(ncode.dynamics.Linear(2)), r"block.with_options\("),
    "a memory": (lambda: ncode.models.PlasticMemory(2).with_options(method="dopri5", dt=None), r"with_options\("),
    "a time as a tensor": (lambda: ncode.NCODE(ncode.dynamics.MLP(2), t1=torch.tensor(1.0), **FIXED), "give numbers"),
    "solve": (Plain, r'give solve a fixed step, as in method="rk4", dt=0.1'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_chooses_its_steps_is_refused_with_the_line_to_write(name):
    make, message = REFUSED[name]
    inputs = (torch.randn(3, 2, 2), torch.randn(3, 2)) if name == "a memory" else (torch.randn(3, 2),)
    with pytest.raises(ncode.InputError, match=f"steps are known beforehand.*{message}"):
        torch.export.export(make(), inputs, strict=False)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_fixed_steps_are_exported_whatever_their_gradient_is(gradient):
    model, x = Plain(gradient=gradient, **FIXED), torch.randn(3, 2)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(2 * x), model(2 * x))


@pytest.mark.slow
def test_a_compiled_block_is_exported_as_plain_operations():
    block, x = ncode.NCODE(ncode.dynamics.MLP(2), **FIXED), torch.randn(3, 2)
    program = torch.export.export(block.with_options(compile=True), (x,))
    torch.testing.assert_close(program.module()(2 * x), block(2 * x))


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
def test_onnxruntime_takes_another_batch_than_the_exporter_was_given(tmp_path):
    """With the older argument of the exporter; tests/models/test_deployment.py uses the newer one."""
    model, x = classifier(method="euler", dt=1.0).eval(), torch.rand(9, 3, 6, 6)
    options = {"input_names": ["images"], "dynamic_axes": {"images": {0: "batch"}}}
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
        (lambda: ncode.NCODE(ncode.dynamics.MLP(2)), (torch.randn(3, 2),), "steps are known beforehand"),
        (lambda: convolutional(convolution="grouped"), (torch.rand(3, 3, 6, 6),), 'use "auto"'),
    ],
)
def test_a_program_that_would_hold_for_its_example_alone_is_not_traced(model, inputs, message):
    with pytest.raises(ncode.InputError, match=message):
        torch.jit.trace(model().eval(), inputs, check_trace=False)
