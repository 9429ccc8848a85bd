"""Properties of every reward: declared columns, unknown outcomes, and closing of its judge."""

import asyncio
import inspect

import pytest

from support.rewards import episode, score, task, turn
from whetstone.rewards import REWARDS, make_reward, provided_columns
from whetstone.rewards.judge_usage import find_judges
from whetstone.rewards.judges import ScriptedJudge
from whetstone.trajectory import EndReason, Score

PROVIDED = {
    "attempts": {"process_rewards"},
    "checklist": {"process_rewards"},
    "expert_match": {"process_rewards", "matched"},
    "ftrl": {"process_rewards", "solved_share"},
    "reward_model": {"learned"},
    "matched_calls": {"process_rewards", "action_rewards", "matched", "progress"},
    "meta_reasoning": {"process_rewards", "tags"},
    "milestones": {"process_rewards", "progress", "milestones"},
    "novelty": {"novelty"},
    "otc": {"calls", "efficiency"},
    "outcome_and_format": {"process_rewards"},
    "user_preferences": {"preference"},
    "pairwise_judge": {"wins", "order_disagreed"},
    "returns": {"process_rewards"},
    "step_labels": {"process_rewards", "steps"},
    "verdict": {"process_rewards"},
    "generated_code": {"written"},
}
"""Options of every reward that declares further columns of its scores."""
AROUND = {
    "calibrated": {},
    "cost_aware": {"budget": 1.0},
    "fewest_turns": {},
    "expert_match": {},
    "ikea": {},
    "matched_calls": {},
    "meta_reasoning": {},
    "milestones": {},
    "novelty": {},
    "otc": {},
    "outcome_and_format": {},
    "relevant_questions": {},
    "user_preferences": {},
    "self_aware": {},
    "plus_minus_one": {},
    "step_labels": {},
    "tool_star": {},
}
"""Rewards with an outcome, and their options."""
JUDGED = {
    "checklist": {},
    "evidence": {},
    "pairwise_judge": {},
    "rubric": {"criteria": ["x"]},
    "rules": {"rules": ["x"]},
    "step_labels": {},
    "rule_then_judge": {},
}
TASK = task("?", answer="Rome", answers={"find": ["x"]}, calls=[], milestones=[], step_labels=[1, 1], checklists=[])


async def cannot_tell(trajectory, task):
    return Score.unknown("unknown reason")


@pytest.mark.parametrize("name", sorted(REWARDS.keys() - {"composed"}))
def test_provided_columns_are_declared(name):
    assert provided_columns(REWARDS[name]) == PROVIDED.get(name, frozenset())


@pytest.mark.parametrize(
    "name", sorted(PROVIDED.keys() - {"reward_model", "user_preferences", "pairwise_judge", "generated_code"})
)
def test_declared_columns_are_provided(name):
    options = {"judge": ScriptedJudge(answers=lambda question: {})} if name == "checklist" else {}
    options |= {"outcome": "exact_match"} if name in ("otc", "step_labels") else {}
    problem = task(**{**TASK.private, "answer": 7}) if name in ("attempts", "matched_calls", "meta_reasoning") else TASK
    one = episode(turn("", ("find", {}), back=["x"]), "Rome", final={"success": True})
    result = score(name, one, problem, **options)
    provided = {*result.signals, *result.parts} | ({"process_rewards"} if result.turns is not None else set())
    assert PROVIDED[name] <= provided


@pytest.mark.parametrize("name", sorted(AROUND))
def test_unknown_outcome_is_an_unknown_score(name):
    options = AROUND[name] | {"outcome": cannot_tell}
    for one in (episode("Rome"), episode(turn("<x>", malformed=["<x>"]), "Rome")):
        assert score(name, one, TASK, **options).invalid == "unknown reason"


@pytest.mark.parametrize("name", ["otc", "user_preferences"])
def test_trajectories_with_a_known_outcome_are_compared(name):
    async def outcome(trajectory, task):
        known = trajectory.final_text != "?"
        return Score(1.0, success=True) if known else Score.unknown("unknown reason")

    reward = make_reward({"name": name, "outcome": outcome}, REWARDS)
    if name == "otc":  # a comparison is only asked of those that have a score
        results = asyncio.run(reward.compared([episode("Rome"), episode("?")], TASK))
        assert [one.invalid for one in results] == ["", "unknown reason"]
    assert score(reward, episode("?"), TASK).invalid == "unknown reason"


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_judge_is_closed(name):
    closed = []

    class Closing(ScriptedJudge):
        async def close(self):
            closed.append(self)

    judge = Closing(answers=lambda question: {})
    asyncio.run(make_reward({"name": name, "judge": judge, **JUDGED[name]}, REWARDS).close())
    assert closed == [judge]


@pytest.mark.parametrize("name", ["step_labels", "rule_then_judge"])
def test_closing_without_a_judge_does_nothing(name):
    reward = make_reward(name, REWARDS)
    assert find_judges(reward) == []
    for _ in range(2):  # closing twice has no effect
        assert asyncio.run(reward.close()) is None


CLASSES = {
    "generated_code": "code_reward", "pairwise_judge": "preferred", "reward_model": "learned_reward",
    "rule_then_judge": "verified",
}  # fmt: skip
"""Names of classes that differ from the name of the reward."""


def test_component_names_are_those_of_functions_and_classes():
    for name, part in REWARDS.items():
        written = CLASSES.get(name, name)
        assert part.__name__.lower() == written.replace("_", "" if inspect.isclass(part) else "_")


def test_truncated_answer_never_counts():
    cut = episode("Rome", ended=EndReason.MAX_TOKENS)
    for name in ("exact_match", "json_answer", "rule_then_judge", "plus_minus_one", "ikea"):
        assert score(name, cut, task("?", answer="Rome")).success is False
