"""Feedback on failed attempts, without the answer."""

from support.rewards import episode, task, turn
from whetstone.rollout.strategies.guided_retry import error_feedback
from whetstone.trajectory import EndReason


def test_feedback_lists_each_failure_once_and_never_the_answer():
    failed = turn("", ("calculator", {}, "tool_error"), back=["no such operation"])
    feedback = error_feedback(
        task(answer=42), [episode(failed, "41"), episode(turn("", malformed=["{"]), "it may be 42 or 43")]
    )
    assert feedback.splitlines() == [
        "Attempts before this one failed.",
        "A call of calculator failed: no such operation",
        'It ended with "41", which was wrong.',
        "A call could not be read.",
        "Do it differently.",
    ]


def test_truncated_attempts_are_described_and_at_most_two_are_listed():
    cut = episode(turn("so far"), ended=EndReason.MAX_TURNS)
    feedback = error_feedback(task(), [cut, cut, episode("x")])
    assert feedback == "Attempts before this one failed.\nIt came to no end.\nDo it differently."
