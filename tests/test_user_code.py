"""Errors of the user's code name file, line and function; errors of Whetstone and of libraries have no place."""

import json
import re
import sys

import pytest

from tests_cli import whetstone
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
    """A package of the user with the module `stores.shop`."""
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
    told = "stores/shop.py:3 (price): ValueError: invalid literal for int() with base 10: 'the'"
    assert describe_exception(error) == told
    monkeypatch.chdir(tmp_path / "stores")
    assert describe_exception(error) == told
    assert describe_mistake(error).startswith("shop.py:3 (price): ValueError")
    assert remove_place(told) == "ValueError: invalid literal for int() with base 10: 'the'"
    assert remove_place(remove_place(told)) == remove_place(told)


def test_of_a_group_of_exceptions_the_first_is_located(shop):
    error = ExceptionGroup("both", [raised_by(shop.price, "the"), OSError("closed")])
    assert describe_place(error) == "stores/shop.py:3 (price)"


def test_an_error_that_passed_through_no_code_of_the_user_has_no_place():
    error = raised_by(compile, "(", "<text>", "eval")
    error.__traceback__ = None
    assert (describe_place(error), describe_mistake(error)) == ("", None)
    assert describe_exception(error).startswith("SyntaxError: ")


def test_a_wrong_field_of_a_trajectory_is_answered_with_the_nearest_or_all(shop):
    trajectory = Trajectory("a", "t", (), (), EndReason.MAX_TURNS)
    assert describe_exception(raised_by(shop.final, trajectory)).endswith('did you mean "ended"?')
    told = describe_exception(raised_by(shop.outcome, trajectory))
    assert re.search(r"no attribute 'outcom'; it has id, task_id, .*final", told), told


RUN = """
from whetstone.chat import assistant
from whetstone.environments import GameObservation
from whetstone.tasks import Generated
from whetstone.trajectory import Task

class World:
    instruction = "Say anything."
    def begin(self, task, seed):
        self.fails = task.private["n"] % 2
        return GameObservation("go")
    def act(self, command):
        if self.fails: raise RuntimeError("no such move")
        return GameObservation("end", reward=1.0, terminated=True)
    def verdict(self): return {"success": True, "score": 1.0}
    def close(self): pass

class Tasks(Generated):
    name, held_out_fraction = "tasks", 4
    def make(self, draw, level): return Task("", "", {"n": draw.randrange(1000)})

class WithExpert(Tasks):
    def demonstrate(self, task, conversation, tools): return assistant(str(int("the")))
"""
RECIPE = """
policy: {tiny: {vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, context_length: 96}}
chat: {format: compact}
tasks: {source: "worlds_there:Tasks"}
environment: {name: "worlds_there:World", actions: text, max_turns: 1}
reward: verdict
rollout: {group_size: 4, max_new_tokens: 8}
reinforcement: {steps: 1, tasks_per_step: 4}
evaluation: {episodes: 2}
"""


@pytest.mark.slow
def test_records_of_episodes_and_why_have_the_place(tmp_path):
    (tmp_path / "worlds_there.py").write_text(RUN)
    (tmp_path / "world.yaml").write_text(RECIPE)
    done = whetstone("train", "world.yaml", "tasks.source=worlds_there:WithExpert", "supervised.steps=1", cwd=tmp_path)
    assert done.returncode == 2
    assert "worlds_there.py:23 (demonstrate): ValueError: invalid literal for int()" in done.stderr
    done = whetstone("train", "world.yaml", "--run-dir", "run", cwd=tmp_path)
    run, place = tmp_path / "run", "worlds_there.py:13 (act): RuntimeError: no such move"
    listed = json.loads(whetstone("why", run, "--step", "1", "--json").stdout)["trajectories"]
    failed = [id for id, _, cause in listed if cause == place]
    assert failed, listed
    assert place in whetstone("show", run, "--trajectory", failed[0]).stdout
    assert place in whetstone("why", run, failed[0], "--no-weights").stdout
