"""The same actions behind another opening, token for token; and an episode that is told what it did."""

import json
from dataclasses import replace

import pytest

from tests_episodes import CHAT, TASK, call, in_order, played
from whetstone.chat import ToolCall, assistant, user
from whetstone.data.choosing import Choice
from whetstone.data.stored_episodes import best_and_worst, stored_groups
from whetstone.environments import ToolEnvironment
from whetstone.environments import played as as_environment
from whetstone.environments.native.household import Household, HouseholdTasks, what_was_done
from whetstone.errors import DataError
from whetstone.rollout.context_transforms.hint import Hint
from whetstone.rollout.rereading import reread
from whetstone.tools import pocket_calculator
from whetstone.trajectory import Group, Score
from whetstone.trajectory_json import encoded_trajectory

TOOLS = ToolEnvironment(tools=[pocket_calculator]).toolset.specs
EPISODE = in_order(call("12*34"), call("408+0"), assistant("408"))


def naively(trajectory, opening):
    """What an episode reads behind an opening, by playing its actions once more."""
    ids, context = [], CHAT.open(opening, TOOLS)
    for turn in trajectory.turns:
        ids += [*context.new.ids, *turn.action.ids]
        context = CHAT.extend(context, turn.action.ids, turn.observation)
    return tuple(ids)


def test_behind_its_own_opening_an_episode_is_what_it_was():
    episode = played(EPISODE)
    again = reread(episode, episode.opening, CHAT, TOOLS)
    assert [segment.tokens for segment in again.segments()] == [segment.tokens for segment in episode.segments()]


def test_behind_another_opening_contexts_are_rendered_and_actions_stay():
    episode = played(EPISODE)
    other = (*episode.opening[:-1], user("Compute 12*34+0, please"))
    again = reread(episode, other, CHAT, TOOLS)
    assert [turn.action for turn in again.turns] == [turn.action for turn in episode.turns]
    (segment,) = again.segments()
    assert segment.tokens.ids == naively(episode, other)
    assert segment.tokens.ids != episode.segments()[0].tokens.ids


def test_what_cannot_be_rendered_again_is_refused():
    episode = played(EPISODE)
    with pytest.raises(ValueError, match="what turn 1 read is not what its messages render to"):
        reread(episode, episode.opening, CHAT, ())  # other tools
    hinted = played(EPISODE, context_transforms=(Hint(text="Multiply."),))
    with pytest.raises(ValueError, match="what turn 1 read"):
        reread(hinted, hinted.opening, CHAT, TOOLS)


def of_file(tmp_path, *episodes):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"".join(encoded_trajectory(episode) + b"\n" for episode in episodes))
    return path


def test_what_failed_is_told_what_it_did_and_what_succeeded_is_left_alone(tmp_path):
    right = replace(played(EPISODE), id="group-1/0", score=Score(1.0, success=True))
    wrong = replace(played(in_order(call("5*6"), assistant("30"))), id="group-1/1", score=Score(0.0, success=False))
    path = of_file(tmp_path, right, wrong)
    asked = []

    def relabel(trajectory):
        asked.append(trajectory.id)
        return "Compute 5*6"

    (group,) = stored_groups(path, CHAT, Choice(min_reward=1.0), relabel=relabel, tools=TOOLS)
    assert asked == ["group-1/1"]
    kept, told = group.trajectories
    assert (kept.opening[-1].text, told.opening[-1].text) == (TASK.prompt, "Compute 5*6")
    assert told.solved
    assert "relabelled" in told.marks
    assert [turn.action.ids for turn in told.turns] == [turn.action.ids for turn in wrong.turns]
    (group,) = stored_groups(path, CHAT, Choice(min_reward=1.0), relabel=lambda trajectory: None, tools=TOOLS)
    assert [trajectory.id for trajectory in group.trajectories] == ["group-1/0"]
    with pytest.raises(DataError, match="cannot be read behind another opening"):
        stored_groups(path, CHAT, relabel=relabel)


def test_a_pair_is_the_best_and_the_worst_and_equals_make_none():
    episodes = [replace(played(in_order(assistant(str(n)))), score=Score(float(n))) for n in range(3)]
    assert best_and_worst(Group(TASK, tuple(episodes))) == (episodes[2], episodes[0])
    assert best_and_worst(Group(TASK, tuple(episodes[:1] * 2))) is None
    same = replace(episodes[0], score=Score(5.0))
    assert best_and_worst(Group(TASK, (episodes[0], same))) is None  # they say the same


def doing(*commands, task):
    said = [assistant("", ToolCall("act", json.dumps({"command": command}))) for command in commands]
    return played(in_order(*said), environment=as_environment(Household)(), task=task)


def test_a_household_is_told_where_things_were_put():
    task = next(t for k in range(50) if (t := HouseholdTasks(seed=0, levels=[1]).task(k)).tags["kind"] == "place")
    game = Household()
    game.begin(task, 0)
    home, things = next((name, things) for name, things in game.places.items() if things)
    other = next(name for name in game.places if name not in (home, task.private["goal"]["target"]))
    way = [f"go to {home}", f"open {home}", f"take {things[0]} from {home}", f"go to {other}", f"open {other}"]
    commands = [*way, f"put {things[0]} in/on {other}", "look"]
    episode = doing(*commands, task=task)
    told = what_was_done(episode)
    assert told.endswith(f"Your task: put a {things[0].split()[0]} in/on {other}.")
    assert told.startswith(episode.opening[-1].text.partition("Your task:")[0])
    assert (
        what_was_done(played(in_order(assistant("look")), environment=as_environment(Household)(), task=task)) is None
    )
