"""A name in a recipe means one module, wherever it is."""

import sys

import pytest

from whetstone import plugins
from whetstone.errors import RecipeError
from whetstone.plugins import add_search_path, find_part

REWARD = "async def paid(trajectory, task):\n    return {}\n"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Create two folders, each with a module of the same name; restore search paths and loaded modules afterwards."""
    monkeypatch.setattr(plugins, "_searched", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    created = [tmp_path / name for name in ("one", "two")]
    for number, folder in enumerate(created):
        folder.mkdir()
        (folder / "paid_beside.py").write_text(REWARD.format(number))
    yield created
    sys.modules.pop("paid_beside", None)


def test_module_of_the_same_name_in_a_second_recipe_is_refused(folders):
    one, two = folders
    add_search_path(one)
    first = find_part("reward", "paid_beside:paid", {})
    add_search_path(two)
    message = rf'reward "paid_beside:paid": {one}/paid_beside.py and {two}/paid_beside.py are two modules with one name'
    with pytest.raises(RecipeError, match=message):
        find_part("reward", "paid_beside:paid", {})
    plugins._searched.remove(str(one))  # also if it is already loaded
    with pytest.raises(RecipeError, match=message):
        find_part("reward", "paid_beside:paid", {})
    (two / "paid_beside.py").unlink()
    add_search_path(one)
    assert find_part("reward", "paid_beside:paid", {}) is first


def test_copy_of_a_module_is_the_same_module(folders):
    one, two = folders
    (two / "paid_beside.py").write_bytes((one / "paid_beside.py").read_bytes())
    add_search_path(one)
    add_search_path(two)
    assert find_part("reward", "paid_beside:paid", {}).__module__ == "paid_beside"
