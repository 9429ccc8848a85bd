"""Steps are labelled, and put together."""

import pytest

from tests_rewards import episode, score, task, turn
from whetstone.rewards.judges import ScriptedJudge
from whetstone.rewards.turns.step_labels import aggregate


def test_ways_to_put_steps_together():
    steps = [1.0, 0.5, 0.8]
    assert [aggregate(steps, how) for how in ("product", "mean", "min", "max")] == pytest.approx([0.4, 2.3 / 3, 0.5, 1])
    assert aggregate([0.95] * 20, "product") == pytest.approx(0.3585, abs=1e-4)  # length alone
    assert aggregate([], "product") == 0


def test_labels_and_a_judge_for_the_rest():
    seen = []

    async def judges(question):
        seen.append(question.material)
        return {"reason": "r", "met": "good" in question.material["step"]}

    judge = ScriptedJudge(answers=judges)
    one = episode(turn("first", ("t", {})), turn("good", ("t", {})), "bad")
    found = score("step_labels", one, task("?", step_labels=[1]), judge=judge)
    assert (found.value, len(seen)) == (pytest.approx(2 / 3), 2)
    assert "good" not in seen[0]["before"]
    assert "first" in seen[0]["before"]


def test_beside_an_outcome_steps_are_paid_on_their_turns():
    one = episode(turn("x", ("t", {})), "Rome")
    found = score("step_labels", one, task("?", step_labels=[1, 0], answer="Rome"), outcome="exact_match", weight=0.5)
    assert (found.value, found.turns, found.success) == (1, (0.25, 0), True)


def test_a_label_that_is_missing():
    with pytest.raises(ValueError, match="step 2 has no label"):
        score("step_labels", episode(turn("x", ("t", {})), "y"), task("?", step_labels=[1]))
