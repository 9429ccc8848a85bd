"""A command is read from a call or from text; what is none is answered; options of a game are options in a recipe."""

import asyncio
import json

import pytest

from tests_episodes import CHAT, LIMITS, Says, in_order
from tests_slow import mostly_slow
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import GameEnvironment, GameObservation, played
from whetstone.environments.commands import command_of
from whetstone.environments.native.frozen_lake import FrozenLake, FrozenLakeTasks
from whetstone.errors import RecipeError
from whetstone.evaluation.contract import play
from whetstone.plugins import OptionError, checked_options
from whetstone.rewards import returns, verdict
from whetstone.rollout import run_episode
from whetstone.trajectory import EndReason, Task, Trajectory
from whetstone.trajectory_json import decoded_trajectories, encoded_trajectory, encoded_turn

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


def called(command):
    return assistant("", ToolCall("act", json.dumps({"command": command})))


@pytest.mark.parametrize(
    ("said", "command"),
    [
        (called("look\x00"), "look\ufffd"),
        (called("\ud83d"), "\ufffd"),
        (called("\x1b[31mup\x1b[0m"), "up"),
        (called(" up\r\ndown "), "up down"),
        (called("u" * 2001), None),
        (assistant("u" * 2001), None),
        (assistant("", ToolCall("act", "[" * 100_000)), None),
        (assistant("", ToolCall("act", '{"command": ' * 50_000)), None),
        (assistant("", ToolCall("act", "null")), None),
        (assistant("", ToolCall("act", '{"command": NaN}')), None),
    ],
)
def test_what_reaches_a_game_is_a_line_of_plain_text_of_bounded_length(said, command):
    assert command_of(said, "text") == command


class Picky(FrozenLake):
    """Raises as games of other packages do on a command they cannot read."""

    name = "picky"

    def act(self, command):
        if command == "²":
            int(command)
        if command == "é":
            command.encode("ascii")
        if command == "far":
            int(1e309)
        if command == "deep":
            json.loads("[" * 100_000)
        return super().act(command)


@pytest.mark.parametrize("isolation", mostly_slow(["object", "thread", "process"], quick=["object", "thread"]))
def test_a_command_a_game_cannot_read_is_answered_and_never_a_fault(isolation):
    async def tried():
        environment = GameEnvironment(Picky, isolation=isolation)
        try:
            await environment.reset(LAKE, seed=0)
            for command in ("²", "é", "far", "deep"):
                result = await environment.step(called(command))
                assert (result.ended, result.calls[0].outcome) == (None, "tool_error")
                assert "cannot read that" in result.observation.messages[0].text
            await environment.step(called("right"))
            return environment.raised, await environment.verdict()
        finally:
            await environment.close()

    raised, verdict = asyncio.run(tried())
    assert "'²' raised ValueError: invalid literal" in raised[0]
    assert (len(raised), verdict["steps"]) == (4, 1)


class Echo(FrozenLake):
    """Shows what it is given, and more that cannot be written."""

    def act(self, command):
        return GameObservation(f"you said {command}\ud83d\x07")


@pytest.mark.parametrize("name", ["act", "\ud83d", "x" * 9999])
@pytest.mark.parametrize("arguments", ['{"command": "\\ud83d"}', "[" * 3000, "\ud83d", '"\ud83d"'])
def test_half_a_letter_in_a_call_breaks_neither_the_episode_nor_its_record(name, arguments):
    call = ToolCall(name, arguments)
    left = iter([assistant("", call), assistant("", call, call), Message("assistant", malformed=("\ud83d",))])
    done = asyncio.run(play(lambda: GameEnvironment(Echo), LAKE, lambda *_: next(left), seed=0, max_turns=3)).trajectory
    again = decoded_trajectories([encoded_trajectory(done)])[0]
    assert [call.outcome for turn in again.turns for call in turn.calls] == [
        call.outcome for turn in done.turns for call in turn.calls
    ]
    for turn in done.turns:
        for message in turn.observation:
            assert "\ud83d" not in message.text
        json.dumps(encoded_turn(turn), ensure_ascii=False).encode()


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


def test_a_game_that_is_another_but_for_one_method_has_its_options():
    class ThickIce(FrozenLake):
        """Another lake."""

    assert checked_options(played(ThickIce), {"view": "around"}) == {"view": "around"}


def test_a_missing_package_is_said_with_the_command_that_brings_it():
    class Needy(FrozenLake):
        from whetstone.environments.dependencies import package as _package

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
