"""What does a template keep of what the model said? Each thing in a turn becomes a mark, and the marks are looked for.

Easy to get wrong: a mark that stands in the conversation already. It is made of letters that stand nowhere in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whetstone.chat.dialect import Speech


def mark_for(conversation: Sequence[Any]) -> str:
    """Letters that stand nowhere in a conversation."""
    texts = json.dumps(conversation)
    return next(mark for number in range(len(texts) + 1) if (mark := f"qz{number}q") not in texts)


def marked(speech: Speech, mark: str) -> Speech:
    """The same turn with a mark for each thing in it."""
    calls = tuple(replace(c, arguments=json.dumps({"x": f"{mark}{i}x"})) for i, c in enumerate(speech.calls))
    content = f"{mark}cx" if speech.content or not (calls or speech.thought) else ""
    return Speech(speech.text, f"{mark}tx" if speech.thought else "", content, calls)


def marks(marked: Speech) -> list[str]:
    """What has to be shown of a turn."""
    calls = [json.loads(call.arguments)["x"] for call in marked.calls]
    return [text for text in (marked.thought, marked.content, *calls) if text]


def is_in(text: str, shown: str) -> bool:
    """Whether a message is shown, perhaps trimmed or as JSON."""
    first = text.strip().partition("\n")[0][:40].strip()
    return first in shown or json.dumps(first)[1:-1] in shown or json.dumps(first, ensure_ascii=False)[1:-1] in shown
