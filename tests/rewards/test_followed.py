"""Whether each turn did what a recorded expert did."""

import asyncio
from dataclasses import replace

from tests_episodes import TASK, path, turn
from whetstone.rewards.turns.followed import expert_match
from whetstone.trajectory import EndReason


def scored(rewards, **more):
    turns = [replace(turn(), reward=reward) for reward in rewards]
    return asyncio.run(expert_match(path("a", None, turns, **more), TASK))


def test_turns_that_followed_are_one_and_the_outcome_is_the_worlds():
    said = scored([1.0, 0.0, 1.0], final={"success": True})
    assert said.turns == said.signals["matched"] == (1, 0, 1)
    assert (said.value, said.success) == (1, True)


def test_an_episode_that_ran_out_of_patches_has_failed_and_its_turns_still_say_what_they_did():
    score = scored([1.0, 0.0], ended=EndReason.EARLY_STOPPED)
    assert (score.value, score.success, score.turns) == (0, False, (1, 0))


def test_where_nobody_walks_a_record_the_outcome_stands():
    said = scored([None, 0.3], final={"success": True, "score": 0.5})
    assert (said.value, said.turns) == (1, (0, 0))
