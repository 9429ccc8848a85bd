"""A failing reward never results in a number, and the failure is visible."""

import asyncio
import math

import numpy as np
import pytest
import torch

from support.episodes import collected, in_order
from support.rewards import episode, task
from whetstone.chat import assistant
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.rewards import score_group, score_trajectory
from whetstone.rollout import Independent
from whetstone.trajectory import EndReason, RemovalScope, Score

TASK = task("?", answer=7)


def score_with(score, trajectory=None):
    async def reward(trajectory, task):
        if isinstance(score, Exception):
            raise score
        return score

    return asyncio.run(score_trajectory(reward, trajectory or episode("7"), TASK))


@pytest.mark.parametrize(
    ("score", "ended", "error"),
    [
        (Score(math.nan), EndReason.ERROR, "nan as value"),
        (Score(math.inf), EndReason.ERROR, "inf as value"),
        (Score(1.0, {"part": math.nan}), EndReason.ERROR, "nan as part part"),
        (Score(1.0, turns=(math.inf,)), EndReason.ERROR, "inf as turn 0"),
        (Score(1.0, turns=(1.0, 2.0)), EndReason.ERROR, "2 turns for 1"),
        (Score(1.0, signals={"tags": ()}), EndReason.ERROR, "0 tags for 1"),
        (Score.unknown("the judge is down"), EndReason.INFRASTRUCTURE, "the judge is down"),
        (InfrastructureError("no sandbox"), EndReason.INFRASTRUCTURE, "no sandbox"),
        (KeyError("answer"), EndReason.ERROR, "KeyError: 'answer'"),
        (ZeroDivisionError("0"), EndReason.ERROR, "ZeroDivisionError"),
    ],
)
def test_invalid_score_removes_the_episode(score, ended, error):
    result = score_with(score)
    assert (result.score, result.ended, result.removal) == (None, ended, RemovalScope.BEFORE_BASELINE)
    assert error in result.error


def test_configuration_error_of_a_reward_is_raised():
    with pytest.raises(RecipeError):
        score_with(RecipeError("no such judge"))


def test_invalid_episode_is_not_scored():
    result = score_with(AssertionError(), episode("7", ended=EndReason.INFRASTRUCTURE))
    assert (result.score, result.removal) == (None, RemovalScope.BEFORE_BASELINE)


class Ranks:
    def __init__(self, *values):
        self.values = values

    async def __call__(self, trajectory, task):
        if trajectory.final_text == "broken":
            raise InfrastructureError("no judge")
        return Score(0.0)

    async def compared(self, trajectories, task):
        return [Score(value) for value in self.values] if self.values else 1 / 0


def compare_texts(reward, *texts):
    async def main():
        alone = [await score_trajectory(reward, episode(text), TASK) for text in texts]
        return await score_group(reward, alone, TASK)

    return asyncio.run(main())


def test_scores_are_compared_without_missing_ones():
    result = compare_texts(Ranks(1.0, 2.0), "a", "broken", "b")
    assert [one.score and one.score.value for one in result] == [1, None, 2]


def test_failed_comparison_is_no_number():
    assert [one.ended for one in compare_texts(Ranks(), "a", "b")] == [EndReason.ERROR] * 2
    assert "1 scores for 2" in compare_texts(Ranks(1.0), "a", "b")[0].error
    half = compare_texts(Ranks(1.0, math.nan), "a", "b")
    assert (half[0].score.value, half[1].score) == (1, None)


def test_complete_group_is_compared():
    class Order:
        async def __call__(self, trajectory, task):
            return Score(0.0, success=True)

        async def compared(self, trajectories, task):
            return [Score(float(k), success=True) for k, _ in enumerate(trajectories)]

    result = collected(Independent(group_size=3), in_order(assistant("408")), reward=Order())
    assert result.rewards == (0, 1, 2)


def test_reward_past_its_deadline_is_no_number():
    async def hangs(trajectory, task):
        await asyncio.sleep(60)

    async def late(trajectory, task):
        raise TimeoutError("of the reward")

    result = asyncio.run(score_trajectory(hangs, episode("7"), TASK, seconds=0.01))
    assert (result.score, result.ended) == (None, EndReason.INFRASTRUCTURE)
    assert "no answer within 0.01 s (rollout.reward_timeout_seconds)" in result.error
    assert "TimeoutError: of the reward" in asyncio.run(score_trajectory(late, episode("7"), TASK, seconds=9)).error

    class Hangs(Ranks):
        async def compared(self, trajectories, task):
            await asyncio.sleep(60)

    async def group():
        alone = [await score_trajectory(Hangs(), episode(text), TASK) for text in "ab"]
        return await score_group(Hangs(), alone, TASK, seconds=0.01)

    assert [one.ended for one in asyncio.run(group())] == [EndReason.INFRASTRUCTURE] * 2


def test_missing_task_key_is_reported_with_the_existing_ones():
    assert score_with(KeyError("milestones")).error.endswith(
        "KeyError: 'milestones' (the task's private data has answer)"
    )


def test_numbers_of_any_library_become_python_numbers():
    seen = {"seen": (np.float64(3),)}
    score = Score(np.float32(0.5), {"part": np.int64(2)}, (torch.tensor(1.0),), np.bool_(True), seen)
    result = score_with(score).score
    assert result == Score(0.5, {"part": 2.0}, (1.0,), True, {"seen": (3.0,)})
    numbers = [result.value, *result.parts.values(), *result.turns, *result.signals["seen"]]
    assert {type(number) for number in numbers} == {float}
    assert type(result.success) is bool
    assert score_with(Score(1, success=None)).score == Score(1.0)


@pytest.mark.parametrize(
    ("score", "error"),
    [
        (Score("1"), "value: '1' is not a number"),
        (Score(1.0, {"part": None}), "part part: None is not a number"),
        (Score(1.0, turns=("x",)), "turns: 'x' is not a number"),
        (Score(1.0, signals={"seen": (None,)}), "signal seen: None is not a number"),
        (Score(1.0, success=1), "success must be True, False or None, got 1"),
        (Score("x" * 58), f"value: '{'x' * 58}' is not a number"),
        (Score("x" * 59), f"value: '{'x' * 58}… is not a number"),
        (Score(1.0, signals={"seen": (math.inf,)}), "it returned inf as signal seen"),
        (None, "it returned None; return a number"),
    ],
)
def test_invalid_value_is_named(score, error):
    result = score_with(score)
    assert (result.score, result.ended) == (None, EndReason.ERROR)
    assert error in result.error


def test_configuration_error_of_a_comparison_is_raised():
    class Wrong(Ranks):
        async def compared(self, trajectories, task):
            raise RecipeError("no such judge")

    with pytest.raises(RecipeError, match="no such judge"):
        compare_texts(Wrong(), "a", "b")
