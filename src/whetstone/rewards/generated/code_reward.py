"""Generated reward: a function in a file, written by a model and reviewed by a person, run in the sandbox."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import parse_or_empty
from whetstone.rewards.protocol import Reward
from whetstone.sandbox import Ending, shared_sandbox
from whetstone.trajectory import Score, Task, Trajectory

_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CodeResult:
    """Result of a generated reward function on one episode."""

    value: float = math.nan
    """Value that the function returned; NaN after an error."""
    error: str = ""
    """Reason why there is no value; empty after success."""


class CodeReward:
    """Reward that runs a function `reward(trace)` from a file; `outcome` determines success.

    The function is run in the sandbox, with the trace as plain values and without the task's private data. If it fails
    or returns no number, the episode is invalid.

    Args:
        path: File with the function. Read it before you name it here.
        outcome: Reward that determines success.
        outcome_weight: Weight of `outcome` in the sum.
        weight: Weight of the function.
        high: Bound of the absolute value of the function.
        sandbox: Sandbox, see the tool `python`.

    Raises:
        RecipeError: If the file does not exist.

    Source: Text2Reward 2023, arXiv:2309.11489; Auto MC-Reward 2023, arXiv:2312.09238.
    """

    provides = frozenset({"written"})

    def __init__(
        self,
        *,
        path: str,
        outcome: Reward = exact_match,
        outcome_weight: float = 1.0,
        weight: float = 1.0,
        high: float = 1.0,
        sandbox: str = "auto",
    ) -> None:
        if not Path(path).is_file():
            raise RecipeError(f"path: {path}: no such file; generate it, or correct the path")
        self.code, self.outcome, self.sandbox = Path(path).read_text(encoding="utf-8"), outcome, sandbox
        self.outcome_weight, self.weight, self.high = outcome_weight, weight, high

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory by the weighted sum of `outcome` and the function's value, which is clamped to ±`high`.

        Raises:
            ValueError: If the function fails or returns no number.
        """
        rule = await self.outcome(trajectory, task)
        if rule.invalid:
            return rule
        result = await run_reward(self.code, trajectory, task, sandbox=self.sandbox)
        if result.error:
            raise ValueError(result.error)
        bounded = max(-self.high, min(self.high, result.value))
        value = self.outcome_weight * rule.value + self.weight * bounded
        return Score(value, {**rule.parts, "written": result.value}, rule.turns, rule.success, rule.signals)


async def run_reward(code: str, trajectory: Trajectory, task: Task, *, sandbox: str = "auto") -> CodeResult:
    """Run the function `reward(trace)` of generated code on one episode in the sandbox.

    Raises:
        InfrastructureError: If the sandbox fails.
    """
    session = shared_sandbox(sandbox).session(persistent=False, seed=0)
    trace = json.dumps(json.dumps(build_trace(trajectory, task), default=str))
    try:
        outcome = await session.python(
            f"import json, math, re\n{code}\nfloat(reward(json.loads({trace})))", wall_seconds=_SECONDS
        )
    finally:
        session.close()
    if outcome.ending is not Ending.OK or outcome.value is None:
        lines = (outcome.error or str(outcome.ending)).strip().splitlines()
        return CodeResult(error=lines[-1] if lines else str(outcome.ending))
    try:
        value = float(outcome.value)
    except ValueError:
        return CodeResult(error=f"it returned {outcome.value[:60]!r}")
    return CodeResult(value) if math.isfinite(value) else CodeResult(error=f"it returned {value}")


def build_trace(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    """Convert an episode to plain values, without the task's private data: the input of a generated reward."""
    return {
        "prompt": task.prompt,
        "turns": [
            {
                "text": turn.message.text,
                "calls": [
                    {"name": call.name, "arguments": dict(parse_or_empty(call.arguments)), "outcome": record.outcome}
                    for call, record in zip(turn.message.tool_calls, turn.calls, strict=False)
                ],
                "observations": [message.text for message in turn.observation],
                "reward": turn.reward,
            }
            for turn in trajectory.turns
        ],
        "ended": str(trajectory.ended),
        "final": dict(trajectory.final),
        "answer": final_answer(trajectory),
    }
