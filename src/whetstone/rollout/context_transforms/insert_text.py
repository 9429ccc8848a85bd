"""Insertion of texts into the prompt: into the system message, or before the first message."""

from __future__ import annotations

from whetstone.chat import Message, system, user


def prepend_to_task(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Insert a text at the start of the prompt.

    A system message gets the text at its end, a user message at its start; before any other first message, the text
    becomes a system message. Unchanged if the text or the messages are empty.
    """
    if not text or not messages:
        return messages
    first, *rest = messages
    if first.role == "system":
        return (system(f"{first.text}\n\n{text}"), *rest)
    if first.role == "user":
        return (user(f"{text}\n\n{first.text}"), *rest)
    return (system(text), *messages)


def append_to_last(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Append a text to the last message, which keeps its role.

    The result is unchanged if the text or the messages are empty.
    """
    if not text or not messages:
        return messages
    *before, last = messages
    return (*before, Message(last.role, (*last.content, *user(f"\n{text}").content), tool_call_id=last.tool_call_id))
