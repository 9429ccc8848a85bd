"""What failed attempts did wrong, without the answer."""

from tests_rewards import episode, task, turn
from whetstone.rollout.strategies.error_feedback import error_feedback
from whetstone.trajectory import EndReason


def test_it_tells_what_failed_once_and_never_the_answer():
    failed = turn("", ("calculator", {}, "tool_error"), back=["no such operation"])
    told = error_feedback(
        task(answer=42), [episode(failed, "41"), episode(turn("", malformed=["{"]), "it may be 42 or 43")]
    )
    assert told.splitlines() == [
        "Attempts before this one failed.",
        "A call of calculator failed: no such operation",
        'It ended with "41", which was wrong.',
        "A call could not be read.",
        "Do it differently.",
    ]


def test_an_attempt_that_was_cut_off_came_to_no_end_and_no_more_than_two_are_told_of():
    cut = episode(turn("so far"), ended=EndReason.MAX_TURNS)
    told = error_feedback(task(), [cut, cut, episode("x")])
    assert told == "Attempts before this one failed.\nIt came to no end.\nDo it differently."
