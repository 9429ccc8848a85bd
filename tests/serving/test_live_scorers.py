"""Scores of user feedback by plain rules."""

import pytest

from whetstone.chat import assistant, tool_result, user
from whetstone.serving.online import FollowUp, by_rules


def judged(*following, question="Sort these files by size.", message="Done.", **options):
    return by_rules(FollowUp((user(question),), assistant(message), following), **options)


@pytest.mark.parametrize(
    ("message", "reward"),
    [
        ("No, by date.", -1),
        ("That's not what I meant. By date.", -1),
        ("That\u2019s wrong", -1),
        ("Actually, by date", -1),
        ("You should have sorted by date.", -1),
        ("Thanks! Now delete the largest.", 1),
        ("Perfect", 1),
        ("now delete the largest one", 0),
        ("Now show the notes.", 0),  # a word that contains `no`
        ("Delete the first. No, keep it.", 0),  # a self-correction
        ("sort these files by size", -1),
        ("", 0),
    ],
)
def test_user_corrects_thanks_repeats_or_continues(message, reward):
    feedback = judged(user(message))
    assert feedback.reward == reward
    assert feedback.is_trainable == (reward != 0)
    assert bool(feedback.hint) == (feedback.why.startswith("corrected"))


@pytest.mark.parametrize(("message", "reward"), [("No", 0), ("Yes please", 0), ("No, that's wrong", -1)])
def test_yes_and_no_to_a_question_of_the_policy(message, reward):
    assert judged(user(message), message="Shall I delete them?").reward == reward


@pytest.mark.parametrize(
    ("result", "reward"),
    [
        ("ValueError: amount must be zero or more", -1),
        ("Traceback (most recent call last):\n  File …", -1),
        ("error: no such table: users", -1),
        ("exit status: 1", -1),
        ("exit status 0", 0),
        ("==== 2 failed, 5 passed in 0.1s ====", -1),
        ("==== 5 passed in 0.1s ====", 1),
        ("0 errors, 3 rows", 0),
        ("The capital is Paris.", 0),
    ],
)
def test_tools_fail_pass_tests_or_return_text(result, reward):
    feedback = judged(tool_result(result, call_id="c"))
    assert feedback.reward == reward
    assert feedback.hint == (result if reward < 0 else "")


def test_long_correction_is_a_hint_of_bounded_length():
    assert len(judged(user("No. " + "x" * 9999)).hint) == 500


def test_words_are_options_of_the_recipe():
    assert judged(user("Nein, nach Datum."), corrections=["nein"]).reward == -1
    assert judged(user("No, by date."), corrections=["nein"]).reward == 0
