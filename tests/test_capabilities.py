"""Optional members of components: found on the component itself, and misspelled names are reported."""

from typing import Protocol

import pytest

from whetstone.assembly import assemble
from whetstone.capabilities import check_spelling, implements_protocol, protocol_members
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


def test_protocol_lists_methods_and_attributes():
    assert protocol_members(Keeps) == {"replayable", "snapshot"}


def test_object_class_and_wrapper_have_the_same_capabilities():
    assert implements_protocol(Game(), Keeps)
    assert implements_protocol(Game, Keeps)
    assert implements_protocol(Around(Game()), Keeps)
    assert not implements_protocol(Around(object()), Keeps)


def test_misspelled_name_is_refused_with_the_correct_one():
    with pytest.raises(RecipeError, match=r'^game "mine": replayble: did you mean replayable\?$'):
        check_spelling("game", "mine", ["snapshot", "replayble"], [Keeps])


@pytest.mark.parametrize(
    "named",
    [["replayable"], ["replay"], ["_replayble"], ["replayable", "replayables"], ["reward_table"]],
    ids=["as it is written", "far from it", "private", "next to the right one", "another word"],
)
def test_other_names_of_a_component_are_accepted(named):
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
    ("change", "message"),
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
def test_component_with_a_misspelled_member_is_refused_in_one_line(tmp_path, monkeypatch, change, message):
    module = "misspelt_parts"
    (tmp_path / f"{module}.py").write_text(MISSPELT)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError) as caught:
        assemble(load_recipe("demo", [change.format(m=module)])).check()
    assert str(caught.value).endswith(message)
    assert "\n" not in str(caught.value)
