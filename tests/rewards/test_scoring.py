"""Whatever goes wrong in a reward, no number comes of it, and it is seen."""

import asyncio
import math

import numpy as np
import pytest
import torch

from tests_episodes import collected, in_order
from tests_rewards import episode, task
from whetstone.chat import assistant
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.rewards import compared, scored
from whetstone.rollout import Independent
from whetstone.trajectory import EndReason, RemovalScope, Score

TASK = task("?", answer=7)


def becomes(score, trajectory=None):
    async def reward(trajectory, given):
        if isinstance(score, Exception):
            raise score
        return score

    return asyncio.run(scored(reward, trajectory or episode("7"), TASK))


@pytest.mark.parametrize(
    ("said", "ended", "error"),
    [
        (Score(math.nan), EndReason.ERROR, "nan as value"),
        (Score(math.inf), EndReason.ERROR, "inf as value"),
        (Score(1.0, {"part": math.nan}), EndReason.ERROR, "nan as part part"),
        (Score(1.0, turns=(math.inf,)), EndReason.ERROR, "inf as turn 0"),
        (Score(1.0, turns=(1.0, 2.0)), EndReason.ERROR, "2 turns of 1"),
        (Score(1.0, signals={"tags": ()}), EndReason.ERROR, "0 tags of 1"),
        (Score.unknown("the judge is down"), EndReason.INFRASTRUCTURE, "the judge is down"),
        (InfrastructureError("no sandbox"), EndReason.INFRASTRUCTURE, "no sandbox"),
        (KeyError("answer"), EndReason.ERROR, "KeyError: 'answer'"),
        (ZeroDivisionError("0"), EndReason.ERROR, "ZeroDivisionError"),
    ],
)
def test_what_is_no_number_takes_the_episode_out(said, ended, error):
    found = becomes(said)
    assert (found.score, found.ended, found.removal) == (None, ended, RemovalScope.BEFORE_BASELINE)
    assert error in found.error


def test_what_a_person_has_to_mend_is_said():
    with pytest.raises(RecipeError):
        becomes(RecipeError("no such judge"))


def test_an_ending_that_is_not_valid_is_not_judged():
    found = becomes(AssertionError(), episode("7", ended=EndReason.INFRASTRUCTURE))
    assert (found.score, found.removal) == (None, RemovalScope.BEFORE_BASELINE)


class Ranks:
    def __init__(self, *values):
        self.values = values

    async def __call__(self, trajectory, given):
        if trajectory.final_text == "broken":
            raise InfrastructureError("no judge")
        return Score(0.0)

    async def compared(self, trajectories, given):
        return [Score(value) for value in self.values] if self.values else 1 / 0


def together(reward, *said):
    async def main():
        alone = [await scored(reward, episode(text), TASK) for text in said]
        return await compared(reward, alone, TASK)

    return asyncio.run(main())


def test_scores_beside_each_other_without_those_that_have_none():
    found = together(Ranks(1.0, 2.0), "a", "broken", "b")
    assert [one.score and one.score.value for one in found] == [1, None, 2]


def test_a_comparison_that_fails_is_no_number():
    assert [one.ended for one in together(Ranks(), "a", "b")] == [EndReason.ERROR] * 2
    assert "1 scores of 2" in together(Ranks(1.0), "a", "b")[0].error
    half = together(Ranks(1.0, math.nan), "a", "b")
    assert (half[0].score.value, half[1].score) == (1, None)


def test_a_group_is_compared_when_it_is_whole():
    class Order:
        async def __call__(self, trajectory, given):
            return Score(0.0, success=True)

        async def compared(self, trajectories, given):
            return [Score(float(k), success=True) for k, _ in enumerate(trajectories)]

    found = collected(Independent(group_size=3), in_order(assistant("408")), reward=Order())
    assert found.rewards == (0, 1, 2)


def test_a_reward_that_does_not_answer_in_time_is_none():
    async def hangs(trajectory, given):
        await asyncio.sleep(60)

    async def late(trajectory, given):
        raise TimeoutError("of its own")

    found = asyncio.run(scored(hangs, episode("7"), TASK, seconds=0.01))
    assert (found.score, found.ended) == (None, EndReason.INFRASTRUCTURE)
    assert "no answer within 0.01 s (rollout.reward_timeout_seconds)" in found.error
    assert "TimeoutError: of its own" in asyncio.run(scored(late, episode("7"), TASK, seconds=9)).error

    class Hangs(Ranks):
        async def compared(self, trajectories, given):
            await asyncio.sleep(60)

    async def group():
        alone = [await scored(Hangs(), episode(text), TASK) for text in "ab"]
        return await compared(Hangs(), alone, TASK, seconds=0.01)

    assert [one.ended for one in asyncio.run(group())] == [EndReason.INFRASTRUCTURE] * 2


def test_a_key_the_task_does_not_have_is_said_beside_those_it_has():
    assert becomes(KeyError("milestones")).error.endswith("KeyError: 'milestones' (the task's private data has answer)")


def test_numbers_of_any_library_become_pythons_own():
    seen = {"seen": (np.float64(3),)}
    said = Score(np.float32(0.5), {"part": np.int64(2)}, (torch.tensor(1.0),), np.bool_(True), seen)
    found = becomes(said).score
    assert found == Score(0.5, {"part": 2.0}, (1.0,), True, {"seen": (3.0,)})
    numbers = [found.value, *found.parts.values(), *found.turns, *found.signals["seen"]]
    assert {type(number) for number in numbers} == {float}
    assert type(found.success) is bool
    assert becomes(Score(1, success=None)).score == Score(1.0)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Score("1"), "value: '1' is not a number"),
        (Score(1.0, {"part": None}), "part part: None is not a number"),
        (Score(1.0, turns=("x",)), "turns: 'x' is not a number"),
        (Score(1.0, signals={"seen": (None,)}), "signal seen: None is not a number"),
        (Score(1.0, success=1), "it said 1 as success, which is True, False or None"),
        (Score("x" * 58), f"value: '{'x' * 58}' is not a number"),
        (Score("x" * 59), f"value: '{'x' * 58}… is not a number"),
        (Score(1.0, signals={"seen": (math.inf,)}), "it said inf as signal seen"),
        (None, "it returned None; return a number"),
    ],
)
def test_what_is_no_number_is_named(said, error):
    found = becomes(said)
    assert (found.score, found.ended) == (None, EndReason.ERROR)
    assert error in found.error


def test_what_a_person_has_to_mend_is_said_of_a_group_too():
    class Wrong(Ranks):
        async def compared(self, trajectories, given):
            raise RecipeError("no such judge")

    with pytest.raises(RecipeError, match="no such judge"):
        together(Wrong(), "a", "b")
