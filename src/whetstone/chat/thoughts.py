"""Separation of the thought of a turn from the text and calls that follow it.

Note:
    `</think>` may also occur within the thought ("I close with </think>") and within the arguments of a call. Therefore
    the thought ends at the last such tag that is not part of a call. Other closing tags are single tokens, and end the
    thought at their first occurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from whetstone.chat.message import Message

_MAX_TRIALS = 8


def read_after_thought(
    text: str, closing: str, read: Callable[[str], Message], *, opening: str = "<think>"
) -> tuple[str, Message]:
    """Split a turn at the end of its thought, and parse the rest.

    A call within a thought that is never closed is reported as malformed and not executed.

    Args:
        text: Text of the turn.
        closing: Tag that ends a thought, such as `</think>`; empty if the model has no thoughts.
        read: Parser of text and calls, for a turn without a thought.
        opening: Tag that starts a thought.

    Returns:
        (the thought with its tags, empty if there is none; the message after the thought).
    """
    starts_thought = bool(opening.strip()) and text.lstrip().startswith(opening.lstrip())
    if not closing or closing not in text:
        message = read(text)
        if closing and starts_thought and message.tool_calls:
            reason = f"a thought is not closed with {closing}, and calls within it are not executed"
            message = replace(message, tool_calls=(), malformed=(*message.malformed, reason))
        return "", message
    place = text.index(closing) + len(closing) if starts_thought else 0
    for _ in range(_MAX_TRIALS):
        message = read(text[place:])
        if place and closing != "</think>":
            return text[:place], message
        remaining = text.count(closing, place)
        if not remaining or (closing not in message.text and not message.malformed and message.tool_calls):
            return text[:place], message
        place = text.index(closing, place) + len(closing)
    place = text.rindex(closing) + len(closing)
    return text[:place], read(text[place:])
