import pytest
import torch
from ncode_lab.data import find
from ncode_lab.metrics import FrechetDistance, Inception, load_inception
from ncode_lab.metrics.inception import fingerprint, resize

from ncode import InputError

safetensors = pytest.importorskip("safetensors.torch")


def random_weights():
    """Weights in the form of the published file: convolutions in float16, no gains."""
    state = {}
    for name, value in Inception().state_dict().items():
        if name.endswith("conv.weight"):
            state[name] = value.half()
        elif not name.endswith(("num_batches_tracked", "bn.weight")):
            state[name] = 0.1 * torch.rand_like(value) + (1.0 if name.endswith("var") else 0.0)
    return state


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return random_weights()


@pytest.fixture
def file(weights, tmp_path):
    path = tmp_path / "inception-2015-12-05-fp16.safetensors"
    safetensors.save_file(weights, path)
    return path


def pictures(n=2, side=32):
    return torch.randint(256, (n, 3, side, side), dtype=torch.uint8)


@pytest.mark.slow
def test_weights_of_a_file_give_2048_features_that_repeat(file):
    network, images = load_inception(file), pictures(3)
    features = network(images)
    assert (features.shape, features.dtype) == ((3, 2048), torch.float32)
    assert features.isfinite().all()
    assert features.std(0).max() > 0
    torch.testing.assert_close(load_inception(file)(images[1:2]), features[1:2])


@pytest.mark.slow
def test_a_file_with_gains_and_a_last_layer_in_full_precision_is_the_same_network(weights, file, tmp_path):
    full = {name: value.float() for name, value in weights.items()}
    full |= {
        name.replace("bias", "weight"): torch.ones_like(value) for name, value in full.items() if "bn.bias" in name
    }
    full |= {"fc.weight": torch.zeros(1008, 2048), "Conv2d_1a_3x3.bn.num_batches_tracked": torch.tensor(0)}
    torch.save(full, tmp_path / "full.pth")
    one, other = load_inception(file), load_inception(tmp_path / "full.pth")
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint(Inception())
    assert not one.genuine
    assert FrechetDistance(one).name != "FID"


def test_loading_leaves_the_stream_of_random_numbers_alone(file):
    torch.manual_seed(5)
    load_inception(file)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


@pytest.mark.slow
def test_the_network_learns_nothing_and_ignores_what_a_training_loop_sets():
    network, images = Inception(), pictures()
    expected = network(images)
    network.train()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(network(images), expected)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert torch.equal(network(images), expected)


def test_batch_norms_are_part_of_the_kernels_and_change_nothing():
    unit = Inception().Mixed_5b.branch1x1
    for each in (unit.bn.weight, unit.bn.bias, unit.bn.running_mean, unit.bn.running_var):
        each.data.uniform_(0.5, 2.0)
    shown = torch.randn(2, 192, 5, 5)
    torch.testing.assert_close(unit(shown), torch.relu(unit.bn(unit.conv(shown))))


