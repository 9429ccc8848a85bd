"""What a call prints, as it comes: enough of its head and tail to show, and how much there was, in bounded memory."""

from __future__ import annotations

from whetstone.shortening import shortened


class Printed:
    """Bytes in, text out.

    Args:
        characters: How many are shown.
    """

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.bytes = 0
        """All there were."""
        self._keep = 4 * characters  # a character has up to four bytes
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """What came next."""
        self.bytes += len(data)
        room = self._keep - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._keep:
            del self._tail[: -self._keep]

    def text(self) -> str:
        """Head and tail; bytes that are no UTF-8 show as such."""
        missing = self.bytes - len(self._head) - len(self._tail)
        if not missing:
            return shortened((self._head + self._tail).decode(errors="replace"), self.characters)[0]
        head = self._head.decode(errors="replace")[: self.characters * 2 // 3]
        tail = self._tail.decode(errors="replace")[-(self.characters // 3) :]
        left_out = self.bytes - len(head.encode()) - len(tail.encode())
        return f"{head}\n[… {left_out} bytes left out …]\n{tail}"
