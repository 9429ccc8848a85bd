"""An answer is correct only if it equals the expected one after normalization."""

import asyncio

import pytest

from whetstone.chat import assistant
from whetstone.rewards import exact_match
from whetstone.rewards.answers.exact_match import compute_f1, same_answer
from whetstone.trajectory import Author, EndReason, Task, Tokens, Trajectory, Turn


@pytest.mark.parametrize(
    ("answer", "wanted", "same"),
    [
        ("The Black Sea.", "black sea", True),
        ("black", "black sea", False),
        ("not the black sea", "black sea", False),
        ("1,200", "1200", True),
        ("$1,200.00", "1200", True),
        ("12", "112", False),
        ("112", "12", False),
        ("the answer is 12", "12", False),
        ("-3", "3", False),
        ("12 %", "12", True),
        ("€12.", " 12 ", True),
        ("£ 12", "12.0", True),
        ("12", "12 km", False),
        ("12 km", "12", False),
        ("An apple, the pear", "apple pear", True),
        ("another", "other", False),
        ("it's", "it s", True),
        ("", "x", False),
        ("", "12", False),
    ],
)
def test_answers_are_normalized_as_in_question_answering(answer, wanted, same):
    assert same_answer(answer, wanted) is same


def test_word_overlap_worked_numbers():
    # "the big black dog" against "black cat": shared 1 of 3 (articles gone) and 1 of 2 → 2·1/(3+2)
    assert compute_f1("the big black dog", "black cat") == pytest.approx(0.4)
    assert compute_f1("x", "y") == 0.0
    # "x x y" against "x x x": two shared of 3 and of 3
    assert compute_f1("x x y", "x x x") == pytest.approx(2 / 3)
    assert compute_f1("Black Sea", "the black sea") == 1.0


def score(text, ended=EndReason.TERMINATED):
    nothing = Tokens.from_ids((), Author.ENVIRONMENT)
    played = Trajectory("t", "t", (), (Turn(nothing, nothing, assistant(text)),), ended)
    return asyncio.run(exact_match(played, Task("t", "", {"answer": "black sea"})))


def test_only_a_final_answer_counts():
    assert score("the Black Sea").success is True
    assert score("the Black Sea", EndReason.MAX_TURNS).success is False
    assert score("the Black Sea", EndReason.MAX_TURNS).parts == {"correct": 0.0, "f1": 0.0}
    assert score("the Black Sea").parts == {"correct": 1.0, "f1": 1.0}
    assert (score("the Black Sea").value, score("a sea").value) == (1.0, 0.0)
    assert score("a sea").parts == {"correct": 0.0, "f1": pytest.approx(2 / 3)}
