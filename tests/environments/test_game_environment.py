"""Game environments: commands are read from calls or text, and options of a game are options of a recipe."""

import asyncio
import json

import pytest

from support.episodes import CHAT, LIMITS, Says, in_order
from support.slow import mostly_slow
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import GameEnvironment, GameObservation, as_environment
from whetstone.environments.built_in.frozen_lake import FrozenLake, FrozenLakeTasks
from whetstone.environments.text_actions import parse_command
from whetstone.errors import RecipeError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.plugins import OptionError, validate_options
from whetstone.rewards import returns, verdict
from whetstone.rollout import run_episode
from whetstone.trajectory import EndReason, Task, Trajectory
from whetstone.trajectory_json import decode_trajectories, encode_trajectory, encode_turn

LAKE = Task("lake", "", {"lake": ["...", ".O.", "..."], "start": [0, 0], "goal": [2, 2]})


@pytest.mark.parametrize(
    ("message", "command"),
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
def test_command_is_read_from_text_and_from_calls(message, command):
    assert parse_command(message, "text") == command


def test_text_is_no_command_if_calls_are_required():
    assert parse_command(assistant("up"), "call") is None
    assert parse_command(assistant("1\n2"), "text", multiline=True) == "1\n2"


def test_game_with_the_renamed_attribute_is_refused():
    with pytest.raises(RecipeError, match="`whole` was renamed to `multiline`"):
        GameEnvironment(type("Old", (), {"whole": True, "begin": None, "act": None}))


def called(command):
    return assistant("", ToolCall("act", json.dumps({"command": command})))


@pytest.mark.parametrize(
    ("message", "command"),
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
def test_commands_are_one_line_of_plain_text_of_bounded_length(message, command):
    assert parse_command(message, "text") == command


class RaisingGame(FrozenLake):
    """A game that raises on unreadable commands, as games of other packages do."""

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
def test_unreadable_command_is_answered_and_never_an_error(isolation):
    async def tried():
        environment = GameEnvironment(RaisingGame, isolation=isolation)
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


class EchoGame(FrozenLake):
    """A game that returns the command and text that UTF-8 cannot encode."""

    def act(self, command):
        return GameObservation(f"you said {command}\ud83d\x07")


@pytest.mark.parametrize("name", ["act", "\ud83d", "x" * 9999])
@pytest.mark.parametrize("arguments", ['{"command": "\\ud83d"}', "[" * 3000, "\ud83d", '"\ud83d"'])
def test_invalid_unicode_in_a_call_breaks_neither_the_episode_nor_its_record(name, arguments):
    call = ToolCall(name, arguments)
    left = iter([assistant("", call), assistant("", call, call), Message("assistant", malformed=("\ud83d",))])
    done = asyncio.run(
        play_with_policy(lambda: GameEnvironment(EchoGame), LAKE, lambda *_: next(left), seed=0, max_turns=3)
    ).trajectory
    decoded = decode_trajectories([encode_trajectory(done)])[0]
    assert [call.outcome for turn in decoded.turns for call in turn.calls] == [
        call.outcome for turn in done.turns for call in turn.calls
    ]
    for turn in done.turns:
        for message in turn.observation:
            assert "\ud83d" not in message.text
        json.dumps(encode_turn(turn), ensure_ascii=False).encode()


def episode(*messages, **options):
    environment = as_environment(FrozenLake)(actions="text", **options)
    return asyncio.run(
        run_episode(
            LAKE, environment=environment, actor=Says(in_order(*messages)), chat=CHAT, limits=LIMITS, id="e", seed=1
        )
    )


def test_episode_stores_the_verdict_of_the_game():
    done = episode(*map(assistant, ("right", "right", "down", "down")))
    assert done.ended is EndReason.TERMINATED
    assert done.final == {"success": True, "score": 1.0, "steps": 4}
    assert [turn.reward for turn in done.turns] == [0.0, 0.0, 0.0, 1.0]
    score = asyncio.run(verdict(done, LAKE))
    assert (score.value, score.success, score.turns) == (1.0, True, (0.0, 0.0, 0.0, 1.0))
    assert asyncio.run(returns(done, LAKE)).value == 1.0


def test_hole_ends_the_episode_and_the_edge_does_not():
    fell = episode(assistant("up"), assistant("right"), assistant("down"))
    assert fell.ended is EndReason.TERMINATED
    assert fell.final["success"] is False
    assert fell.final["steps"] == 3


def test_turn_limit_is_truncation():
    late = episode(*[assistant("up")] * 5, max_steps=3)
    assert late.ended is EndReason.TRUNCATED
    assert len(late.turns) == 3


def test_invalid_move_is_answered_and_counts_as_a_step():
    episode_with_invalid_move = episode(assistant("fly"), *map(assistant, ("right", "right", "down", "down")))
    assert "no such move: fly" in episode_with_invalid_move.turns[0].observation[0].text
    assert episode_with_invalid_move.final["steps"] == 5


def test_verdict_is_stored_on_disk():
    done = episode(*map(assistant, ("right", "right", "down", "down")))
    assert decode_trajectories([encode_trajectory(done)])[0].final == done.final


def test_verdict_of_an_unfinished_episode_is_a_failure():
    silent = Trajectory("t", "lake", (), (), EndReason.TERMINATED)
    with pytest.raises(ValueError, match="the environment returns no verdict"):
        asyncio.run(verdict(silent, LAKE))
    late = Trajectory("t", "lake", (), (), EndReason.TIMEOUT)
    assert asyncio.run(verdict(late, LAKE)).success is False


def test_options_of_game_and_environment_are_validated_before_a_run():
    part = as_environment(FrozenLake)
    assert validate_options(part, {"view": "around", "actions": "text"}) == {"view": "around", "actions": "text"}
    with pytest.raises(OptionError, match="view"):
        validate_options(part, {"view": "above"})
    with pytest.raises(OptionError, match='did you mean "max_steps"'):
        validate_options(part, {"max_step": 3})


def test_subclass_of_a_game_has_its_options():
    class ThickIceLake(FrozenLake):
        """A subclass of the lake."""

    assert validate_options(as_environment(ThickIceLake), {"view": "around"}) == {"view": "around"}


def test_missing_package_is_reported_with_the_command_to_install():
    class GameWithRequirement(FrozenLake):
        from whetstone.environments.dependencies import require_package as _package

        name = "needy"
        needs = (_package("no_such_package_anywhere", "extra"),)

    with pytest.raises(RecipeError, match=r"needy needs the package no_such.*pip install 'whetstone-rl\[extra\]'"):
        GameEnvironment(GameWithRequirement)


def test_snapshot_restores_the_state_and_another_action_has_another_outcome():
    async def both():
        environment = GameEnvironment(FrozenLake, actions="text")
        await environment.reset(LAKE, seed=0)
        await environment.step(assistant("right"))
        snapshot = await environment.snapshot()
        fell = await environment.step(assistant("down"))
        await environment.restore(snapshot)
        went = await environment.step(assistant("right"))
        await environment.close()
        return fell.ended, went.ended

    assert asyncio.run(both()) == (EndReason.TERMINATED, None)


def test_expert_continues_from_any_conversation():
    source = FrozenLakeTasks()
    from whetstone.chat import user

    messages = [user("..."), assistant("right"), user("..."), assistant("nonsense"), user("...")]
    assert source.demonstrate(LAKE, messages, ()).text in ("right", "down")
    messages += [assistant("right"), user("..."), assistant("down"), user("...")]
    assert source.demonstrate(LAKE, messages, ()).text == "down"


class GuessGame:
    def begin(self, task, seed):
        return GameObservation("guess")

    def act(self, command):
        return GameObservation("right", terminated=True)

    def verdict(self):
        return {"success": True}

    def close(self):
        pass


class GameWithoutClose(GuessGame):
    close = property()  # hides the inherited method


class GameWithTextResult(GuessGame):
    def act(self, command):
        return "higher"


class GameWithBoolVerdict(GuessGame):
    def verdict(self):
        return True


def test_game_without_a_required_method_is_refused_by_name():
    with pytest.raises(RecipeError, match=r'game "GameWithoutClose" has no close; a game has .*, verdict, close'):
        GameEnvironment(GameWithoutClose).check()


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (GameWithTextResult, r"act\(\) returned 'higher', not a GameObservation; return GameObservation\(text, "),
        (GameWithBoolVerdict, r"verdict\(\) returned True, not a mapping such as {'success': True}"),
    ],
)
def test_wrong_result_of_a_method_is_named(game, message):
    async def episode():
        environment = GameEnvironment(game, actions="text")
        await environment.reset(LAKE, seed=0)
        try:
            await environment.step(assistant("5"))
            await environment.verdict()
        finally:
            await environment.close()

    with pytest.raises(TypeError, match=message):
        asyncio.run(episode())
