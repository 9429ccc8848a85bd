"""Notes that an agent writes during an episode; they survive folding and summaries of the conversation."""

from __future__ import annotations

import re

from whetstone.errors import ToolError
from whetstone.tools.protocol import Episode


class Notes:
    """Notebook of an episode: tools `write_note`, `read_notes`, `delete_note`.

    Args:
        max_notes: Maximum number of notes.
        max_characters: Maximum length of a note, in characters.
    """

    effects = "read"

    def __init__(self, *, max_notes: int = 50, max_characters: int = 2000) -> None:
        self.max_notes, self.max_characters = max_notes, max_characters
        self.notes: dict[int, str] = {}
        self._next = 1

    def open(self, episode: Episode) -> None:
        """Start an episode with an empty notebook."""
        self.notes, self._next = {}, 1

    async def write_note(self, text: str) -> str:
        """Write something down for later.

        Args:
            text: What to remember.
        """
        if len(text) > self.max_characters:
            raise ToolError(f"a note has up to {self.max_characters} characters, this has {len(text)}")
        if len(self.notes) >= self.max_notes:
            raise ToolError(f"there are {self.max_notes} notes already; delete some first")
        number, self._next = self._next, self._next + 1
        self.notes[number] = text
        return f"note {number} written"

    async def read_notes(self, words: str = "") -> str:
        """Read the notes, all of them or those in which words stand.

        Args:
            words: Words that must stand in a note; empty for all.
        """
        wanted = set(re.findall(r"\w+", words.lower()))
        notes = [f"{n}: {note}" for n, note in self.notes.items() if wanted <= set(re.findall(r"\w+", note.lower()))]
        return "\n".join(notes) or "there are no such notes"

    async def delete_note(self, number: int) -> str:
        """Throw a note away.

        Args:
            number: The note's number.
        """
        if number not in self.notes:
            raise ToolError(f"there is no note {number}; there are: {', '.join(map(str, self.notes)) or 'none'}")
        del self.notes[number]
        return f"note {number} deleted"
