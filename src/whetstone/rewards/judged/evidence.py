"""Did the agent prove what it did? It names a few of its own steps; the judge sees those, and nothing else.

Evidence is by number: what a step showed is taken from the record, so it cannot be forged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import arguments_of
from whetstone.rewards.judged.material import transcript
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
    """1 where the steps an answer names as its evidence prove that the task is done; parts pay for form and brevity.

    Steps are named from 1, as `evidence: 2, 5` in the final answer, or as an argument `evidence` of the call that ends
    the episode.

    Args:
        judge: Asked whether the steps are to the point, and whether they prove the task done.
        max_steps: Maximum number of steps that may be named; more is bad form.
        format: What naming steps there are pays.
        relevance: What steps to the point pay.
        completeness: What a proof pays.
        conciseness: Bonus for a proof of one step, falling to 0 at `max_steps`.

    Source: SmartSnap 2025, arXiv:2512.22322; its four terms, with sizes of ours.
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
        """Look at the evidence."""
        named = None if trajectory.ended.cut_short else named_steps(trajectory)
        fine = (
            named is not None
            and 1 <= len(named) <= self.max_steps
            and all(1 <= k <= len(trajectory.turns) for k in named)
        )
        relevant = complete = False
        if fine and named is not None:
            shown = transcript(trajectory, turns=[k - 1 for k in named])
            ask = (
                "An agent says it has done the task. Is what these steps show to the point, and do they prove that it "
                "is done?"
            )
            material = {"task": task.prompt, "answer": final_answer(trajectory) or "", "evidence": shown}
            said = await self.judge.answer(Question(ask, material, _SHAPE))
            relevant, complete = bool(said["relevant"]), bool(said["complete"] and said["relevant"])
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
        """Let go of the judge."""
        await self.judge.close()


def named_steps(trajectory: Trajectory) -> list[int] | None:
    """The steps an episode names as its evidence, from 1, each once; None where it names none."""
    if not trajectory.turns:
        return None
    message = trajectory.turns[-1].message
    for call in message.tool_calls:
        steps = arguments_of(call.arguments).get("evidence")
        if isinstance(steps, list) and all(isinstance(k, int) and not isinstance(k, bool) for k in steps):
            return list(dict.fromkeys(steps))
    found = _SAID.findall(message.text)
    return list(dict.fromkeys(int(k) for k in re.findall(r"\d+", found[-1]))) if found else None
