"""How many rules of good work does an episode keep? Rules may be read off preferences, by a judge, before training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from whetstone.rewards.judged.material import transcript
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
    """The share of rules that are kept, beside another reward where one is named.

    Args:
        judge: Asked of each rule, yes or no.
        rules: The rules.
        base_reward: Reward that this one is added to, such as `reward_model`; it determines success.
        weight: Of the rules.
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
            raise ValueError("rules: one or more")
        self.judge, self.rules, self.base_reward = judge, rules, base_reward
        self.weight, self.base_weight = weight, base_weight

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """The share, and the other."""
        material = {"task": task.prompt, "work": transcript(trajectory)}
        asked = [
            self.judge.answer(Question(f"Does the agent's work keep this rule? {rule}", material))
            for rule in self.rules
        ]
        kept = [bool(said["met"]) for said in await asyncio.gather(*asked)]
        share = sum(kept) / len(kept)
        if self.base_reward is None:
            return Score(self.weight * share, {"rules": share}, success=all(kept))
        other = await self.base_reward(trajectory, task)
        if other.invalid:
            return other
        value = self.weight * share + self.base_weight * other.value
        return Score(value, {**other.parts, "rules": share}, other.turns, other.success, other.signals)

    async def close(self) -> None:
        """Let go of the judge."""
        await self.judge.close()


async def rules_from(judge: Judge, pairs: Sequence[tuple[str, str, str]], *, most: int = 20) -> list[str]:
    """Rules that tell good work from worse, read off (task, better, worse), merged and without repetitions.

    Source: AutoRule 2025, arXiv:2506.15651: justify each preference, extract rules, merge them.
    """
    found: list[str] = []
    for task, better, worse in pairs:
        ask = (
            "The first piece of work was preferred to the second. Which general rules does the first keep that the "
            "second breaks?"
        )
        said = await judge.answer(Question(ask, {"task": task, "better": better, "worse": worse}, _RULES_SHAPE))
        found += [str(rule) for rule in said["rules"]]
    different = list(dict.fromkeys(rule.strip() for rule in found if rule.strip()))
    if len(different) <= 1:
        return different
    ask = f"Merge these rules: drop those that say the same, keep at most {most}, each in one sentence."
    merged = await judge.answer(Question(ask, {"rules": "\n".join(different)}, _RULES_SHAPE))
    return [str(rule) for rule in merged["rules"]][:most]
