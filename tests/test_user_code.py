"""Errors of the user's code name file, line and function; errors of Whetstone and of libraries have no place."""

import re
import sys

import pytest

from whetstone.trajectory import EndReason, Trajectory
from whetstone.user_code import describe_exception, describe_mistake, describe_place, remove_place

SHOP = """
def price(item):
    return int(item)


def outcome(trajectory):
    return trajectory.outcom


def final(trajectory):
    return trajectory.ende
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Write a package of the user with the module `stores.shop`."""
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "__init__.py").touch()
    (tmp_path / "stores" / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from stores import shop as module

    yield module
    for name in ("stores.shop", "stores"):
        sys.modules.pop(name)


def raised_by(function, *arguments):
    with pytest.raises(Exception) as caught:
        function(*arguments)
    return caught.value


def test_the_place_starts_at_the_topmost_package_in_every_working_directory(shop, tmp_path, monkeypatch):
    error = raised_by(shop.price, "the")
    text = "stores/shop.py:3 (price): ValueError: invalid literal for int() with base 10: 'the'"
    assert describe_exception(error) == text
    monkeypatch.chdir(tmp_path / "stores")
    assert describe_exception(error) == text
    assert describe_mistake(error).startswith("shop.py:3 (price): ValueError")
    assert remove_place(text) == "ValueError: invalid literal for int() with base 10: 'the'"
    assert remove_place(remove_place(text)) == remove_place(text)


def test_first_exception_of_a_group_is_located(shop):
    error = ExceptionGroup("both", [raised_by(shop.price, "the"), OSError("closed")])
    assert describe_place(error) == "stores/shop.py:3 (price)"


def test_an_error_that_passed_through_no_code_of_the_user_has_no_place():
    error = raised_by(compile, "(", "<text>", "eval")
    error.__traceback__ = None
    assert (describe_place(error), describe_mistake(error)) == ("", None)
    assert describe_exception(error).startswith("SyntaxError: ")


def test_wrong_field_of_a_trajectory_is_answered_with_the_nearest_or_all(shop):
    trajectory = Trajectory("a", "t", (), (), EndReason.MAX_TURNS)
    assert describe_exception(raised_by(shop.final, trajectory)).endswith('did you mean "ended"?')
    text = describe_exception(raised_by(shop.outcome, trajectory))
    assert re.search(r"no attribute 'outcom'; it has id, task_id, .*final", text), text
