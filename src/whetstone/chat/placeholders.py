"""Placeholders for the parts of a turn, to find out which of them a template renders.

Note:
    A placeholder must not occur in the conversation, so it is chosen to be absent from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whetstone.chat.template_probe import TurnParts


def choose_placeholder(conversation: Sequence[Any]) -> str:
    """Return a placeholder text that does not occur in a conversation."""
    texts = json.dumps(conversation)
    return next(mark for number in range(len(texts) + 1) if (mark := f"qz{number}q") not in texts)


def with_placeholders(speech: TurnParts, mark: str) -> TurnParts:
    """Return the same turn with a placeholder for each of its parts."""
    calls = tuple(replace(c, arguments=json.dumps({"x": f"{mark}{i}x"})) for i, c in enumerate(speech.calls))
    content = f"{mark}cx" if speech.content or not (calls or speech.thought) else ""
    return TurnParts(speech.text, f"{mark}tx" if speech.thought else "", content, calls)


def list_placeholders(marked: TurnParts) -> list[str]:
    """Return the placeholders that must be rendered for a turn."""
    calls = [json.loads(call.arguments)["x"] for call in marked.calls]
    return [text for text in (marked.thought, marked.content, *calls) if text]


def is_rendered(text: str, rendered: str) -> bool:
    """Return whether a message is rendered, perhaps trimmed or as JSON."""
    first = text.strip().partition("\n")[0][:40].strip()
    return (
        first in rendered
        or json.dumps(first)[1:-1] in rendered
        or json.dumps(first, ensure_ascii=False)[1:-1] in rendered
    )
