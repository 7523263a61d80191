from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ncode_lab.experiments.coding import scoring
from ncode_lab.experiments.coding.generate import Generate
from ncode_lab.experiments.coding.scoring import cached_features


class Sums:
    """Features that count how often they are made."""

    def __init__(self):
        self.calls = 0

    def __call__(self, images):
        self.calls += 1
        return images.float().flatten(1).sum(1, keepdim=True)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def images():
    return torch.randint(256, (6, 3, 4, 4), dtype=torch.uint8)


def test_features_of_the_same_images_are_made_once(cache, images):
    made = Sums()
    found = [cached_features(images, "sums", made) for _ in range(2)]
    assert made.calls == 1
    assert torch.equal(*found)


def test_other_images_and_other_networks_have_features_of_their_own(cache, images):
    made, other = Sums(), images.clone()
    other[-1, -1, -1, -1] ^= 1
    first = cached_features(images, "sums", made)
    assert not torch.equal(first, cached_features(other, "sums", made))
    cached_features(images, "sums in tf32", made)
    cached_features(images.reshape(6, 3, 2, 8), "sums", made)
    assert made.calls == 4


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"", lambda content: b"{}" * 40])
def test_damaged_files_are_made_again(cache, images, damage):
    made = Sums()
    wanted = cached_features(images, "sums", made)
    (path,) = Path(cache).glob("ncode/features/*.safetensors")
    path.write_bytes(damage(path.read_bytes()))
    assert torch.equal(cached_features(images, "sums", made), wanted)
    assert made.calls == 2
    cached_features(images, "sums", made)
    assert made.calls == 2


def test_a_cache_that_cannot_be_written_stops_nothing(cache, images):
    (cache / "ncode").write_text("a file where a folder should be")
    made = Sums()
    assert torch.equal(cached_features(images, "sums", made), made(images))


def test_the_precision_of_the_fid_network_is_as_told(tmp_path, monkeypatch):
    weights, asked = tmp_path / "weights.safetensors", []
    weights.touch()

    def load(path, precision):
        asked.append((path, precision))
        return SimpleNamespace(genuine=True)

    monkeypatch.setattr(scoring, "load_inception", load)
    scoring._inception.cache_clear()
    for precision in ("tf32", "ieee"):
        settings = {**Generate.presets["smoke"], "score": "fid", "fid_weights": str(weights)}
        Generate(**settings, fid_precision=precision).trials([0])
    scoring._inception.cache_clear()
    assert asked == [(weights, "tf32"), (weights, "ieee")]
