"""Which turns are answers, and which of those are right."""

import pytest

from tests_rewards import episode, task
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.rewards.answers.tried import answers_of


def test_a_number_is_looked_for_at_the_end_of_a_text_and_a_word_is_all_of_it():
    said = episode("it is 7", "not 8", "The Black Sea.")
    assert [right for _, _, right in answers_of(said, task(answer=7))] == [True, False, False]
    # no number in the right answer: nothing without a number is right for that
    assert [right for _, _, right in answers_of(said, task(answer="black sea"))] == [False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["matched_calls", "attempts", "unary_feedback"])
def test_a_reward_that_reads_what_tasks_do_not_have_is_refused_before_anything_runs(reward):
    key = "calls" if reward == "matched_calls" else "answer"
    with pytest.raises(RecipeError, match=f"reward: reads the private `{key}` of tasks; task frozen_lake/1/.* has "):
        assemble(load_recipe("frozen-lake", [f"reward={reward}"])).check()
