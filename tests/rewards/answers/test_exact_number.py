import asyncio

import pytest

from whetstone.chat import assistant
from whetstone.rewards import exact_number, last_number
from whetstone.trajectory import Author, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.from_ids((), Author.ENVIRONMENT)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10 of 100", 100),
        ("1,234", 1234),
        ("1200.0", 1200),
        ("$1,200.50.", 1200.5),
        ("= -3", -3),
        ("7-3", 3),
        ("7 - 3", 3),
        (".5", 0.5),
        ("it is 42!", 42),
        ("none", None),
        ("", None),
        ("1,23", 23),
        ("1,234,567.5", 1234567.5),
        ("12,345 and 0.25", 0.25),
        ("-.5", -0.5),
        ("7-.5", 0.5),
        ("x -3", -3),
        ("7 and -3", -3),
        ("3.", 3),
        ("1234,567", 567),
    ],
)
def test_last_number_is_parsed(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "ended", "value"),
    [
        ("so 408", EndReason.TERMINATED, 1.0),
        ("408.0", EndReason.TERMINATED, 1.0),
        ("4080", EndReason.TERMINATED, 0.0),
        ("", EndReason.TERMINATED, 0.0),
        ("408", EndReason.MAX_TOKENS, 0.0),
    ],
)
def test_answer_counts_if_it_is_final_and_correct(text, ended, value):
    turn = Turn(NOTHING, NOTHING, assistant(text))
    score = asyncio.run(exact_number(Trajectory("t", "x", (), (turn,), ended), Task("x", "?", {"answer": "408"})))
    assert (score.value, score.success, score.parts) == (value, value == 1.0, {"correct": value})


def test_task_without_a_number_has_no_score_and_endless_digits_are_no_number():
    trajectory = Trajectory("t", "x", (), (Turn(NOTHING, NOTHING, assistant("9" * 5000)),), EndReason.TERMINATED)
    with pytest.raises(ValueError, match="the task's answer contains no number: 'blue'"):
        asyncio.run(exact_number(trajectory, Task("x", "?", {"answer": "blue"})))
    assert asyncio.run(exact_number(trajectory, Task("x", "?", {"answer": "408"}))).value == 0
