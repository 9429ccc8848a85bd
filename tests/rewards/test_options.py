"""Defaults of options are the same in the signature and on the page."""

import pytest

from support.option_tables import options, page_defaults
from whetstone.rewards import REWARDS
from whetstone.rewards.judges import JUDGES


@pytest.mark.parametrize("name", sorted({**REWARDS, **JUDGES}))
def test_default_is_that_of_the_page(name):
    assert options({**REWARDS, **JUDGES}[name]) == page_defaults("rewards.md", name)
