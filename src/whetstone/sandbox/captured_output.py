"""Captured output of a call in the sandbox: head and tail, in bounded memory."""

from __future__ import annotations

from whetstone.truncate_text import truncate_middle


class CapturedOutput:
    """Buffer for the printed output of a call that keeps only its head and tail, in bounded memory.

    Args:
        characters: Maximum length of the text that it returns, in characters.
    """

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.bytes = 0
        """Number of bytes received so far, including those that were not kept."""
        self._keep = 4 * characters  # a character has up to four bytes
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Append received bytes; the middle is dropped if there are too many."""
        self.bytes += len(data)
        free = self._keep - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        self._tail += data
        if len(self._tail) > 2 * self._keep:
            del self._tail[: -self._keep]

    def text(self) -> str:
        """Return head and tail of the output as text, with a note on the bytes left out.

        Invalid UTF-8 is replaced.
        """
        num_missing = self.bytes - len(self._head) - len(self._tail)
        if not num_missing:
            return truncate_middle((self._head + self._tail).decode(errors="replace"), self.characters)[0]
        head = self._head.decode(errors="replace")[: self.characters * 2 // 3]
        tail = self._tail.decode(errors="replace")[-(self.characters // 3) :]
        num_omitted = self.bytes - len(head.encode()) - len(tail.encode())
        return f"{head}\n[… {num_omitted} bytes left out …]\n{tail}"
