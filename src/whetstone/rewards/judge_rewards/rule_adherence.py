"""AutoRule reward: the fraction of rules that an episode satisfies. A judge can extract the rules from preferences."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.judges import Judge, Question
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory

_RULES_SHAPE = {
    "type": "object",
    "properties": {"rules": {"type": "array", "items": {"type": "string", "maxLength": 300}, "maxItems": 40}},
    "required": ["rules"],
    "additionalProperties": False,
}


class Rules:
    """Scores the fraction of rules that an episode satisfies, optionally added to another reward.

    Args:
        judge: Judge that decides on each rule.
        rules: Texts of the rules.
        base_reward: Reward to which the fraction is added, such as `reward_model`; it determines success.
        weight: Weight of the rules.
        base_weight: Weight of the base reward.

    Source: AutoRule 2025, arXiv:2506.15651.
    """

    def __init__(
        self,
        *,
        judge: Judge,
        rules: list[str],
        base_reward: Reward | None = None,
        weight: float = 1.0,
        base_weight: float = 1.0,
    ) -> None:
        if not rules:
            raise ValueError("rules must not be empty; name at least one rule")
        self.judge, self.rules, self.base_reward = judge, rules, base_reward
        self.weight, self.base_weight = weight, base_weight

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory by the weighted fraction of satisfied rules plus the base reward."""
        satisfied = await check_rules(self.judge, self.rules, task.prompt, format_episode(trajectory))
        fraction = sum(satisfied) / len(satisfied)
        if self.base_reward is None:
            return Score(self.weight * fraction, {"rules": fraction}, success=all(satisfied))
        other = await self.base_reward(trajectory, task)
        if other.invalid:
            return other
        value = self.weight * fraction + self.base_weight * other.value
        return Score(value, {**other.parts, "rules": fraction}, other.turns, other.success, other.signals)

    async def close(self) -> None:
        """Close the judge and its connections."""
        await self.judge.close()


async def check_rules(judge: Judge, rules: Sequence[str], task: str, work: str) -> list[bool]:
    """Return for each rule whether a piece of work satisfies it, decided by a judge."""
    material = {"task": task, "work": work}
    pending = [judge.answer(Question(f"Does the agent's work keep this rule? {rule}", material)) for rule in rules]
    return [bool(answer["met"]) for answer in await asyncio.gather(*pending)]


async def extract_rules(judge: Judge, pairs: Sequence[tuple[str, str, str]], *, max_rules: int = 20) -> list[str]:
    """Extract rules that distinguish better from worse work, by a judge; merged and without duplicates.

    Args:
        judge: Judge that extracts and merges the rules.
        pairs: Tuples (task, better work, worse work).
        max_rules: Maximum number of rules.

    Source: AutoRule 2025, arXiv:2506.15651: justify each preference, extract rules, merge them.
    """
    extracted: list[str] = []
    for task, better, worse in pairs:
        ask = (
            "The first piece of work was preferred to the second. Which general rules does the first keep that the "
            "second breaks?"
        )
        answer = await judge.answer(Question(ask, {"task": task, "better": better, "worse": worse}, _RULES_SHAPE))
        extracted += [str(rule) for rule in answer["rules"]]
    different = list(dict.fromkeys(rule.strip() for rule in extracted if rule.strip()))
    if len(different) <= 1:
        return different
    ask = f"Merge these rules: drop those that say the same, keep at most {max_rules}, each in one sentence."
    merged = await judge.answer(Question(ask, {"rules": "\n".join(different)}, _RULES_SHAPE))
    return [str(rule) for rule in merged["rules"]][:max_rules]
