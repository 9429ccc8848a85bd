"""Labeled steps and their aggregation."""

import pytest

from support.rewards import episode, score, task, turn
from whetstone.rewards.judges import ScriptedJudge
from whetstone.rewards.process.step_labels import aggregate_steps


def test_aggregations_of_steps():
    steps = [1.0, 0.5, 0.8]
    assert [aggregate_steps(steps, how) for how in ("product", "mean", "min", "max")] == pytest.approx(
        [0.4, 2.3 / 3, 0.5, 1]
    )
    assert aggregate_steps([0.95] * 20, "product") == pytest.approx(0.3585, abs=1e-4)  # by length only
    assert aggregate_steps([], "product") == 0


def test_labels_and_a_judge_for_the_others():
    seen = []

    async def judges(question):
        seen.append(question.material)
        return {"reason": "r", "met": "good" in question.material["step"]}

    judge = ScriptedJudge(answers=judges)
    one = episode(turn("first", ("t", {})), turn("good", ("t", {})), "bad")
    result = score("step_labels", one, task("?", step_labels=[1]), judge=judge)
    assert (result.value, len(seen)) == (pytest.approx(2 / 3), 2)
    assert "good" not in seen[0]["before"]
    assert "first" in seen[0]["before"]


def test_step_rewards_on_turns_next_to_an_outcome():
    one = episode(turn("x", ("t", {})), "Rome")
    result = score("step_labels", one, task("?", step_labels=[1, 0], answer="Rome"), outcome="exact_match", weight=0.5)
    assert (result.value, result.turns, result.success) == (1, (0.25, 0), True)


def test_missing_label():
    with pytest.raises(ValueError, match="step 2 has no label"):
        score("step_labels", episode(turn("x", ("t", {})), "y"), task("?", step_labels=[1]))


def test_scorer_scores_the_episode_up_to_each_step():
    one = episode(turn("a", ("t", {})), turn("b", ("t", {})), "Rome")
    result = score("step_labels", one, task("?", answer="Rome"), scorer="exact_match", together="max")
    assert (result.value, result.parts["steps_mean"]) == (1.0, pytest.approx(1 / 3))


def test_scorer_and_judge_exclude_each_other():
    with pytest.raises(ValueError, match="scorer: cannot be combined with judge"):
        score("step_labels", episode("Rome"), task("?"), scorer="exact_match", judge=ScriptedJudge(answers=dict))
