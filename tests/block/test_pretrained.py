import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ncode
from ncode.block.config import from_data, to_data

pytest.importorskip("safetensors")


def image_gamma():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 10, bias=False),
        nn.Tanh(),
    )


def parts():
    return ncode.control.Parts(
        {"context": ncode.DataControl(), ("weight_1", "bias_1"): ncode.OpenLoop(nn.Linear(2, 4))}, rest=ncode.Static()
    )


BLOCKS = {
    "NODE": lambda: ncode.NCODE(ncode.dynamics.MLP(2, hidden=(4, 5), time=True), rtol=1e-5),
    "PID": lambda: ncode.NCODE(ncode.dynamics.MLP(2), step_rule=ncode.PID(p=0.2)),
    "second order": lambda: ncode.NCODE(ncode.dynamics.SecondOrder(ncode.dynamics.MLP(4, out=2), nn.Linear(2, 2))),
    "skew": lambda: ncode.NCODE(ncode.dynamics.Skew(2), ncode.OpenLoop(nn.Linear(2, 4)), t1=10.0),
    "sparse": lambda: ncode.NCODE(ncode.dynamics.SparseLinear(2, 1, seed=3), ncode.OpenLoop(nn.Linear(2, 4)), t1=10.0),
    "closed loop": lambda: ncode.NCODE(
        ncode.dynamics.MLP(2),
        ncode.ClosedLoop(ncode.control.Feedback(nn.Linear(2, 4)), initial=ncode.OpenLoop(nn.Linear(2, 3))),
    ),
    "time-varying": lambda: ncode.NCODE(ncode.dynamics.MLP(2), ncode.TimeVarying("polynomial", 4)),
    "plastic": lambda: ncode.NCODE(ncode.dynamics.Recurrent(2), ncode.Hebbian(decay="learned")),
    "parts": lambda: ncode.NCODE(ncode.dynamics.MLP(2, context=2), parts()),
    "zero": lambda: ncode.NCODE(ncode.dynamics.MLP(2), ncode.control.Zero()),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_folder_holds_a_whole_block(name, tmp_path):
    block, x = BLOCKS[name](), torch.randn(3, 2)
    block.save_pretrained(tmp_path / "block")
    again = ncode.NCODE.from_pretrained(tmp_path / "block")
    assert str(again) == str(block)
    assert torch.equal(again(x), block(x))
    assert not again.training


def test_a_folder_holds_a_block_of_images_with_its_statistics(tmp_path):
    f = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(5, filters=4, controlled=("conv_3x3",)), zeros=2)
    block, x = ncode.NCODE(f, ncode.OpenLoop(image_gamma())), torch.randn(3, 3, 8, 8)
    block(x)  # moves the statistics of the batch norm
    block.save_pretrained(tmp_path)
    torch.testing.assert_close(ncode.NCODE.from_pretrained(tmp_path)(x), block.eval()(x))


def test_precision_is_kept(tmp_path):
    BLOCKS["NODE"]().double().save_pretrained(tmp_path)
    again = ncode.NCODE.from_pretrained(tmp_path)
    assert {p.dtype for p in again.parameters()} == {torch.float64}
    assert all(p.requires_grad for p in again.parameters())


def test_the_folder_is_laid_out_as_the_hub_wants_it(tmp_path):
    BLOCKS["sparse"]().save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["class"] == "ncode.NCODE"
    assert config["dynamics"] == {"class": "ncode.SparseLinear", "m": 2, "nonzeros": 1, "seed": 3}


def test_saving_and_loading_leave_the_stream_of_random_numbers_alone(tmp_path):
    block = BLOCKS["NODE"]()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    block.save_pretrained(tmp_path)
    ncode.NCODE.from_pretrained(tmp_path)
    assert torch.equal(torch.rand(2), expected)


