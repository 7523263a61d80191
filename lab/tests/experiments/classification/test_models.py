import sys

import pytest
import torch
from ncode_lab.experiments.classification.models import MODELS, ClassifierSettings, build_classifier, count_parameters
from ncode_lab.experiments.classification.network import ClassifierNet, WeighedConv
from ncode_lab.experiments.classification.training import control_norm, cross_entropy, evaluations, is_correct, measure
from torch.nn import functional as F

import ncode
from ncode.dynamics._convolution import sample_conv2d
from ncode.models import GAMMAS, Classifier, ImageClassifier, gamma

SHAPE = (3, 8, 8)
SMALL = {"filters": 6, "zeros": 2}


def small(name: str, **changes) -> ImageClassifier:
    return build_classifier(name, SHAPE, 10, ClassifierSettings(**{**SMALL, **changes}))


def pictures(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8)


@pytest.mark.parametrize(("shape", "number"), [((1, 28, 28), 85_462), ((3, 32, 32), 172_452)])
def test_anode_has_the_parameters_of_its_paper(shape, number):
    assert count_parameters(lambda: build_classifier("anode", shape)) == number


@pytest.mark.parametrize("kind", GAMMAS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_the_wide_anode_has_the_parameters_of_ncode(shape, kind):
    wide, ours = (
        count_parameters(lambda name=name: build_classifier(name, shape, 10, ClassifierSettings(gamma=kind)))
        for name in ("anode-wide", "ncode")
    )
    assert 0.99 * ours < wide < 1.09 * ours


def test_the_network_of_blocks_is_small_and_the_wide_static_one_as_large():
    ours, wide = (count_parameters(lambda name=name: build_classifier(name, (3, 32, 32))) for name in MODELS[-3::2])
    assert ours < 1_500_000
    assert abs(wide - ours) < 0.05 * ours


@pytest.mark.parametrize("solver", ["dopri5", "rk4"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_parameter(name, solver):
    model = small(name, solver=solver)
    answer = model.classify(pictures(4))
    answer.logits.square().sum().backward()
    assert answer.logits.shape == (4, 10)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert bool((answer.nfe > 0).all()) == (name != "gamma-alone")


@pytest.mark.parametrize("name", MODELS)
def test_an_answer_does_not_depend_on_companions(name):
    model, images = small(name).eval(), pictures(5)
    together, alone = model(images), torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ncode", "ncode-3x3", "ncode-closed", "ncode-net"])
def test_each_image_has_kernels_of_its_own(name):
    for solution in small(name).eval().classify(pictures(2)).solutions:
        assert all(not torch.equal(value[0], value[1]) for value in solution.theta.values())


@pytest.mark.parametrize("name", ["node", "anode", "anode-wide", "static-net"])
def test_static_models_share_their_control(name):
    answer = small(name).classify(pictures(2))
    assert control_norm(answer).tolist() == [0, 0]


def test_the_variants_control_what_the_paper_says():
    shapes = {name: set(small(name).block.dynamics.control_shapes) for name in MODELS[:7]}
    three = {"conv_in", "conv_3x3", "conv_out"}
    assert shapes["ncode"] == shapes["ncode-closed"] == three
    assert shapes["ncode-3x3"] == {"conv_3x3"}
    assert shapes["data-control"] == {"context"}
    assert not shapes["node"] | shapes["anode"] | shapes["anode-wide"]


def test_gamma_alone_is_the_trunk_of_ncode_and_a_linear_map():
    alone, ours = small("gamma-alone"), small("ncode")
    trunk = ours.block.controller.trunk
    alone.trunk.load_state_dict(trunk.state_dict())
    images = pictures(5)
    torch.testing.assert_close(alone(images), alone.readout(trunk(ours.normalise(images))))
    answer = alone.classify(images, ncode.costs.KineticEnergy(1.0))
    assert answer.nfe.tolist() == answer.rejected.tolist() == answer.cost.tolist() == [0] * 5


def test_pooling_in_place_of_strides_costs_no_parameters():
    strides, pools = (
        count_parameters(lambda kind=kind: gamma(kind, (3, 32, 32))) for kind in ("conv-norm", "conv-pool")
    )
    assert strides == pools


def test_a_closed_loop_moves_its_kernels():
    model, images = small("ncode-closed"), pictures(2)
    start = model.block.controller.start(model.normalise(images)).driven
    (solution,) = model.classify(images).solutions
    assert all(not torch.equal(start[name], value) for name, value in solution.theta.items())


def test_data_control_shows_the_image_to_the_first_layer():
    model, images = small("data-control"), pictures(2)
    (solution,) = model.classify(images).solutions
    torch.testing.assert_close(solution.theta["context"], model.normalise(images))


def test_bytes_and_floats_are_the_same_images():
    model, images = small("ncode").set_normalisation(torch.full((3,), 0.4), torch.full((3,), 0.2)), pictures(3)
    torch.testing.assert_close(model(images), model(images.float() / 255))
    assert bool(((model.normalise(images) * 0.2 + 0.4) * 255 - images).abs().max() < 1e-3)


def test_a_sample_that_fails_is_marked_and_leaves_the_others_alone():
    model, labels = small("ncode", zeros=-1, gamma="conv"), torch.arange(3)  # a batch norm shows samples to each other
    images = pictures(3) / 255
    bad = images.clone()
    bad[1], model.value_range = 1e38, (0.0, 1e38)

    def gradients(given: torch.Tensor, where: torch.Tensor) -> list[torch.Tensor]:
        answer = model.classify(given)
        assert torch.equal(answer.ok, where)
        assert is_correct(answer, labels[: len(given)]).le(where).all()
        value = cross_entropy(answer, labels[: len(given)]).sum()
        return list(torch.autograd.grad(value, list(model.parameters())))

    with_bad = gradients(bad, torch.tensor([True, False, True]))
    labels = labels[[0, 2]]
    for one, other in zip(with_bad, gradients(images[[0, 2]], torch.tensor([True, True])), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_classifier_gives_the_same_answers(name, tmp_path):
    model = small(name, gamma="conv-pool", dropout=0.5, shrink=2 if not name.endswith(("net", "wide")) else 1)
    model.set_normalisation(torch.rand(3), torch.rand(3) + 0.5)
    model.train()(pictures(8))  # moves the statistics of batch norms
    images, labels = pictures(6), torch.arange(6)
    model.eval().save_pretrained(tmp_path)
    again = ImageClassifier.from_pretrained(tmp_path)
    assert torch.equal(again(images), model(images))
    assert measure(again, images, labels, 4) == measure(model, images, labels, 4)


def test_a_block_is_no_classifier(tmp_path):
    ncode.NCODE(ncode.dynamics.MLP(2)).save_pretrained(tmp_path)
    with pytest.raises(ncode.InputError, match="holds a NCODE, not a Classifier"):
        Classifier.from_pretrained(tmp_path)


@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_a_measure_does_not_depend_on_chunks(chunk):
    model, images, labels = small("ncode").eval(), pictures(7), torch.arange(7)
    expected = measure(model, images, labels, 7)
    assert measure(model, images, labels, chunk) == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        answer = model.classify(images)
    assert expected["accuracy"] == pytest.approx(float(is_correct(answer, labels).float().mean()))
    assert expected["loss"] == pytest.approx(float(F.cross_entropy(answer.logits, labels)), rel=1e-5)


def test_counting_evaluations_in_backward_leaves_gradients_alone():
    images, labels = pictures(3), torch.arange(3)
    adaptive, fixed = small("ncode"), small("ncode", solver="rk4")
    with torch.no_grad():
        assert evaluations(adaptive, images, labels)["nfe backward"] >= 6
        assert evaluations(fixed, images, labels)["nfe backward"] == 0
    assert all(p.grad is None for p in (*adaptive.parameters(), *fixed.parameters()))


def test_running_costs_are_charged():
    model, images = small("ncode"), pictures(3)
    answer = model.classify(images, [ncode.costs.ControlNorm(0.5)])
    torch.testing.assert_close(answer.cost, 0.5 * control_norm(answer) ** 2, rtol=1e-3, atol=1e-4)
    assert model.classify(images).cost.tolist() == [0, 0, 0]
    assert bool((model.classify(images, ncode.costs.KineticEnergy()).cost > 0).all())


@pytest.mark.parametrize("name", ["anode", "ncode", "ncode-closed", "ncode-net"])
def test_under_autocast_the_state_keeps_its_precision(name):
    # Not smaller: torch's own bfloat16 convolutions on the CPU give wrong gradients for images of one pixel.
    model = build_classifier(name, (3, 16, 16), 10, ClassifierSettings(**SMALL, solver="rk4"))
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    exact = model(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = model.classify(images)
        cross_entropy(answer, torch.arange(3)).sum().backward()
    assert all(solution.x.dtype == torch.float32 for solution in answer.solutions)
    torch.testing.assert_close(answer.logits.float(), exact, rtol=0.1, atol=0.1)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_dropout_is_drawn_in_training_alone():
    model, images = small("ncode", dropout=0.5), pictures(3)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("kind", GAMMAS)
def test_a_gamma_gives_the_features_asked_for(kind):
    trunk = gamma(kind, (1, 28, 28), hidden=7, dropout=0.1)
    features = trunk(torch.randn(4, 1, 28, 28))
    assert features.shape == (4, 7)
    assert kind == "linear" or bool(features.abs().max() <= 1)


@pytest.mark.parametrize("rank", [0, 3])
def test_weighing_paths_is_having_kernels_of_ones_own(rank):
    f, x, t = WeighedConv(4, hidden=5, rank=rank), torch.randn(2, 4, 6, 6), torch.tensor([0.0, 0.7])
    theta = {name: torch.randn(2, *shape) for name, shape in f.control_shapes.items()}
    gain, bias = (theta[name][:, 0] + t[:, None] * theta[name][:, 1] for name in ("gain", "bias"))
    kernels = f.first.weight.expand(2, -1, -1, -1, -1).clone()
    if rank:
        kernels[..., 1, 1] += theta["up"] @ theta["down"]
    kernels = kernels * (1 + gain)[:, :, None, None, None]
    seen = F.relu(f.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
    hidden = F.relu(sample_conv2d(seen, kernels) + bias[:, :, None, None])
    torch.testing.assert_close(f(t, x, theta), f.last(hidden), rtol=1e-4, atol=1e-5)


def test_the_speed_of_a_network_s_block_is_bounded_however_large_the_state():
    f, x = WeighedConv(4), torch.randn(2, 4, 6, 6)
    theta = {name: torch.randn(2, *shape) for name, shape in f.control_shapes.items()}
    slow, fast = (f(torch.zeros(2), factor * x, theta) for factor in (100.0, 1e6))
    torch.testing.assert_close(slow, fast, rtol=1e-2, atol=1e-3)


def test_the_static_network_is_the_adaptive_one_without_its_trunks():
    ours, static = (small(name) for name in ("ncode-net", "static-net"))
    shared = {name for name, _ in ours.named_parameters() if ".controller." not in name}
    assert shared == {name for name, _ in static.named_parameters() if ".controller." not in name}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "ncode-closed"])
def test_a_step_with_fixed_steps_can_be_recorded_for_it_looks_at_no_value(name, monkeypatch):
    # Tensors without values, which users may not give, stand for a GPU that records: whoever asks for one fails.
    model, images = small(name, solver="rk4", dropout=0.5).to("meta"), pictures(4).to("meta")
    for module in [each for name, each in sys.modules.items() if name.startswith("ncode.")]:
        monkeypatch.setattr(module, "is_symbolic", lambda: True, raising=False)
        monkeypatch.setattr(module, "check_tensor", lambda name, value, *_, **__: value, raising=False)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device="cpu": False)
    answer = model.classify(images, [ncode.costs.ControlNorm(0.1), ncode.costs.KineticEnergy(0.1)])
    labels = torch.zeros(4, dtype=torch.long, device="meta")
    (cross_entropy(answer, labels, 0.1) + answer.cost).sum().backward()
    assert is_correct(answer, labels).device.type == "meta"
    assert all(p.grad is not None for p in model.parameters())


def test_a_block_saved_before_the_field_moved_to_the_lab_loads(tmp_path):
    block = ncode.NCODE(WeighedConv(4, hidden=6, rank=2))
    block.save_pretrained(tmp_path)
    assert '"class": "ncode.WeighedConv"' in (tmp_path / "config.json").read_text()
    assert isinstance(ncode.NCODE.from_pretrained(tmp_path).dynamics, WeighedConv)


def test_blocks_are_solved_as_told():
    settings = small("ncode", solver="rk4", steps=4, compile=True).block.settings.options
    assert (settings.method, settings.dt, settings.gradient, settings.compile) == ("rk4", 0.25, "discrete", True)
    settings = build_classifier("ncode", SHAPE, rtol=1e-2, step="batch").block.settings.options
    assert (settings.method, settings.rtol, settings.atol, settings.step) == ("dopri5", 1e-2, 1e-3, "batch")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: build_classifier("ncod", SHAPE), "ncode"),
        (lambda: ClassifierSettings(gamma="convolution"), "conv"),
        (lambda: ClassifierSettings(solver="dopri"), "dopri5"),
        (lambda: build_classifier("ncode", SHAPE, rtol=-1.0), "rtol"),
        (lambda: gamma("conv", SHAPE, dropout=1.0), "dropout must be at least 0 and below 1"),
        (lambda: small("ncode", shrink=4), "cannot be shrunk by 4"),
        (lambda: small("ncode")(torch.zeros(2, 1, 8, 8)), r"takes images \(batch, 3, 8, 8\); given \(2, 1, 8, 8\)"),
        (lambda: Classifier(ncode.NCODE(ncode.dynamics.MLP(2)), SHAPE), "state must be"),
        (lambda: ClassifierNet((3, 8)), "shape must be"),
        (lambda: ClassifierNet(SHAPE, widths=(0,)), "widths"),
    ],
)
def test_bad_input_gets_a_sentence(wrong, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        wrong()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", MODELS)
def test_on_cuda_the_answers_are_those_of_the_cpu(name):
    model, images = small(name).eval(), pictures(4)
    with torch.no_grad():
        expected, found = model(images), model.cuda()(images.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-2, atol=2e-2)