def test_features_are_of_single_precision_in_a_run_of_double_precision_too(file):
    torch.set_default_dtype(torch.float64)
    try:
        assert load_inception(file)(pictures(1)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_precision_is_one_that_there_is(file):
    assert load_inception(file, precision="tf32").precision == "tf32"
    with pytest.raises(InputError, match='did you mean "tf32"'):
        load_inception(file, precision="tf23")


@pytest.mark.parametrize(("size", "side"), [(32, 299), (64, 299), (299, 299), (5, 3), (1, 4)])
def test_the_resize_lays_its_grid_from_the_corner(size, side):
    image = torch.rand(1, 1, size, size, dtype=torch.float64)
    found = resize(image, side)[0, 0]
    for i, j in ((0, 0), (side - 1, side - 1), (side // 2, side // 3)):
        y, x = i * size / side, j * size / side
        top, left = int(y), int(x)
        down, right = min(top + 1, size - 1), min(left + 1, size - 1)
        upper = image[0, 0, top, left] * (1 - x + left) + image[0, 0, top, right] * (x - left)
        lower = image[0, 0, down, left] * (1 - x + left) + image[0, 0, down, right] * (x - left)
        torch.testing.assert_close(found[i, j], upper * (1 - y + top) + lower * (y - top), rtol=0, atol=1e-4)


def test_a_plain_image_stays_plain_where_averages_do_not_count_the_padding():
    network = Inception()
    for name, channels in (("Mixed_5b", 192), ("Mixed_6b", 768), ("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        pooled = network.get_submodule(name)._pooled(torch.ones(1, channels, 6, 6))
        torch.testing.assert_close(pooled, pooled[:, :, :1, :1].expand_as(pooled))


def test_the_last_block_alone_pools_by_the_maximum():
    network = Inception()
    spot = torch.zeros(1, 2048, 5, 5)
    spot[:, :, 2, 2] = 1
    for name, peak in (("Mixed_7b", 1 / 9), ("Mixed_7c", 1.0)):
        block = network.get_submodule(name)
        channels = block.branch_pool.conv.in_channels
        pass_one = torch.zeros_like(block.branch_pool.conv.weight)
        pass_one[0, 0] = 1
        block.branch_pool.conv.weight.copy_(pass_one)
        assert block._pooled(spot[:, :channels])[0, 0, 2, 3].item() == pytest.approx(peak, rel=1e-2)


def test_weights_are_found_in_the_data_folder(file, tmp_path, monkeypatch):
    monkeypatch.setenv("NCODE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find("inception") == (file,)
    (tmp_path / "inception").mkdir()
    moved = file.rename(tmp_path / "inception" / file.name)
    assert find("inception") == (moved,)
    other = moved.rename(tmp_path / "inception" / "pt_inception-2015-12-05-6726825d.pth")
    assert find("inception") == (other,)
    other.unlink()
    with pytest.raises(InputError, match=r"Missing: inception-2015-12-05-fp16.safetensors or .* fetch https://github"):
        find("inception")
    with pytest.raises(InputError, match=r"there is no file nowhere.safetensors"):
        load_inception("nowhere.safetensors")


def test_a_file_that_is_cut_short_gets_a_sentence(file, weights, tmp_path):
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(InputError, match="is damaged"):
        load_inception(file)
    whole = tmp_path / "weights.pth"
    torch.save(weights, whole)
    whole.write_bytes(whole.read_bytes()[:100_000])
    with pytest.raises(InputError, match="is damaged"):
        load_inception(whole)


def test_files_that_hold_no_tensors_get_a_sentence(tmp_path):
    for name, content in (("a.safetensors", b"text"), ("a.pth", b"text"), ("b.pth", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="is damaged"):
            load_inception(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match="does not hold tensors by name"):
        load_inception(tmp_path / "list.pth")


@pytest.mark.slow
def test_weights_of_another_network_get_a_sentence(weights, tmp_path):
    name = "Mixed_7c.branch_pool.conv.weight"
    wrong = {
        "1 tensors are missing, as Mixed_7c.branch_pool.conv.weight": {k: v for k, v in weights.items() if k != name},
        "1 are not of this network, as layer1.weight": {**weights, "layer1.weight": torch.zeros(1)},
        r"must be of shape \(192, 2048, 1, 1\), and is \(192, 2048, 3, 3\)": {
            **weights,
            name: torch.zeros(192, 2048, 3, 3),
        },
        "Mixed_7c.branch_pool.conv.weight is not made of finite numbers": {**weights, name: weights[name] / 0},
    }
    for sentence, state in wrong.items():
        safetensors.save_file(state, tmp_path / "wrong.safetensors")
        with pytest.raises(InputError, match=sentence):
            load_inception(tmp_path / "wrong.safetensors")


def test_images_of_the_wrong_kind_get_a_sentence():
    with pytest.raises(InputError, match="uint8"):
        Inception()(torch.rand(1, 3, 32, 32))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_features_of_a_cpu_and_keeps_the_precision_that_was_set():
    network, images = Inception(), pictures()
    expected = network(images)
    before = torch.backends.cudnn.conv.fp32_precision
    found = network.cuda()(images.cuda()).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.backends.cudnn.conv.fp32_precision == before