class Trunk(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(2, width)

    def config(self):
        return {"width": self.linear.out_features}

    def forward(self, x):
        return self.linear(x).tanh()


def swirl(t, x, theta):
    return theta["w"] * x.flip(1)


@pytest.fixture
def registered(monkeypatch):
    """A registry of its own for a test."""
    from ncode.block import config

    monkeypatch.setattr(config, "_registered", dict(config._registered))
    return config._registered


def own_block():
    return ncode.NCODE(ncode.dynamics.Function(swirl, {"w": (2,)}), ncode.OpenLoop(Trunk(4)))


def test_classes_and_functions_of_a_module_are_named_by_their_import_path(tmp_path):
    block, x = own_block(), torch.randn(3, 2)
    block.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["dynamics"]["f"] == {"class": f"{__name__}:swirl"}
    assert config["controller"]["trunk"] == {"class": f"{__name__}:Trunk", "width": 4}
    for allowed in ([__name__], __name__):
        assert torch.equal(ncode.NCODE.from_pretrained(tmp_path, allow_imports=allowed)(x), block(x))


@pytest.mark.usefixtures("registered")
def test_a_name_belongs_to_one_class():
    first, second = (type("Pull", (nn.Module,), {"__module__": module}) for module in ("one", "two"))
    ncode.register(first)
    with pytest.raises(ncode.InputError, match="'Pull' is registered for one"):
        ncode.register(second)
    with pytest.raises(ncode.InputError, match="given 3"):
        ncode.register(3)


@pytest.mark.parametrize("allowed", [[], ["os"], [__name__[:-1]]])
def test_nothing_is_imported_from_a_package_that_is_not_allowed(allowed, tmp_path):
    own_block().save_pretrained(tmp_path)
    with pytest.raises(ncode.InputError, match=r"pass allow_imports=\["):
        ncode.NCODE.from_pretrained(tmp_path, allow_imports=allowed)


def test_a_file_can_name_neither_a_class_that_is_no_module_nor_what_does_not_exist():
    for name in ("subprocess:Popen", "os:system", "os.path:sep", "math:nothing"):
        with pytest.raises(ncode.InputError, match="neither a torch module class nor a function"):
            from_data({"class": name}, allow_imports=[name.partition(":")[0]])
    with pytest.raises(ncode.InputError, match="cannot be imported"):
        from_data({"class": "no_such_package:Trunk"}, allow_imports=["no_such_package"])


def test_a_module_that_is_not_loaded_yet_is_imported_if_allowed(tmp_path, monkeypatch):
    (tmp_path / "somebodys_nets.py").write_text(
        "import torch\n\nclass Twice(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = {"class": "somebodys_nets:Twice"}
    with pytest.raises(ncode.InputError, match=r'allow_imports=\["somebodys_nets"\]'):
        from_data(data)
    assert "somebodys_nets" not in sys.modules
    assert from_data(data, allow_imports=["somebodys_nets"])(1.0) == 2.0


def test_what_cannot_be_imported_must_be_registered_first(tmp_path, registered):
    class Local(Trunk):
        pass

    def turn(t, x, theta):
        return swirl(t, x, theta)

    block = ncode.NCODE(ncode.dynamics.Function(turn, {"w": (2,)}), ncode.OpenLoop(Local(4)))
    with pytest.raises(ncode.InputError, match=r"turn is not known.*@ncode\.register"):
        block.save_pretrained(tmp_path)
    ncode.register(turn)
    with pytest.raises(ncode.InputError, match="Local is not known"):
        block.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    ncode.register(Local)
    block.save_pretrained(tmp_path)
    x = torch.randn(3, 2)
    assert torch.equal(ncode.NCODE.from_pretrained(tmp_path)(x), block(x))


def test_a_registered_name_takes_precedence_over_the_import_path(tmp_path, registered):
    ncode.register(swirl)
    ncode.register(Trunk, name="my trunk")
    block, x = own_block(), torch.randn(3, 2)
    block.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["controller"]["trunk"]["class"] == "my trunk"
    assert torch.equal(ncode.NCODE.from_pretrained(tmp_path)(x), block(x))


def test_a_model_that_the_first_version_wrote_still_loads():
    """Its controls are called "weight 1" and its rule for step sizes "pid"."""
    block = ncode.NCODE.from_pretrained(Path(__file__).parent / "old_model")
    assert block.settings.options.step_rule == ncode.PID(p=0.2)
    assert block.settings.options.dt == 0.5
    expected = [[-0.1769518256187439, -2.3224050998687744], [0.9618751406669617, 0.11798840016126633]]
    y = block(torch.tensor([[0.5, -1.0], [2.0, 0.25]]))
    torch.testing.assert_close(y, torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_a_lambda_has_no_name_to_be_known_by():
    with pytest.raises(ncode.InputError, match="with a name"):
        ncode.register(lambda t, x, theta: x)


def test_a_file_can_name_nothing_that_is_not_known():
    with pytest.raises(ncode.InputError, match="unknown class in the file"):
        from_data({"class": "os.system", "command": "true"})
    with pytest.raises(ncode.InputError, match="which this torch does not have"):
        from_data({"class": "torch.nn.functional"})


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(2, 3, bias=False),
        nn.Conv2d(2, 4, (3, 5), stride=2, padding=1, groups=2, padding_mode="circular"),
        nn.ConvTranspose2d(2, 4, 4, 2, 1),
        nn.BatchNorm2d(3, affine=False),
        nn.LayerNorm((2, 3)),
        nn.GroupNorm(2, 4),
        nn.Unflatten(1, (2, 2)),
        nn.Dropout(0.3),
        nn.Sequential(nn.Sequential(nn.LeakyReLU(0.2)), nn.Identity()),
    ],
)
def test_modules_of_torch_are_written_down_and_built_again(module):
    data = json.loads(json.dumps(to_data(module)))
    assert str(from_data(data)).replace("[", "(").replace("]", ")") == str(module)


def test_a_module_of_torch_that_hides_its_arguments_is_told_so():
    with pytest.raises(ncode.InputError, match="cannot find the argument"):
        to_data(nn.Embedding(3, 4))


def test_a_block_that_was_changed_cannot_be_written_down(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2))
    block.extra = nn.Linear(2, 2)
    with pytest.raises(ncode.InputError, match=r"was changed after it was built.*extra\.weight"):
        block.save_pretrained(tmp_path)


