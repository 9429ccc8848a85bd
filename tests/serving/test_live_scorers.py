"""What plain rules make of that which follows an answer."""

import pytest

from whetstone.chat import assistant, tool_result, user
from whetstone.serving.live import Followed, by_rules


def judged(*following, asked="Sort these files by size.", said="Done.", **options):
    return by_rules(Followed((user(asked),), assistant(said), following), **options)


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("No, by date.", -1),
        ("That's not what I meant. By date.", -1),
        ("That\u2019s wrong", -1),
        ("Actually, by date", -1),
        ("You should have sorted by date.", -1),
        ("Thanks! Now delete the largest.", 1),
        ("Perfect", 1),
        ("now delete the largest one", 0),
        ("Now show the notes.", 0),  # a word that holds `no`
        ("Delete the first. No, keep it.", 0),  # it corrects himself
        ("sort these files by size", -1),
        ("", 0),
    ],
)
def test_a_user_corrects_thanks_asks_again_or_goes_on(said, reward):
    judgement = judged(user(said))
    assert judgement.reward == reward
    assert judgement.teaches == (reward != 0)
    assert bool(judgement.hint) == (judgement.why.startswith("corrected"))


@pytest.mark.parametrize(("said", "reward"), [("No", 0), ("Yes please", 0), ("No, that's wrong", -1)])
def test_yes_and_no_answer_an_answer_that_asks(said, reward):
    assert judged(user(said), said="Shall I delete them?").reward == reward


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
def test_tools_fail_pass_tests_or_say_something(result, reward):
    judgement = judged(tool_result(result, call_id="c"))
    assert judgement.reward == reward
    assert judgement.hint == (result if reward < 0 else "")


def test_a_long_correction_is_a_hint_of_bounded_length():
    assert len(judged(user("No. " + "x" * 9999)).hint) == 500


def test_words_are_the_recipes_to_choose():
    assert judged(user("Nein, nach Datum."), corrections=["nein"]).reward == -1
    assert judged(user("No, by date."), corrections=["nein"]).reward == 0
