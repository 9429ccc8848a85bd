"""SmartSnap reward: the agent names a few of its steps as evidence, and the judge sees only those steps.

Evidence is given by step number: the content of a step is read from the trajectory, so the agent cannot forge it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import parse_or_empty
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.judges import Judge, Question
from whetstone.trajectory import Score, Task, Trajectory

_SAID = re.compile(r"evidence\W{1,4}((?:\d+[\s,and]*)+)", re.IGNORECASE)
_SHAPE: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "maxLength": 2000},
        "relevant": {"type": "boolean"},
        "complete": {"type": "boolean"},
    },
    "required": ["reason", "relevant", "complete"],
    "additionalProperties": False,
}


class Evidence:
    """Returns 1 if the steps named as evidence prove that the task is done, plus bonuses for format and brevity.

    Steps are named from 1, as `evidence: 2, 5` in the final answer, or as an argument `evidence` of the call that ends
    the episode.

    Args:
        judge: Judge that decides whether the steps are relevant, and whether they prove that the task is done.
        max_steps: Maximum number of steps that may be named; more are a format error.
        format: Reward for naming existing steps.
        relevance: Reward for relevant steps.
        completeness: Reward for a proof.
        conciseness: Bonus for a proof of one step, falling to 0 at `max_steps`.

    Source: SmartSnap 2025, arXiv:2512.22322; its four terms, with our sizes.
    """

    def __init__(
        self,
        *,
        judge: Judge,
        max_steps: int = 3,
        format: float = 0.1,
        relevance: float = 0.2,
        completeness: float = 1.0,
        conciseness: float = 0.1,
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.judge, self.max_steps = judge, max_steps
        self.format, self.relevance, self.completeness, self.conciseness = format, relevance, completeness, conciseness

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory by the steps that it names as evidence."""
        named = None if trajectory.ended.cut_short else parse_evidence(trajectory)
        fine = (
            named is not None
            and 1 <= len(named) <= self.max_steps
            and all(1 <= k <= len(trajectory.turns) for k in named)
        )
        relevant = complete = False
        if fine and named is not None:
            steps = format_episode(trajectory, turns=[k - 1 for k in named])
            ask = (
                "An agent says it has done the task. Is what these steps show to the point, and do they prove that it "
                "is done?"
            )
            material = {"task": task.prompt, "answer": final_answer(trajectory) or "", "evidence": steps}
            answer = await self.judge.answer(Question(ask, material, _SHAPE))
            relevant, complete = bool(answer["relevant"]), bool(answer["complete"] and answer["relevant"])
        concise = complete and named is not None and self.max_steps > 1
        short = (self.max_steps - len(named or ())) / (self.max_steps - 1) if concise else 0.0
        value = self.format * fine + self.relevance * relevant + self.completeness * complete + self.conciseness * short
        parts = {
            "format": float(fine),
            "relevant": float(relevant),
            "complete": float(complete),
            "concise": float(short),
        }
        return Score(value, parts, success=complete)

    async def close(self) -> None:
        """Close the judge and its connections."""
        await self.judge.close()


def parse_evidence(trajectory: Trajectory) -> list[int] | None:
    """Return the step numbers that an episode names as evidence, from 1, each once.

    Returns None if no steps are named.
    """
    if not trajectory.turns:
        return None
    message = trajectory.turns[-1].message
    for call in message.tool_calls:
        steps = parse_or_empty(call.arguments).get("evidence")
        if isinstance(steps, list) and all(isinstance(k, int) and not isinstance(k, bool) for k in steps):
            return list(dict.fromkeys(steps))
    matches = _SAID.findall(message.text)
    return list(dict.fromkeys(int(k) for k in re.findall(r"\d+", matches[-1]))) if matches else None
