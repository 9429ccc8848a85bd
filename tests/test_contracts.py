"""What a part may have besides: asked of the part itself, and a misspelt name is said."""

from typing import Protocol

import pytest

from whetstone.assembly import assemble
from whetstone.contracts import check_spelling, fulfils, names_of
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe


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


MISSPELT = '''
class Basket:
    replayble = False
    def add(self, item: str) -> str:
        """Add an item.

        Args:
            item: What it is.
        """
        return item

class World:
    def __init__(self):
        self.statelesss = True
    async def reset(self, task, *, seed): ...
    async def step(self, action): ...
    async def close(self): ...

class Maze:
    def begin(self, task, seed): ...
    def act(self, command): ...
    def snapshots(self): ...
    def verdict(self): ...
    def close(self): ...

class Customer:
    def open(self, episode): ...
    def answer(self, text): ...
    def close(self): ...
    def verdikt(self): ...

class Praise:
    def closes(self): ...
    async def __call__(self, trajectory, task): ...

class Endless:
    training_task = 4
    def task(self, index): ...
    def held_out(self, count): ...

class Newest:
    def metric(self): ...
    def choose(self, source, first, number, step, draw): ...
'''


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("environment.tools=['{m}:Basket']", "replayble: did you mean replayable?"),
        ("environment={{name: '{m}:World'}}", "statelesss: did you mean stateless?"),
        ("environment={{name: '{m}:Maze'}}", "snapshots: did you mean snapshot?"),
        ("environment.user='{m}:Customer'", "verdikt: did you mean verdict?"),
        ("reward='{m}:Praise'", "closes: did you mean close?"),
        ("tasks={{source: '{m}:Endless'}}", "training_task: did you mean training_tasks?"),
        ("curriculum='{m}:Newest'", "metric: did you mean metrics?"),
    ],
)
def test_a_recipes_part_with_something_misspelt_is_refused_in_one_line(tmp_path, monkeypatch, change, said):
    module = "misspelt_parts"
    (tmp_path / f"{module}.py").write_text(MISSPELT)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError) as caught:
        assemble(load_recipe("demo", [change.format(m=module)])).check()
    assert str(caught.value).endswith(said)
    assert "\n" not in str(caught.value)
