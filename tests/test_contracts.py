"""What a part may have besides: asked of the part itself, and a misspelt name is said."""

from typing import Protocol

import pytest

from whetstone.contracts import check_spelling, fulfils, names_of
from whetstone.errors import RecipeError


class Keeps(Protocol):
    replayable: bool

    def snapshot(self) -> bytes: ...


class Game:
    replayable = True

    def snapshot(self):
        return b""


class Around:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_contract_names_its_methods_and_attributes():
    assert names_of(Keeps) == {"replayable", "snapshot"}


def test_an_object_its_class_and_what_stands_around_it_are_asked_alike():
    assert fulfils(Game(), Keeps)
    assert fulfils(Game, Keeps)
    assert fulfils(Around(Game()), Keeps)
    assert not fulfils(Around(object()), Keeps)


def test_a_misspelt_name_is_refused_with_the_right_one():
    with pytest.raises(RecipeError, match=r'^game "mine": replayble: did you mean replayable\?$'):
        check_spelling("game", "mine", ["snapshot", "replayble"], [Keeps])


@pytest.mark.parametrize(
    "named",
    [["replayable"], ["replay"], ["_replayble"], ["replayable", "replayables"], ["reward_table"]],
    ids=["as it is written", "far from it", "private", "beside the right one", "another word"],
)
def test_names_of_its_own_are_a_parts_own_business(named):
    check_spelling("game", "mine", named, [Keeps])
