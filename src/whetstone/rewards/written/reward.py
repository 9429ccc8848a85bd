"""A reward that is a function in a file, run in the sandbox: what a model wrote and a person has read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import arguments_of
from whetstone.rewards.protocol import Reward
from whetstone.sandbox import Ending, shared_sandbox
from whetstone.trajectory import Score, Task, Trajectory

_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What the function said."""

    value: float = math.nan
    error: str = ""
    """Why it said nothing."""


class WrittenReward:
    """Value of the function `reward(trace)` in a file; `outcome` determines success.

    The function is run in the sandbox, with the trace as plain values and without the task's private data. If it
    fails or returns no number, the episode is invalid.

    Args:
        path: The file. It is to be read before it is named here.
        outcome: Rule that determines success.
        outcome_weight: Weight of `outcome` in the sum.
        weight: Weight of the function.
        high: Bound of the absolute value of the function.
        sandbox: Sandbox, see the tool `python`.

    Raises:
        RecipeError: There is no such file.

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
            raise RecipeError(f"path: {path}: no such file")
        self.code, self.outcome, self.sandbox = Path(path).read_text(encoding="utf-8"), outcome, sandbox
        self.outcome_weight, self.weight, self.high = outcome_weight, weight, high

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """What it says.

        Raises:
            ValueError: It failed, or said no number.
        """
        rule = await self.outcome(trajectory, task)
        if rule.invalid:
            return rule
        said = await run_reward(self.code, trajectory, task, sandbox=self.sandbox)
        if said.error:
            raise ValueError(said.error)
        bounded = max(-self.high, min(self.high, said.value))
        value = self.outcome_weight * rule.value + self.weight * bounded
        return Score(value, {**rule.parts, "written": said.value}, rule.turns, rule.success, rule.signals)


async def run_reward(code: str, trajectory: Trajectory, task: Task, *, sandbox: str = "auto") -> Ran:
    """Run `reward(trace)` of some code on an episode.

    Raises:
        InfrastructureError: The sandbox failed.
    """
    session = shared_sandbox(sandbox).session(persistent=False, seed=0)
    trace = json.dumps(json.dumps(trace_of(trajectory, task), default=str))
    try:
        outcome = await session.python(
            f"import json, math, re\n{code}\nfloat(reward(json.loads({trace})))", wall_seconds=_SECONDS
        )
    finally:
        session.close()
    if outcome.ending is not Ending.OK or outcome.value is None:
        lines = (outcome.error or str(outcome.ending)).strip().splitlines()
        return Ran(error=lines[-1] if lines else str(outcome.ending))
    try:
        value = float(outcome.value)
    except ValueError:
        return Ran(error=f"it said {outcome.value[:60]!r}")
    return Ran(value) if math.isfinite(value) else Ran(error=f"it said {value}")


def trace_of(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    """An episode as plain values, without what only the verifier may know."""
    return {
        "prompt": task.prompt,
        "turns": [
            {
                "text": turn.message.text,
                "calls": [
                    {"name": call.name, "arguments": dict(arguments_of(call.arguments)), "outcome": record.outcome}
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
