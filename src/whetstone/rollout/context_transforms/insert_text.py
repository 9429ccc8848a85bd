"""Insertion of texts into the prompt: into the system message, or before the first message."""

from __future__ import annotations

from whetstone.chat import Message, system, user


def prepend_to_task(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return the messages with `text` at their start; unchanged if either is empty."""
    if not text or not messages:
        return messages
    first, *rest = messages
    if first.role == "system":
        return (system(f"{first.text}\n\n{text}"), *rest)
    if first.role == "user":
        return (user(f"{text}\n\n{first.text}"), *rest)
    return (system(text), *messages)


def append_to_last(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return the messages with `text` at the end of the last one, with its role."""
    if not text or not messages:
        return messages
    *before, last = messages
    return (*before, Message(last.role, (*last.content, *user(f"\n{text}").content), tool_call_id=last.tool_call_id))
