"""A long text within a limit: its head and its tail, and between them how much is missing."""

from __future__ import annotations


def shortened(text: str, limit: int) -> tuple[str, bool]:
    """(the text, or two thirds of the limit of its head and a third of its tail; whether something was left out)

    Args:
        limit: Characters.
    """
    if len(text) <= limit:
        return text, False
    head, tail = text[: limit * 2 // 3], text[max(len(text) - limit // 3, 0) :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left_out} characters left out …]\n{tail}", True
