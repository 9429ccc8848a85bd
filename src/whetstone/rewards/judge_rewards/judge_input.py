"""Judge input: an episode as text, with messages and calls but without the agent's thoughts.

Note: Thoughts could persuade the judge. Tool output, answers and names are untrusted, so they are in delimited fields
(`Question.material`), never among a judge's instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.chat import Message
from whetstone.json_lines import to_writable
from whetstone.trajectory import Trajectory, Turn

_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


def format_episode(trajectory: Trajectory, *, turns: Sequence[int] | None = None, max_characters: int = 24_000) -> str:
    """Format an episode as text for a judge, without the agent's thoughts.

    Args:
        trajectory: Episode to format.
        turns: Indices of the turns to include; None: the prompt and all turns.
        max_characters: Maximum number of characters; a longer text is truncated in the middle, with a note.
    """
    chosen = range(len(trajectory.turns)) if turns is None else turns
    lines = [format_judged_message(message) for message in trajectory.opening] if turns is None else []
    for number in chosen:
        turn = trajectory.turns[number]
        lines.append(f"[turn {number + 1}] {format_turn(turn)}")
    text: str = to_writable("\n".join(lines))
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def format_turn(turn: Turn) -> str:
    """Format a turn as text: the agent's message, its tool calls and their results."""
    return "\n".join(
        [format_judged_message(turn.message), *(format_judged_message(message) for message in turn.observation)]
    )


def format_judged_message(message: Message) -> str:
    """Format a message as text: its role, its text without thoughts, and its tool calls."""
    lines = [without_thoughts(message.text)] if message.text.strip() else []
    lines += [f"calls {call.name} {call.arguments}" for call in message.tool_calls]
    return f"{message.role}: " + "\n".join(lines)


def without_thoughts(text: str) -> str:
    """Remove the text between `<think>` tags, including an unclosed one."""
    return _THOUGHT.sub("", text).strip()
