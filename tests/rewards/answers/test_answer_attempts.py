"""Which turns are answers, and which of them are correct."""

import pytest

from support.rewards import episode, task
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.rewards.answers.answer_attempts import answer_attempts


def test_number_is_read_at_the_end_of_a_text_and_a_word_is_the_full_text():
    trajectory = episode("it is 7", "not 8", "The Black Sea.")
    assert [right for _, _, right in answer_attempts(trajectory, task(answer=7))] == [True, False, False]
    # without a number in the correct answer, no text without a number is correct
    assert [right for _, _, right in answer_attempts(trajectory, task(answer="black sea"))] == [False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["matched_calls", "attempts", "unary_feedback"])
def test_missing_task_field_of_a_reward_is_refused_before_the_run(reward):
    key = "calls" if reward == "matched_calls" else "answer"
    with pytest.raises(RecipeError, match=f"reward: reads the private `{key}` of tasks; task frozen_lake/1/.* has "):
        assemble(load_recipe("frozen-lake", [f"reward={reward}"])).check()
