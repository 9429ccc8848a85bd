"""Captured output of a call: its head and tail in bounded memory, and the number of bytes."""

from __future__ import annotations

from whetstone.truncate_text import truncate_middle


class CapturedOutput:
    """Buffer that receives bytes and returns their head and tail as text.

    Args:
        characters: Maximum length of the text.
    """

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.bytes = 0
        """Number of bytes received."""
        self._keep = 4 * characters  # a character has up to four bytes
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self.bytes += len(data)
        free = self._keep - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        self._tail += data
        if len(self._tail) > 2 * self._keep:
            del self._tail[: -self._keep]

    def text(self) -> str:
        """Return the head and the tail; bytes that are not UTF-8 are replaced."""
        num_missing = self.bytes - len(self._head) - len(self._tail)
        if not num_missing:
            return truncate_middle((self._head + self._tail).decode(errors="replace"), self.characters)[0]
        head = self._head.decode(errors="replace")[: self.characters * 2 // 3]
        tail = self._tail.decode(errors="replace")[-(self.characters // 3) :]
        num_omitted = self.bytes - len(head.encode()) - len(tail.encode())
        return f"{head}\n[… {num_omitted} bytes left out …]\n{tail}"
