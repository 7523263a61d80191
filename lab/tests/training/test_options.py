import dataclasses
from pathlib import Path

import pytest
from ncode_lab.training import RunOptions

from ncode import InputError


def test_a_wrong_value_lists_the_valid_ones_and_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown device 'cuba'; did you mean \"cuda\"\? \(known: auto, cpu, cuda\)"):
        RunOptions(device="cuba")
    with pytest.raises(InputError, match="known: 32, bf16, 16, 64"):
        RunOptions(precision="8")


@pytest.mark.parametrize("name", ["seeds", "devices", "nodes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_count_is_a_whole_number_of_at_least_one(name, value):
    with pytest.raises(InputError, match=f"{name} must be a whole number of at least 1"):
        RunOptions(**{name: value})


@pytest.mark.parametrize("given", [{"seeds": 10**9}, {"seed": 2**63}, {"seed": 2**63 - 2, "seeds": 3}])
def test_seeds_that_no_generator_takes_are_refused(given):
    with pytest.raises(InputError, match=r"at most 100,000 seeds, below 2\*\*63"):
        RunOptions(**given)


def test_options_are_frozen_and_their_folder_is_a_path():
    options = RunOptions(out="elsewhere")
    assert options.out == Path("elsewhere")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 1


def test_seeds_follow_each_other():
    assert RunOptions(seed=5, seeds=3).all_seeds == (5, 6, 7)
