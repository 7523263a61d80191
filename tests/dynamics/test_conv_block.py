import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn import functional as F

import ncode
from ncode.dynamics import conv_block
from ncode.dynamics._convolution import sample_conv2d

DOUBLE = torch.float64
KERNELS = ("conv_in", "conv_3x3", "conv_out")
NAMES = tuple(name + suffix for name in KERNELS for suffix in ("", "_bias"))


def random_control(f, batch, dtype=torch.float32):
    return {name: torch.randn(batch, *shape, dtype=dtype) / 4 for name, shape in f.control_shapes.items()}


@settings(max_examples=15)
@given(controlled=st.sets(st.sampled_from(NAMES)), batch=st.integers(1, 3))
def test_any_subset_of_kernels_and_biases_may_be_controlled(controlled, batch):
    f = ncode.dynamics.ConvBlock(2, filters=3, controlled=sorted(controlled))
    assert set(f.control_shapes) == controlled
    x, theta = torch.randn(batch, 2, 4, 5), random_control(f, batch)
    y = f(torch.zeros(batch), x, theta)
    for b in range(batch):
        w = {name: theta[name][b] if name in theta else f.weights.learned[name] for name in NAMES}
        z = x[b : b + 1]
        for name in KERNELS:
            z = F.conv2d(z, w[name], w[f"{name}_bias"], padding=w[name].shape[-1] // 2)
            z = torch.relu(z) if name != "conv_out" else z
        torch.testing.assert_close(y[b : b + 1], z, atol=1e-5, rtol=1e-4)


def test_a_shared_control_needs_no_batch_dimension():
    f = ncode.dynamics.ConvBlock(2, filters=3)
    x, t, theta = torch.randn(4, 2, 5, 5), torch.zeros(4), random_control(f, 1)
    shared = {name: value[0] for name, value in theta.items()}
    own = {name: value.expand(4, *value.shape[1:]) for name, value in theta.items()}
    torch.testing.assert_close(f(t, x, shared), f(t, x, own), atol=1e-5, rtol=1e-4)


def test_time_is_one_more_channel_of_every_layer():
    f = ncode.dynamics.ConvBlock(2, filters=3, time=True)
    assert dict(f.control_shapes) == {"conv_in": (3, 3, 1, 1), "conv_3x3": (3, 4, 3, 3), "conv_out": (2, 4, 1, 1)}
    x, theta = torch.zeros(1, 2, 4, 4), random_control(f, 1)
    assert not torch.allclose(f(torch.zeros(1), x, theta), f(torch.ones(1), x, theta))


def test_the_paper_s_block_is_the_default():
    shapes = ncode.dynamics.ConvBlock(13).control_shapes
    assert dict(shapes) == {"conv_in": (50, 13, 1, 1), "conv_3x3": (50, 50, 3, 3), "conv_out": (13, 50, 1, 1)}


def test_anode_s_block_has_anode_s_number_of_parameters():
    # ANODE on CIFAR-10: 3 + 10 channels, 64 filters, time as a channel; the published count includes a linear read-out.
    f = ncode.dynamics.ConvBlock(13, filters=64, controlled=(), time=True)
    assert sum(p.numel() for p in f.parameters()) + (13 * 32 * 32 + 1) * 10 == 172_452


def test_gradients_reach_image_and_kernels():
    f = ncode.dynamics.ConvBlock(1, filters=2, activation="tanh", controlled=("conv_3x3", "conv_out_bias")).double()
    names = list(f.control_shapes)
    theta = [value.requires_grad_() for value in random_control(f, 2, DOUBLE).values()]
    x, t = torch.randn(2, 1, 3, 3, dtype=DOUBLE, requires_grad=True), torch.zeros(2, dtype=DOUBLE)
    assert gradcheck(lambda x, *theta: f(t, x, dict(zip(names, theta, strict=True))), (x, *theta))


def test_a_block_solves_with_kernels_that_gamma_makes():
    gamma = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 6 * 6, 10), torch.nn.Tanh())
    f = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(5, filters=4), zeros=2)
    block = ncode.NCODE(f, ncode.OpenLoop(gamma))
    x = torch.randn(2, 3, 6, 6)
    assert block(x).shape == (2, 5, 6, 6)
    block(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in gamma.parameters())


