"""Rewards for turns that match a recorded expert."""

import asyncio
from dataclasses import replace

from support.episodes import TASK, path, turn
from whetstone.rewards.process.expert_match import expert_match
from whetstone.trajectory import EndReason


def scored(rewards, **more):
    turns = [replace(turn(), reward=reward) for reward in rewards]
    return asyncio.run(expert_match(path("a", None, turns, **more), TASK))


def test_matched_turns_score_one_and_the_outcome_is_that_of_the_environment():
    score = scored([1.0, 0.0, 1.0], final={"success": True})
    assert score.turns == score.signals["matched"] == (1, 0, 1)
    assert (score.value, score.success) == (1, True)


def test_episode_without_remaining_patches_failed_and_turns_keep_their_rewards():
    score = scored([1.0, 0.0], ended=EndReason.EARLY_STOPPED)
    assert (score.value, score.success, score.turns) == (0, False, (1, 0))


def test_without_a_record_the_outcome_counts():
    score = scored([None, 0.3], final={"success": True, "score": 0.5})
    assert (score.value, score.turns) == (1, (0, 0))
