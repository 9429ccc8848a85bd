"""Where does a text go that the policy is to read beside its task? To the system message, or in front of the first."""

from __future__ import annotations

from whetstone.chat import Message, system, user


def noted(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The messages with `text` at their beginning; none at all changes nothing."""
    if not text or not messages:
        return messages
    first, *rest = messages
    if first.role == "system":
        return (system(f"{first.text}\n\n{text}"), *rest)
    if first.role == "user":
        return (user(f"{text}\n\n{first.text}"), *rest)
    return (system(text), *messages)


def appended(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The messages with `text` at the end of the last, by whoever spoke it."""
    if not text or not messages:
        return messages
    *before, last = messages
    return (*before, Message(last.role, (*last.content, *user(f"\n{text}").content), tool_call_id=last.tool_call_id))
