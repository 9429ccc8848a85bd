"""A name in a recipe means one module, wherever it lies."""

import sys

import pytest

from whetstone import plugins
from whetstone.errors import RecipeError
from whetstone.plugins import find_part, search_also

REWARD = "async def paid(trajectory, task):\n    return {}\n"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders, each with a module of the same name; what is searched and loaded is as before when it is over."""
    monkeypatch.setattr(plugins, "_searched", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = [tmp_path / name for name in ("one", "two")]
    for number, folder in enumerate(made):
        folder.mkdir()
        (folder / "paid_beside.py").write_text(REWARD.format(number))
    yield made
    sys.modules.pop("paid_beside", None)


def test_a_second_recipe_with_a_module_of_the_same_name_is_not_given_the_first_ones(folders):
    one, two = folders
    search_also(one)
    first = find_part("reward", "paid_beside:paid", {})
    search_also(two)
    said = rf'reward "paid_beside:paid": {one}/paid_beside.py and {two}/paid_beside.py are two modules of one name'
    with pytest.raises(RecipeError, match=said):
        find_part("reward", "paid_beside:paid", {})
    plugins._searched.remove(str(one))  # and that it is loaded already makes it no other
    with pytest.raises(RecipeError, match=said):
        find_part("reward", "paid_beside:paid", {})
    (two / "paid_beside.py").unlink()
    search_also(one)
    assert find_part("reward", "paid_beside:paid", {}) is first


def test_a_copy_of_a_module_is_the_same_module(folders):
    one, two = folders
    (two / "paid_beside.py").write_bytes((one / "paid_beside.py").read_bytes())
    search_also(one)
    search_also(two)
    assert find_part("reward", "paid_beside:paid", {}).__module__ == "paid_beside"
