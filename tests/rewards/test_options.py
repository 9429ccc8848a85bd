"""What holds where a recipe names no option: the signature and the page say the same."""

import pytest

from tests_pages import options, told
from whetstone.rewards import REWARDS
from whetstone.rewards.judges import JUDGES


@pytest.mark.parametrize("name", sorted({**REWARDS, **JUDGES}))
def test_an_option_left_out_is_what_the_page_says(name):
    assert options({**REWARDS, **JUDGES}[name]) == told("rewards.md", name)
