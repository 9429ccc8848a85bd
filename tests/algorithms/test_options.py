"""Defaults of options: signatures and the page `methods.md` agree."""

import pytest

from support.option_tables import options, page_defaults
from whetstone.algorithms import ADVANTAGE_TRANSFORMS, ADVANTAGES, CORRECTIONS, CREDIT_FILTERS, OBJECTIVES, SHAPING

EVERY = {**ADVANTAGES, **SHAPING, **ADVANTAGE_TRANSFORMS, **CREDIT_FILTERS, **OBJECTIVES, **CORRECTIONS}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_defaults_are_those_of_the_page(name):
    assert options(EVERY[name]) == page_defaults("methods.md", name)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_recipe_names_are_function_names(name):
    assert EVERY[name].__name__ == name
