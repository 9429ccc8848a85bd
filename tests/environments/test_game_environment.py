"""A command is read from a call or from text; what is none is answered; options of a game are options in a recipe."""

import asyncio

import pytest

from tests_episodes import CHAT, LIMITS, Says, in_order
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import GameEnvironment, played
from whetstone.environments.game_environment import command_of
from whetstone.environments.native.frozen_lake import FrozenLake, FrozenLakeTasks
from whetstone.errors import RecipeError
from whetstone.parts import OptionError, checked_options
from whetstone.rewards import returns, verdict
from whetstone.rollout import run_episode
from whetstone.trajectory import EndReason, Task, Trajectory
from whetstone.trajectory_json import decoded_trajectories, encoded_trajectory

LAKE = Task("lake", "", {"lake": ["...", ".O.", "..."], "start": [0, 0], "goal": [2, 2]})


@pytest.mark.parametrize(
    ("said", "command"),
    [
        (assistant("up"), "up"),
        (assistant("I think of it.\nup "), "up"),
        (assistant("<action>left</action> no: <action> up </action> so"), "up"),
        (assistant("", ToolCall("act", '{"command": "up"}')), "up"),
        (assistant("", ToolCall("act", '{"command": 3}')), None),
        (assistant("", ToolCall("act", "up")), None),
        (assistant("", ToolCall("go", '{"command": "up"}')), None),
        (assistant("", *[ToolCall("act", '{"command": "up"}')] * 2), None),
        (Message("assistant", malformed=("not closed",)), None),
        (assistant(""), ""),
    ],
)
def test_a_command_is_read_from_text_and_from_calls(said, command):
    assert command_of(said, "text") == command


def test_text_is_no_command_where_calls_are_asked_for():
    assert command_of(assistant("up"), "call") is None
    assert command_of(assistant("1\n2"), "text", whole=True) == "1\n2"


def episode(*said, **options):
    environment = played(FrozenLake)(actions="text", **options)
    return asyncio.run(
        run_episode(
            LAKE, environment=environment, actor=Says(in_order(*said)), chat=CHAT, limits=LIMITS, id="e", seed=1
        )
    )


def test_an_episode_keeps_what_the_game_said_of_it():
    done = episode(*map(assistant, ("right", "right", "down", "down")))
    assert done.ended is EndReason.TERMINATED
    assert done.final == {"success": True, "score": 1.0, "steps": 4}
    assert [turn.reward for turn in done.turns] == [0.0, 0.0, 0.0, 1.0]
    score = asyncio.run(verdict(done, LAKE))
    assert (score.value, score.success, score.turns) == (1.0, True, (0.0, 0.0, 0.0, 1.0))
    assert asyncio.run(returns(done, LAKE)).value == 1.0


def test_a_hole_ends_it_and_the_edge_does_not():
    fell = episode(assistant("up"), assistant("right"), assistant("down"))
    assert fell.ended is EndReason.TERMINATED
    assert fell.final["success"] is False
    assert fell.final["steps"] == 3


def test_a_limit_of_the_game_is_not_its_end():
    late = episode(*[assistant("up")] * 5, max_steps=3)
    assert late.ended is EndReason.TRUNCATED
    assert len(late.turns) == 3


def test_what_is_no_move_is_told_and_counts_as_a_step():
    told = episode(assistant("fly"), *map(assistant, ("right", "right", "down", "down")))
    assert "no such move: fly" in told.turns[0].observation[0].text
    assert told.final["steps"] == 5


def test_the_verdict_is_kept_on_disk():
    done = episode(*map(assistant, ("right", "right", "down", "down")))
    assert decoded_trajectories([encoded_trajectory(done)])[0].final == done.final


def test_a_reward_that_asks_a_silent_environment_cannot_tell():
    silent = Trajectory("t", "lake", (), (), EndReason.TERMINATED)
    with pytest.raises(ValueError, match="says nothing of how an episode went"):
        asyncio.run(verdict(silent, LAKE))
    late = Trajectory("t", "lake", (), (), EndReason.TIMEOUT)
    assert asyncio.run(verdict(late, LAKE)).success is False


def test_options_of_game_and_environment_are_checked_before_anything_runs():
    part = played(FrozenLake)
    assert checked_options(part, {"view": "around", "actions": "text"}) == {"view": "around", "actions": "text"}
    with pytest.raises(OptionError, match="view"):
        checked_options(part, {"view": "above"})
    with pytest.raises(OptionError, match='did you mean "max_steps"'):
        checked_options(part, {"max_step": 3})


def test_a_missing_package_is_said_with_the_command_that_brings_it():
    class Needy(FrozenLake):
        from whetstone.environments.needs import package as _package

        name = "needy"
        needs = (_package("no_such_package_anywhere", "extra"),)

    with pytest.raises(RecipeError, match=r"needy needs the package no_such.*pip install 'whetstone-rl\[extra\]'"):
        GameEnvironment(Needy)


def test_a_snapshot_leads_back_and_another_way_from_there_is_another():
    async def both():
        environment = GameEnvironment(FrozenLake, actions="text")
        await environment.reset(LAKE, seed=0)
        await environment.step(assistant("right"))
        kept = await environment.snapshot()
        fell = await environment.step(assistant("down"))
        await environment.restore(kept)
        went = await environment.step(assistant("right"))
        await environment.close()
        return fell.ended, went.ended

    assert asyncio.run(both()) == (EndReason.TERMINATED, None)


def test_the_expert_goes_on_from_wherever_the_conversation_is():
    source = FrozenLakeTasks()
    from whetstone.chat import user

    said = [user("..."), assistant("right"), user("..."), assistant("nonsense"), user("...")]
    assert source.demonstrate(LAKE, said, ()).text in ("right", "down")
    said += [assistant("right"), user("..."), assistant("down"), user("...")]
    assert source.demonstrate(LAKE, said, ()).text == "down"
