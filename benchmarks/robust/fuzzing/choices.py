"""Decisions from bytes: any bytes of a fuzzer generate a well-formed input of the target's grammar.

If no bytes are left, every choice is the first option, so that every grammar terminates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_One = TypeVar("_One")

NASTY = (
    "\ud800", "\udfff\ud83d", "\x00", "\x1b[2J", "\u200b", "\u202e", "\ufeff", "\r\n", "\n", "\t", " ", "é",
    "日本", "🪨",
    "İ", "ﬁ", "\u2028", "\uffff", "\U0010ffff", "'", '"', "\\", "\\u0000", "{", "}", "[", "]", "(", ")", "<", ">",
    ",", ":",
    "null", "true", "NaN", "Infinity", "-Infinity", "1e999", "-0", "1.5", "7", "9" * 400, "9" * 5000, "0x1f", "1_000",
    "1j",
    "a" * 300, "[" * 2000, "{'a':" * 400, '{"a":' * 600, "%s", "{0}", "../", "/", "~", "..", "__class__",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 255, 65536, 2**31, -(2**31), 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 0.5, -0.0,
    1e-300,
    1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip


class Choices:
    """Sequence of choices that the bytes of one input determine.

    Args:
        data: The input.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0
        self.notes: dict[str, Any] = {}
        """Name → generated object, for the report of a finding."""

    def note(self, name: str, value: _One) -> _One:
        """Store a generated object for the report, and return it."""
        self.notes[name] = value
        return value

    def below(self, count: int) -> int:
        """Return a number of 0 to `count` - 1."""
        size = 1 if count <= 256 else 2 if count <= 65536 else 4
        chunk = self.data[self.place : self.place + size]
        self.place += size
        return int.from_bytes(chunk, "little") % count if chunk else 0

    def often(self, of_256: int) -> bool:
        """Return True with probability `of_256` / 256; False if no bytes are left."""
        return self.below(256) >= 256 - of_256

    def one(self, among: Sequence[_One]) -> _One:
        """Return one option."""
        return among[self.below(len(among))]

    def some(self, make: Callable[[], _One], most: int) -> list[_One]:
        """Return a list of up to `most` generated items."""
        return [make() for _ in range(self.below(most + 1))]

    def raw(self, most: int) -> bytes:
        """Return the next bytes unchanged."""
        size = self.below(most + 1)
        chunk = self.data[self.place : self.place + size]
        self.place += size
        return chunk

    def text(self, words: Sequence[str] = (), most: int = 8) -> str:
        """Return a text of words of the target, unusual strings, and letters."""
        return "".join(self.some(lambda: self._piece(words), most))

    def _piece(self, words: Sequence[str]) -> str:
        kind = self.below(8)
        if words and kind < 5:
            return self.one(words)
        if kind == 5:
            return self.one(NASTY)
        if kind == 6:
            return self.raw(12).decode("utf-8", errors="surrogateescape")
        return chr(97 + self.below(26))

    def name(self, words: Sequence[str]) -> str:
        """Return a name, mostly one of the words."""
        return self.text(words, 3) if self.often(40) else self.one(words)

    def value(self, words: Sequence[str], depth: int = 3) -> Any:
        """Return a JSON value or NaN."""
        kind = self.below(10 if depth else 6)
        if kind < 2:
            return self.name(words)
        if kind == 2:
            return self.one(NUMBERS)
        if kind == 3:
            return self.one((None, True, False))
        if kind < 6:
            return self.text(words, 4) if kind == 4 else self.below(256)
        if kind < 8:
            return self.some(lambda: self.value(words, depth - 1), 4)
        return {self.name(words): self.value(words, depth - 1) for _ in range(self.below(5))}

    def mutated(self, value: Any, words: Sequence[str]) -> Any:
        """Return a value with occasional random changes."""
        if self.often(24):
            return self.value(words, 2)
        if isinstance(value, dict):
            entries = {key: self.mutated(inner, words) for key, inner in value.items() if not self.often(10)}
            return {**entries, self.name(words): self.value(words, 2)} if self.often(12) else entries
        if isinstance(value, list):
            return [self.mutated(inner, words) for inner in value if not self.often(10)]
        if isinstance(value, str) and self.often(16):
            at = self.below(len(value) + 1)
            return value[:at] + self.text(words, 2) + value[at:]
        return value

    def json(self, value: Any, words: Sequence[str]) -> str:
        """Return a value as JSON, occasionally damaged."""
        text = json.dumps(value, ensure_ascii=self.often(128))
        if self.often(24):
            at = self.below(len(text) + 1)
            text = text[:at] + self.text(words, 2) + text[at + self.below(4) :]
        return text


class Finding(AssertionError):
    """Violation of a property; the first words of the message are its kind."""


def require(true: bool, kind: str, detail: Any = "") -> None:
    """Check a property.

    Raises:
        Finding: The property does not hold.
    """
    if not true:
        raise Finding(f"{kind}: {str(detail)[:500]}")
