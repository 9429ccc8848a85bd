"""What of an episode does a judge see? What was said and done, and not what the agent thought of it.

Easy to get wrong: thoughts argue the agent's case. And tool output, answers and names are all somebody else's words, so
they stand in delimited fields (`Question.material`), never among a judge's instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.chat import Message
from whetstone.json_lines import writable
from whetstone.trajectory import Trajectory, Turn

_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


def transcript(trajectory: Trajectory, *, turns: Sequence[int] | None = None, most: int = 24_000) -> str:
    """An episode as a judge reads it, thoughts taken out; only these turns where they are named.

    Args:
        most: Characters; where there are more, the middle is left out, and that is said.
    """
    chosen = range(len(trajectory.turns)) if turns is None else turns
    lines = [shown(message) for message in trajectory.opening] if turns is None else []
    for number in chosen:
        turn = trajectory.turns[number]
        lines.append(f"[turn {number + 1}] {shown_turn(turn)}")
    text: str = writable("\n".join(lines))
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def shown_turn(turn: Turn) -> str:
    """A turn: what the agent said and called, and what came back."""
    return "\n".join([shown(turn.message), *(shown(message) for message in turn.observation)])


def shown(message: Message) -> str:
    """A message in one piece."""
    said = [without_thoughts(message.text)] if message.text.strip() else []
    said += [f"calls {call.name} {call.arguments}" for call in message.tool_calls]
    return f"{message.role}: " + "\n".join(said)


def without_thoughts(text: str) -> str:
    """A text without what stands between `<think>` marks, one that was never closed among them."""
    return _THOUGHT.sub("", text).strip()
