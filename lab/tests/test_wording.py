"""One name per model, everywhere."""

from typing import get_args, get_type_hints

import pytest
from ncode_lab.experiments import EXPERIMENTS, find
from ncode_lab.wording import MODEL_NAMES, model_name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_model_has_a_name_and_no_two_of_an_experiment_the_same(name):
    (literal, _) = get_args(get_type_hints(find(name))["models"])
    keys = get_args(literal)
    assert set(keys) <= MODEL_NAMES.keys()
    assert len({model_name(key, name) for key in keys}) == len(keys)
