"""What holds for every reward: it says what it provides, passes on what it cannot tell, and lets go of its judge."""

import asyncio
import inspect

import pytest

from tests_rewards import episode, score, task, turn
from whetstone.rewards import REWARDS, make_reward, provided_by
from whetstone.rewards.judge_usage import judges_of
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
    "otc": {"calls", "efficiency"},
    "outcome_and_format": {"process_rewards"},
    "user_preferences": {"preference"},
    "pairwise_judge": {"wins", "order_disagreed"},
    "returns": {"process_rewards"},
    "step_labels": {"process_rewards", "steps"},
    "verdict": {"process_rewards"},
    "generated_code": {"written"},
}
"""Of every reward that says what its scores carry beside their value."""
AROUND = {
    "calibrated": {},
    "cost_aware": {"budget": 1.0},
    "fewest_turns": {},
    "expert_match": {},
    "ikea": {},
    "matched_calls": {},
    "meta_reasoning": {},
    "milestones": {},
    "otc": {},
    "outcome_and_format": {},
    "user_preferences": {},
    "self_aware": {},
    "plus_minus_one": {},
    "step_labels": {},
    "tool_star": {},
}
"""Rewards around an outcome, with what they need."""
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


async def cannot_tell(trajectory, given):
    return Score.unknown("nobody knows")


@pytest.mark.parametrize("name", sorted(REWARDS.keys() - {"composed"}))
def test_it_says_what_it_provides(name):
    assert provided_by(REWARDS[name]) == PROVIDED.get(name, frozenset())


@pytest.mark.parametrize(
    "name", sorted(PROVIDED.keys() - {"reward_model", "user_preferences", "pairwise_judge", "generated_code"})
)
def test_what_is_provided_is_there(name):
    options = {"judge": ScriptedJudge(answers=lambda question: {})} if name == "checklist" else {}
    options |= {"outcome": "exact_match"} if name in ("otc", "step_labels") else {}
    given = task(**{**TASK.private, "answer": 7}) if name in ("attempts", "matched_calls", "meta_reasoning") else TASK
    one = episode(turn("", ("find", {}), back=["x"]), "Rome", final={"success": True})
    found = score(name, one, given, **options)
    there = {*found.signals, *found.parts} | ({"process_rewards"} if found.turns is not None else set())
    assert PROVIDED[name] <= there


@pytest.mark.parametrize("name", sorted(AROUND))
def test_where_the_outcome_cannot_tell_nobody_can(name):
    options = AROUND[name] | {"outcome": cannot_tell}
    for one in (episode("Rome"), episode(turn("<x>", malformed=["<x>"]), "Rome")):
        assert score(name, one, TASK, **options).invalid == "nobody knows"


@pytest.mark.parametrize("name", ["otc", "user_preferences"])
def test_where_the_outcome_of_one_cannot_tell_the_others_are_compared(name):
    async def outcome(trajectory, given):
        known = trajectory.final_text != "?"
        return Score(1.0, success=True) if known else Score.unknown("nobody knows")

    reward = make_reward({"name": name, "outcome": outcome}, REWARDS)
    if name == "otc":  # a comparison is only asked of those that have a score
        found = asyncio.run(reward.compared([episode("Rome"), episode("?")], TASK))
        assert [one.invalid for one in found] == ["", "nobody knows"]
    assert score(reward, episode("?"), TASK).invalid == "nobody knows"


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_it_lets_go_of_its_judge(name):
    closed = []

    class Closing(ScriptedJudge):
        async def close(self):
            closed.append(self)

    judge = Closing(answers=lambda question: {})
    asyncio.run(make_reward({"name": name, "judge": judge, **JUDGED[name]}, REWARDS).close())
    assert closed == [judge]


@pytest.mark.parametrize("name", ["step_labels", "rule_then_judge"])
def test_without_a_judge_there_is_nothing_to_let_go_of(name):
    reward = make_reward(name, REWARDS)
    assert judges_of(reward) == []
    for _ in range(2):  # closing is quiet, and again does nothing
        assert asyncio.run(reward.close()) is None


CLASSES = {
    "generated_code": "written_reward", "pairwise_judge": "preferred", "reward_model": "learned",
    "rule_then_judge": "verified", "user_preferences": "preferences",
}  # fmt: skip
"""Names of classes that differ from the name of the reward."""


def test_every_name_is_that_of_its_function_or_class():
    for name, part in REWARDS.items():
        written = CLASSES.get(name, name)
        assert part.__name__.lower() == written.replace("_", "" if inspect.isclass(part) else "_")


def test_an_answer_that_was_cut_off_is_none_anywhere():
    cut = episode("Rome", ended=EndReason.MAX_TOKENS)
    for name in ("exact_match", "json_answer", "rule_then_judge", "plus_minus_one", "ikea"):
        assert score(name, cut, task("?", answer="Rome")).success is False
