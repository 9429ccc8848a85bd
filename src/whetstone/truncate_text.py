"""Truncation of long texts in the middle."""

from __future__ import annotations


def truncate_middle(text: str, limit: int) -> tuple[str, bool]:
    """Truncate a text in the middle.

    Two thirds of the limit are kept at the start, and a third at the end.

    Args:
        text: Text to truncate.
        limit: Maximum number of characters, without the note that replaces the middle.

    Returns:
        The text, and whether a part was left out.
    """
    if len(text) <= limit:
        return text, False
    head, tail = text[: limit * 2 // 3], text[max(len(text) - limit // 3, 0) :]
    num_removed = len(text) - len(head) - len(tail)
    return f"{head}\n[… {num_removed} characters left out …]\n{tail}", True
