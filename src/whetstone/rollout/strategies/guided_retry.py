"""Strategy that retries unsolved tasks with a hint; training uses the context without the hint.

Note:
    A hint that contains the answer only trains copying. Such a hint is refused, unless it is selected by its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whetstone.errors import TaskError
from whetstone.plugins import find_part
from whetstone.rollout.context_transforms.hint import Hint
from whetstone.rollout.protocol import Roller
from whetstone.tasks.protocol import Source
from whetstone.trajectory import EndReason, Group, OffPolicy, RemovalScope, Task, Trajectory

_LONGEST = 60
"""Maximum number of characters of a quoted tool result or answer."""
_FEW = 2
"""Maximum number of attempts that the hint describes."""


def error_feedback(task: Task, failed: Sequence[Trajectory]) -> str:
    """Write a hint from failed attempts: their failed calls, and the wrong or missing answer.

    At most two attempts are described. Lines that contain the task's answer are left out.

    Source: Agent-RLVR 2025, arXiv:2506.11425: error feedback from the failed attempt; the wording is an addition.
    """
    answer = str(task.private.get("answer", ""))
    attempts = [_describe_failures(trajectory) for trajectory in failed[:_FEW]]
    lines = [
        "Attempts before this one failed.",
        *(line for each in attempts for line in each),
        "Do it differently.",
    ]
    return "\n".join(dict.fromkeys(line for line in lines if not answer or answer not in line))


def _describe_failures(trajectory: Trajectory) -> list[str]:
    lines = []
    for turn in trajectory.turns:
        if turn.message.malformed:
            lines.append("A call could not be read.")
        results = [message.text for message in turn.observation if message.role == "tool"]
        for call, text in zip(turn.calls, [*results, *[""] * len(turn.calls)], strict=False):
            if call.outcome != "ok":
                lines.append(f"A call of {call.name} failed: {_short(text)}")
    if trajectory.ended in (EndReason.TERMINATED, EndReason.TOOL_STOPPED):
        return [*lines, f'It ended with "{_short(trajectory.final_text)}", which was wrong.']
    return [*lines, "It came to no end."]


def _short(text: str | None) -> str:
    line = " ".join((text or "nothing").split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def the_answer(task: Task, failed: Sequence[Trajectory]) -> str:
    """Return the task's private `answer` as a hint, so that only the derivation is missing (rationalization).

    Raises:
        TaskError: If the task has no answer.

    Source: Zelikman et al. 2022 (STaR), arXiv:2203.14465, §3.2.
    """
    if task.private.get("answer") in (None, ""):
        raise TaskError(f"task {task.id}: has no answer (private `answer`) to hint at; add it, or choose other hints")
    return f"The answer is {task.private['answer']}."


HINTS = {"error_feedback": error_feedback, "answer": the_answer}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedRetry:
    """Samples independent episodes and, if none succeeds, further ones with a hint, which training omits.

    The ratios of hinted episodes compare the policy without the hint with the sampling probabilities with it
    (`cross_view`), or start at 1 (`recompute`).

    Sources: Guide 2025, arXiv:2506.13923; Agent-RLVR 2025, arXiv:2506.11425. With `hints: answer` STaR's
    rationalization, arXiv:2203.14465.
    """

    group_size: int
    """Number of episodes without a hint."""
    guided: int = 0
    """Number of episodes with a hint; 0: half as many as without."""
    hints: str = ""
    """`error_feedback`, which describes the errors; `answer`, which reveals the answer; or `package.module:function`,
    (task, failed trajectories) → hint; empty: the task's private `hint`."""
    off_policy: OffPolicy = OffPolicy.CROSS_VIEW
    """Log-probs that the ratios of hinted episodes are computed against; `none` for a preference objective."""
    keep_failures: bool = False
    """Whether failed episodes with a hint are trained; if not, they only count in the statistics."""

    def check(self, source: Source, first: int) -> None:
        """Check that the tasks have hints; see `ChecksSource.check`.

        Raises:
            TaskError: If the first task has no hint and no function returns one.
        """
        if self.hints in ("", "answer"):
            self._hint(source.task(first), [])

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        size = roller.samples(self.group_size)
        plain = tuple(await asyncio.gather(*(roller.sample(task, index=i) for i in range(size))))
        valid = [trajectory for trajectory in plain if trajectory.ended.valid]
        if not valid or any(trajectory.solved for trajectory in valid):
            return Group(task, plain)
        view = Hint(text=self._hint(task, valid), off_policy=self.off_policy)
        more = self.guided or max(1, size // 2)
        guided = await asyncio.gather(*(roller.sample(task, index=size + i, view=view) for i in range(more)))
        return Group(task, (*plain, *(self._weighed(trajectory) for trajectory in guided)))

    def _hint(self, task: Task, failed: list[Trajectory]) -> str:
        if self.hints:
            function: Callable[..., Any] = find_part("hint", self.hints, HINTS)
            hint = str(function(task, failed))
        elif "hint" in task.private:
            hint = str(task.private["hint"])
        else:
            raise TaskError(
                f"task {task.id}: has no hint (private `hint`); "
                "name one: rollout.strategy.hints: error_feedback, or module:function"
            )
        answer = task.private.get("answer")
        if self.hints != "answer" and answer is not None and str(answer) and str(answer) in hint:
            raise TaskError(f"task {task.id}: its hint contains the answer, {answer}; describe the method instead")
        return hint

    def _weighed(self, trajectory: Trajectory) -> Trajectory:
        if trajectory.solved or self.keep_failures or trajectory.removal is not None:
            return trajectory
        return replace(trajectory, removal=RemovalScope.LOSS_ONLY)
