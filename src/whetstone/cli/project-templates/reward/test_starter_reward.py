"""Tests of the reward on hand-written episodes."""

import asyncio

import pytest
from starter_reward import solved_briefly

from whetstone import Task, Trajectory
from whetstone.chat import assistant, user
from whetstone.trajectory import Author, CallRecord, EndReason, Tokens, Turn

NO_TOKENS = Tokens.from_ids([], Author.ENVIRONMENT)
TASK = Task("sum", "Compute 2+3", private={"answer": "5"})


def episode(answer: str, *, calls: int = 0) -> Trajectory:
    """Create an episode that ends with this answer after `calls` calls."""
    records = (CallRecord("calculator", "ok", seconds=0.0),) * calls
    turn = Turn(NO_TOKENS, NO_TOKENS, assistant(answer), calls=records)
    return Trajectory("episode", TASK.id, (user(TASK.prompt),), (turn,), EndReason.TERMINATED)


@pytest.mark.parametrize(
    ("answer", "calls", "paid"),
    [("5", 0, 1.0), ("It is 5.", 2, 0.9), ("5", 40, 0.5), ("6", 1, 0.0), ("", 0, 0.0)],
)
def test_it_pays_the_right_number_and_charges_calls(answer: str, calls: int, paid: float) -> None:
    score = asyncio.run(solved_briefly(episode(answer, calls=calls), TASK))
    assert score.value == pytest.approx(paid)
    assert score.success == (paid > 0)