def test_a_context_image_of_any_size_is_for_data_control_alone():
    f = ncode.dynamics.ConvBlock(3, filters=4, controlled=(), context=3)
    block = ncode.NCODE(f, ncode.DataControl())
    for size in (4, 6):
        assert block(torch.randn(2, 3, size, size)).shape == (2, 3, size, size)
    with pytest.raises(ncode.InputError, match="left open"):
        ncode.NCODE(ncode.dynamics.ConvBlock(3, controlled=(), context=3), ncode.OpenLoop(torch.nn.Linear(3, 3)))


def test_the_formulation_of_convolutions_can_be_chosen_and_changes_nothing_but_rounding(monkeypatch):
    asked = []

    def watched(x, w, formulation):
        asked.append(formulation)
        return sample_conv2d(x, w, formulation)

    monkeypatch.setattr(conv_block, "sample_conv2d", watched)
    x, t, found = torch.randn(2, 2, 4, 5, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE), {}
    theta = random_control(ncode.dynamics.ConvBlock(2, filters=3), 2, DOUBLE)
    for name in ("auto", "grouped", "unfolded"):
        f = ncode.dynamics.ConvBlock(2, filters=3, convolution=name).double()
        for bias in KERNELS:
            torch.nn.init.zeros_(f.weights.learned[f"{bias}_bias"])
        found[name] = f(t, x, theta)
    assert asked == ["auto"] * 3 + ["grouped"] * 3 + ["unfolded"] * 3
    torch.testing.assert_close(found["grouped"], found["auto"])
    torch.testing.assert_close(found["unfolded"], found["auto"])


def test_the_formulation_is_checked_shown_and_kept(tmp_path):
    with pytest.raises(ncode.InputError, match=r'unknown convolution .* did you mean "grouped"'):
        ncode.dynamics.ConvBlock(2, convolution="groups")
    f = ncode.dynamics.ConvBlock(2, filters=3, convolution="grouped")
    assert "convolution='grouped'" in repr(f)
    gamma = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2 * 4 * 4, 3))
    block = ncode.NCODE(f, ncode.OpenLoop(gamma))
    block(torch.randn(1, 2, 4, 4))
    block.save_pretrained(tmp_path)
    assert ncode.NCODE.from_pretrained(tmp_path).dynamics.convolution == "grouped"


@given(
    channels=st.integers(1, 10),
    filters=st.integers(1, 20),
    out=st.integers(1, 10),
    time=st.booleans(),
    activation=st.sampled_from(sorted(conv_block.ACTIVATIONS)),
)
@settings(max_examples=30, deadline=None)
def test_channels_padded_with_zeros_change_neither_values_nor_gradients(channels, filters, out, time, activation):
    torch.manual_seed(0)
    block = ncode.dynamics.ConvBlock(channels, filters, (), activation, time=time, out=out).double()
    x = torch.randn(2, channels, 5, 4, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.3, 0.7], dtype=torch.float64)
    learned = block.weights.learned
    kernels, biases = [learned[name] for name in KERNELS], [learned[f"{name}_bias"] for name in KERNELS]
    layers = conv_block.split_layers(kernels, biases, time)
    padded = conv_block.apply_padded(x, layers, conv_block.ACTIVATIONS[activation], t)
    plain = block(t, x, {})
    torch.testing.assert_close(padded, plain)
    assert padded.is_contiguous()
    wanted = [x, *kernels, *biases]
    pull = torch.randn_like(plain)
    for got, expected in zip(
        torch.autograd.grad(padded, wanted, pull), torch.autograd.grad(plain, wanted, pull), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("filters", [125, 128])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_gives_what_a_cpu_gives_with_wide_kernels_that_all_share(filters):
    torch.manual_seed(0)
    block = ncode.dynamics.ConvBlock(13, filters, (), time=True).double()
    t, x = torch.rand(4, dtype=torch.float64), torch.randn(4, 13, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(block.cuda()(t.cuda(), x.cuda(), {}).cpu(), block.cpu()(t, x, {}))


def test_parameters_have_the_order_in_which_checkpoints_store_the_state_of_an_optimiser():
    names = [name.removeprefix("weights.learned.") for name, _ in ncode.dynamics.ConvBlock(3, 4, ()).named_parameters()]
    assert names == ["conv_in", "conv_in_bias", "conv_out", "conv_out_bias", "conv_3x3", "conv_3x3_bias"]
