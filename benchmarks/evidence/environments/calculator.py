"""Arithmetic with a calculator: experts that make failing calls or state a confidence, and a verifier of turns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.tasks.arithmetic import Arithmetic
from whetstone.trajectory import Score, Task, Trajectory

FAILED = "error"
"""Start of the answer to a call that failed."""
CONFIDENCES = (10, 30, 50, 70, 90)
"""Confidences of the expert, in percent."""
_OPERATION = re.compile(r"(-?\d+)([-+*])(-?\d+)")


class HastyExpert(Arithmetic):
    """Same as `arithmetic`, with an expert that sometimes calculates two operations at once, which fails.

    The next turn is the intended call.

    Args:
        seed: Same as for `Arithmetic`.
        digits: Same as for `Arithmetic`.
        kinds: Same as for `Arithmetic`.
        error_rate: Same as for `Arithmetic`.
        hasty: Probability of a failing call before a call.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        digits: int = 2,
        kinds: Mapping[str, float] | None = None,
        error_rate: float = 0.0,
        hasty: float = 0.0,
    ) -> None:
        super().__init__(seed=seed, digits=digits, kinds=kinds, error_rate=error_rate)
        self.hasty = hasty

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the turn of the expert of `arithmetic`, or a failing call before it."""
        has_failed = [message.text.startswith(FAILED) for message in conversation if message.role == "tool"]
        turn = super().demonstrate(task, [m for m in conversation if not m.text.startswith(FAILED)], tools)
        is_hasty = derive_random("hasty", task.id, has_failed.count(False)).random() < self.hasty
        if not turn.tool_calls or (has_failed and has_failed[-1]) or not is_hasty:
            return turn
        call = turn.tool_calls[0]
        ((name, expression),) = json.loads(call.arguments).items()
        return assistant("", ToolCall(call.name, json.dumps({name: f"{expression}+1"})))


class ConfidentExpert(Arithmetic):
    """Same as `arithmetic`, with an expert that states a random confidence before its answer."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the turn of the expert of `arithmetic`; an answer is `confidence 70% 1234`."""
        turn = super().demonstrate(task, conversation, tools)
        if turn.tool_calls:
            return turn
        return assistant(f"confidence {derive_random('confidence', task.id).choice(CONFIDENCES)}% {turn.text}")


async def consistent_turn(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the last turn does not contradict the conversation, else 0; the right answer is not known.

    A call on two numbers of the task has the operation that is between them there. A call on a result has an operation
    of the task. An answer is the last result.
    """
    message = trajectory.turns[-1].message
    results = [m.text for turn in trajectory.turns[:-1] for m in turn.observation if m.role == "tool"]
    if not message.tool_calls:
        return Score(float(bool(results) and message.text == results[-1]))
    try:
        expression = str(next(iter(json.loads(message.tool_calls[0].arguments).values())))
    except (ValueError, AttributeError, StopIteration):
        return Score(0.0)
    parts = _OPERATION.fullmatch(expression)
    if parts is None:
        return Score(0.0)
    if {parts[1], parts[3]} & set(results):
        return Score(float(parts[2] in task.prompt))
    return Score(float(re.search(rf"(?<!\d){re.escape(expression)}(?!\d)", task.prompt) is not None))
