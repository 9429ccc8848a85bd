"""What holds where a recipe names no option: the signature and the page say the same."""

import pytest

from tests_pages import options, told
from whetstone.algorithms import ADVANTAGE_TRANSFORMS, ADVANTAGES, CORRECTIONS, CREDIT_FILTERS, OBJECTIVES, SHAPING

EVERY = {**ADVANTAGES, **SHAPING, **ADVANTAGE_TRANSFORMS, **CREDIT_FILTERS, **OBJECTIVES, **CORRECTIONS}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_an_option_left_out_is_what_the_page_says(name):
    assert options(EVERY[name]) == told("methods.md", name)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_name_in_a_recipe_is_that_of_its_function(name):
    assert EVERY[name].__name__ == name
