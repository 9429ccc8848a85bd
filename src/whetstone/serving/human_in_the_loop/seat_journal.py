"""Journal of the human-in-the-loop queue: seats, claims, messages and notes, one event per line.

Each line is on the disk before its event takes effect, so a kill loses nothing that a client has received:

    {"seat": "s1", "kind": "user", "owner": "", "about": "…", "seconds": 600, "episode": "", "at": 1.0}
    {"asked": "s1", "turn": 0, "messages": […], "at": 2.0}          the message of turn 0 is requested
    {"claimed": "s1", "by": "Ada", "until": 62.0}
    {"released": "s1", "by": "Ada", "why": "deadline", "at": 62.0}  other people can claim the seat; Ada cannot
    {"said": "s1", "by": "Bo", "message": {…}, "ended": false, "at": 70.0}
    {"over": "s1", "why": "deadline", "at": 700.0}
    {"note": "…", "episode": "e", "answer": 0, "by": "Ada", "rating": 1.0, "at": 3.0}
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

from whetstone.atomic_write import convert_save_errors, write_text
from whetstone.data.redacting import Redact, redacted_words
from whetstone.json_lines import cut_incomplete_line, make_shape, read_event, read_objects

_EVENTS = {
    "seat": make_shape(seat=str, kind=str, owner=str, about=str, seconds=float, episode=str, at=float),
    "asked": make_shape(asked=str, turn=int, messages=list[dict[str, Any]], at=float),
    "claimed": make_shape(claimed=str, by=str, until=float),
    "released": make_shape(released=str, by=str, why=str, at=float),
    "said": make_shape(said=str, by=str, message=dict[str, Any], ended=bool, at=float),
    "over": make_shape(over=str, why=str, at=float),
    "note": make_shape(
        note=str, episode=str, answer=int, by=str, rating=float | None, at=float, owner=NotRequired[str]
    ),
}


@dataclass(slots=True)
class HumanSeat:
    """Role in an episode whose messages a person writes."""

    id: str
    """Id of the seat."""
    kind: str
    """Role of the person, one of `KINDS` of the queue."""
    owner: str
    """Name of the API key that opened the seat."""
    about: str
    """Instruction for the person, such as the goal of the user."""
    seconds: float
    """Time that each turn waits for its message."""
    at: float
    """Time of opening, in seconds since 1970."""
    episode: str = ""
    """Episode of the seat; empty for tests of agents."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Conversation in the format of OpenAI's API."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    """Messages of people by turn: `{"by", "message", "ended", "at"}`."""
    num_requested: int = 0
    """Number of requested turns."""
    due: float = 0.0
    """Deadline of the requested turn."""
    by: str = ""
    """Person who has claimed the seat; empty if it is free."""
    until: float = 0.0
    """End of the claim, unless the person sends a message."""
    gave_back: set[str] = field(default_factory=set)
    """Names of the people who released the seat, and do not get it again."""
    over: str = ""
    """Reason why the seat is closed; empty while it is open."""
    size: int = 0
    """Bytes of `about` and of `messages`, as JSON."""

    @property
    def waits(self) -> bool:
        """Return whether the seat is open and a requested message is not written yet."""
        return not self.over and self.num_requested > len(self.answers)

    def to_json(self) -> dict[str, Any]:
        """Convert the seat into a JSON object of the API."""
        return {
            "id": self.id, "object": "seat", "kind": self.kind, "about": self.about, "messages": self.messages,
            "turn": len(self.answers), "waits": self.waits, "due": self.due if self.waits else None, "by": self.by,
            "until": self.until if self.by else None, "over": self.over,
        }  # fmt: skip