def test_a_parameter_at_two_places_cannot_be_written_down(tmp_path):
    shared = nn.Linear(2, 2)
    trunk = nn.Sequential(shared, nn.Tanh(), shared)
    with pytest.raises(ncode.InputError, match="are one parameter"):
        ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(trunk)).save_pretrained(tmp_path)


def damage(path, name, text):
    (path / name).write_bytes(text)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: (path / "config.json").unlink(), r"has no config\.json"),
        (lambda path: (path / "model.safetensors").unlink(), r"has no model\.safetensors"),
        (lambda path: damage(path, "config.json", b"{"), r"config\.json is damaged"),
        (lambda path: damage(path, "model.safetensors", b"123"), r"model\.safetensors is damaged"),
        (
            lambda path: damage(
                path, "config.json", b'{"class": "torch.nn.Linear", "in_features": 1, "out_features": 1}'
            ),
            "does not fit",
        ),
        (lambda path: damage(path, "config.json", b'{"class": "ncode.MLP", "dims": 2}'), "this version of ncode"),
        (lambda path: damage(path, "config.json", b"[1]"), "describes a list"),
    ],
)
def test_a_damaged_folder_is_told_from_a_good_one(harm, message, tmp_path):
    """For folders whose configuration is in config.json alone; for others see test_saving.py."""
    safetensors = pytest.importorskip("safetensors.torch")
    BLOCKS["NODE"]().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    safetensors.save_file(safetensors.load_file(file), file, metadata={"format": "pt"})
    harm(tmp_path)
    with pytest.raises(ncode.InputError, match=message):
        ncode.NCODE.from_pretrained(tmp_path)


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(ncode.InputError, match=r"there is no folder \./nowhere/block"):
        ncode.NCODE.from_pretrained("./nowhere/block")


def test_a_name_that_is_no_folder_is_looked_up_in_the_hub(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    block = BLOCKS["NODE"]()
    block.save_pretrained(tmp_path)
    asked = []
    monkeypatch.setattr(
        hub, "snapshot_download", lambda name, **more: asked.append((name, more["revision"])) or tmp_path
    )
    again = ncode.NCODE.from_pretrained("someone/block", revision="v1")
    assert asked == [("someone/block", "v1")]
    assert str(again) == str(block)


def test_without_safetensors_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ncode.InputError, match=r"pip install torch-ncode\[hub\]"):
        BLOCKS["NODE"]().save_pretrained(tmp_path)


def test_other_modules_can_be_saved_as_well(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), ncode.NCODE(ncode.dynamics.MLP(2)))
    ncode.block.save_pretrained(net, tmp_path)
    x = torch.randn(3, 2)
    assert torch.equal(ncode.block.from_pretrained(tmp_path)(x), net(x))
    with pytest.raises(ncode.InputError, match="holds a Sequential, not a NCODE"):
        ncode.NCODE.from_pretrained(tmp_path)
