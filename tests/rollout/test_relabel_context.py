"""The same actions after another prompt, token for token; and hindsight instructions for an episode."""

import json
from dataclasses import replace

import pytest

from support.episodes import CHAT, TASK, call, in_order, played
from whetstone.chat import ToolCall, assistant, user
from whetstone.data.offline_episodes import best_and_worst, stored_groups
from whetstone.data.select_episodes import Choice
from whetstone.environments import ToolEnvironment
from whetstone.environments import as_environment as as_environment
from whetstone.environments.built_in.household import Household, HouseholdTasks, what_was_done
from whetstone.errors import DataError
from whetstone.rollout.context_transforms.hint import Hint
from whetstone.rollout.relabel_context import relabel_context
from whetstone.tools import pocket_calculator
from whetstone.trajectory import Group, Score
from whetstone.trajectory_json import encode_trajectory

TOOLS = ToolEnvironment(tools=[pocket_calculator]).toolset.specs
EPISODE = in_order(call("12*34"), call("408+0"), assistant("408"))


def replay_naively(trajectory, opening):
    """Return the contexts of an episode after another prompt by replaying its actions."""
    ids, context = [], CHAT.open(opening, TOOLS)
    for turn in trajectory.turns:
        ids += [*context.new.ids, *turn.action.ids]
        context = CHAT.extend(context, turn.action.ids, turn.observation)
    return tuple(ids)


def test_original_prompt_leaves_an_episode_unchanged():
    episode = played(EPISODE)
    relabeled = relabel_context(episode, episode.opening, CHAT, TOOLS)
    assert [segment.tokens for segment in relabeled.segments()] == [segment.tokens for segment in episode.segments()]


def test_another_prompt_changes_contexts_and_keeps_actions():
    episode = played(EPISODE)
    other = (*episode.opening[:-1], user("Compute 12*34+0, please"))
    relabeled = relabel_context(episode, other, CHAT, TOOLS)
    assert [turn.action for turn in relabeled.turns] == [turn.action for turn in episode.turns]
    (segment,) = relabeled.segments()
    assert segment.tokens.ids == replay_naively(episode, other)
    assert segment.tokens.ids != episode.segments()[0].tokens.ids


def test_unsupported_contexts_are_refused():
    episode = played(EPISODE)
    with pytest.raises(ValueError, match="the messages of turn 1 do not render to its recorded tokens"):
        relabel_context(episode, episode.opening, CHAT, ())  # other tools
    hinted = played(EPISODE, context_transforms=(Hint(text="Multiply."),))
    with pytest.raises(ValueError, match="the messages of turn 1"):
        relabel_context(hinted, hinted.opening, CHAT, TOOLS)


def of_file(tmp_path, *episodes):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"".join(encode_trajectory(episode) + b"\n" for episode in episodes))
    return path


def test_failed_episodes_get_a_hindsight_instruction_and_successes_are_kept(tmp_path):
    right = replace(played(EPISODE), id="group-1/0", score=Score(1.0, success=True))
    wrong = replace(played(in_order(call("5*6"), assistant("30"))), id="group-1/1", score=Score(0.0, success=False))
    path = of_file(tmp_path, right, wrong)
    requests = []

    def relabel(trajectory):
        requests.append(trajectory.id)
        return "Compute 5*6"

    (group,) = stored_groups(path, CHAT, Choice(min_reward=1.0), relabel=relabel, tools=TOOLS)
    assert requests == ["group-1/1"]
    success, relabeled = group.trajectories
    assert (success.opening[-1].text, relabeled.opening[-1].text) == (TASK.prompt, "Compute 5*6")
    assert relabeled.solved
    assert "relabelled" in relabeled.marks
    assert [turn.action.ids for turn in relabeled.turns] == [turn.action.ids for turn in wrong.turns]
    (group,) = stored_groups(path, CHAT, Choice(min_reward=1.0), relabel=lambda trajectory: None, tools=TOOLS)
    assert [trajectory.id for trajectory in group.trajectories] == ["group-1/0"]
    with pytest.raises(DataError, match="cannot be relabeled with another prompt"):
        stored_groups(path, CHAT, relabel=relabel)


def test_pair_is_the_best_and_the_worst_if_they_differ():
    episodes = [replace(played(in_order(assistant(str(n)))), score=Score(float(n))) for n in range(3)]
    assert best_and_worst(Group(TASK, tuple(episodes))) == (episodes[2], episodes[0])
    assert best_and_worst(Group(TASK, tuple(episodes[:1] * 2))) is None
    same = replace(episodes[0], score=Score(5.0))
    assert best_and_worst(Group(TASK, (episodes[0], same))) is None  # they are equal


def play_commands(*commands, task):
    messages = [assistant("", ToolCall("act", json.dumps({"command": command}))) for command in commands]
    return played(in_order(*messages), environment=as_environment(Household)(), task=task)


def test_household_episode_is_described_by_its_placements():
    task = next(t for k in range(50) if (t := HouseholdTasks(seed=0, levels=[1]).task(k)).tags["kind"] == "place")
    game = Household()
    game.begin(task, 0)
    home, things = next((name, things) for name, things in game.places.items() if things)
    other = next(name for name in game.places if name not in (home, task.private["goal"]["target"]))
    way = [f"go to {home}", f"open {home}", f"take {things[0]} from {home}", f"go to {other}", f"open {other}"]
    commands = [*way, f"put {things[0]} in/on {other}", "look"]
    episode = play_commands(*commands, task=task)
    description = what_was_done(episode)
    assert description.endswith(f"Your task: put a {things[0].split()[0]} in/on {other}.")
    assert description.startswith(episode.opening[-1].text.partition("Your task:")[0])
    assert (
        what_was_done(played(in_order(assistant("look")), environment=as_environment(Household)(), task=task)) is None
    )