class SeatJournal:
    """Append-only journal that holds the current seats and notes in memory.

    Args:
        path: File of the journal, whose events are applied; None: nothing is stored.
        redact: Removes sensitive text from the file; memory has the whole text.
        claim_seconds: Time of a claim per turn.
        max_closed: Maximum number of closed seats of a key in memory.
        max_bytes: Maximum size of the closed seats of a key in memory.
    """

    def __init__(
        self, path: Path | None, *, redact: Redact | None, claim_seconds: float, max_closed: int, max_bytes: int
    ) -> None:
        self.path, self.claim_seconds, self._redact = path, claim_seconds, redact
        self.max_closed, self.max_bytes = max_closed, max_bytes
        self.seats: dict[str, HumanSeat] = {}
        self.notes: list[Mapping[str, Any]] = []
        self.note_bytes: Counter[str] = Counter()
        """Size of the notes, by key."""
        self.changed = asyncio.Event()
        """Set by the next event, and replaced by a new one."""
        self._read()

    def add(self, row: Mapping[str, Any]) -> None:
        """Append an event to the file, flush it to disk, and then apply it to the seats and notes."""
        if self.path is not None:
            with convert_save_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with open(self.path, "ab") as file:
                    written = row if self._redact is None else redacted_words(row, self._redact)
                    file.write(json.dumps(written).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
        self._apply(row)
        self._wake()

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def _read(self) -> None:
        """Read the file and apply its events.

        Raises:
            RunDirectoryError: A line is damaged, or contradicts those before it; the message names file and line.
        """
        if self.path is None or not self.path.is_file():
            return
        cut_incomplete_line(self.path)
        for _ in read_objects(self.path, lambda row: self._apply(read_event(row, _EVENTS))):
            pass

    def forget_episode(self, episode: str) -> None:
        """Delete all notes on an episode and all seats of the episode, in memory and in the file."""
        removed = [note for note in self.notes if note["episode"] == episode]
        self.notes = [note for note in self.notes if note["episode"] != episode]
        for note in removed:
            self.note_bytes[note.get("owner", "")] -= json_size(note)
        removed_seats = {id for id, seat in self.seats.items() if seat.episode == episode}
        for id in removed_seats:
            self.seats.pop(id).over = "forgotten"
        if self.path is not None and self.path.is_file():
            rows = read_objects(self.path, lambda row: read_event(row, _EVENTS))
            left = [row for row in rows if row.get("episode") != episode and row[next(iter(row))] not in removed_seats]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in left))
        self._wake()

    def _apply(self, row: Mapping[str, Any]) -> None:
        kind = next(iter(row))
        if kind == "note":
            self.notes.append(row)
            self.note_bytes[row.get("owner", "")] += json_size(row)
            return
        if kind == "seat":
            names = ("kind", "owner", "about", "seconds", "at", "episode")
            self.seats[row["seat"]] = HumanSeat(row["seat"], **{name: row[name] for name in names})
            self.seats[row["seat"]].size = json_size(row["about"])
            return
        if row[kind] not in self.seats:
            raise ValueError(f'there is no seat "{row[kind][:80]}"')
        seat = self.seats[row[kind]]
        if kind == "asked":
            if row["turn"] != seat.num_requested:
                raise ValueError(f"turn {row['turn']} does not follow turn {seat.num_requested - 1}")
            seat.messages += row["messages"]
            seat.size += json_size(row["messages"])
            seat.num_requested, seat.due = row["turn"] + 1, row["at"] + seat.seconds
            if seat.by:  # the time of a claim starts again with each turn
                seat.until = row["at"] + self.claim_seconds
        elif kind == "claimed":
            seat.by, seat.until = row["by"], row["until"]
        elif kind == "released":
            seat.by = ""
            seat.gave_back.add(row["by"])
        elif kind == "said":
            seat.answers.append({name: row[name] for name in ("by", "message", "ended", "at")})
            seat.messages.append(row["message"])
            seat.size += json_size(row["message"])
            seat.over = "said to be over" if row["ended"] else ""
        elif kind == "over":
            seat.over = row["why"]
        if seat.over:
            self._drop_closed(seat.owner)

    def _drop_closed(self, owner: str) -> None:
        """Drop the oldest closed seats of a key from memory, beyond `max_closed` seats or `max_bytes`."""
        closed = [seat for seat in self.seats.values() if seat.owner == owner and seat.over]
        size = sum(seat.size for seat in closed)
        for number, seat in enumerate(closed[:-1]):
            if len(closed) - number <= self.max_closed and size <= self.max_bytes:
                break
            size -= seat.size
            del self.seats[seat.id]


def json_size(value: Any) -> int:
    """Return the size of a value as JSON, in bytes."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
