"""Who of several people speaks in which episode? Seats that wait for words, claims with a deadline, all on the disk.

    an agent's test, or a watched episode → seat → asked → claimed → said → … → over

Each line of the journal is on the disk before what it says is done, so a kill loses nothing anybody was told:

    {"seat": "s1", "kind": "user", "owner": "", "about": "…", "seconds": 600, "episode": "", "at": 1.0}
    {"asked": "s1", "turn": 0, "messages": […], "at": 2.0}          the words of turn 0 are waited for
    {"claimed": "s1", "by": "Ada", "until": 62.0}
    {"released": "s1", "by": "Ada", "why": "deadline", "at": 62.0}  others may; Ada is not given it again
    {"said": "s1", "by": "Bo", "message": {…}, "ended": false, "at": 70.0}
    {"over": "s1", "why": "deadline", "at": 700.0}
    {"note": "…", "episode": "e", "answer": 0, "by": "Ada", "rating": 1.0, "at": 3.0}

Easy to get wrong: two people must never hold one seat, nor one be given a seat he gave back; and time goes on while
nobody asks, so deadlines are looked at whenever anybody does.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

from whetstone.atomic_write import saving, write_text
from whetstone.chat.api.asked import RefusedError
from whetstone.data.redacting import Redact, redacted_words
from whetstone.json_lines import cut_incomplete_line, make_shape, read_event, read_objects

KINDS = ("user", "policy")
"""Whose seat a person may take: the user's in a test of an agent, or the policy's in an episode that is watched."""
_MOST = 10_000
_MOST_OF_A_KEY = 1_000
"""Maximum open seats of a key, and number of its closed seats that are kept in memory."""


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
class Seat:
    """A place in an episode that people speak from."""

    id: str
    kind: str
    owner: str
    """The key that made it."""
    about: str
    """What whoever sits there is to know: what the user wants."""
    seconds: float
    """How long each turn waits for words."""
    at: float
    episode: str = ""
    """Of a held answer, the episode it is in."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation, as OpenAI's API writes it."""
    said: list[dict[str, Any]] = field(default_factory=list)
    """What people said, turn by turn: `{"by", "message", "ended", "at"}`."""
    asked: int = 0
    """Turns that were asked for."""
    due: float = 0.0
    """When the turn that is waited for is late."""
    by: str = ""
    """Who holds it; empty: nobody."""
    until: float = 0.0
    """When his claim ends, unless he speaks."""
    gave_back: set[str] = field(default_factory=set)
    over: str = ""
    """Why nothing more is waited for; empty while it is under way."""
    size: int = 0
    """Bytes of `about` and of `messages`, as JSON."""

    @property
    def waits(self) -> bool:
        """Whether words are waited for."""
        return not self.over and self.asked > len(self.said)

    def told(self) -> dict[str, Any]:
        """As it is told of over HTTP."""
        return {
            "id": self.id, "object": "seat", "kind": self.kind, "about": self.about, "messages": self.messages,
            "turn": len(self.said), "waits": self.waits, "due": self.due if self.waits else None, "by": self.by,
            "until": self.until if self.by else None, "over": self.over,
        }  # fmt: skip


class PeopleQueue:
    """The seats of a server, and the notes people made.

    Args:
        path: The journal; what is there is gone on with. None: nothing is kept.
        redact: A text without what is not to be kept; who waits, or looks, sees all of it as long as the server runs.
        claim_seconds: How long who claimed a seat has until he speaks.
        max_bytes: Maximum size of the open seats and the notes of one key.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        redact: Redact | None = None,
        claim_seconds: float = 300.0,
        max_bytes: int = 16 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.claim_seconds, self._clock, self._redact = path, claim_seconds, clock, redact
        self.max_bytes = max_bytes
        self.seats: dict[str, Seat] = {}
        self.notes: list[Mapping[str, Any]] = []
        self._note_bytes: Counter[str] = Counter()
        """By name of the key."""
        self._changed = asyncio.Event()
        self._read()
        for seat in list(self.seats.values()):
            if seat.kind == "policy" and not seat.over:  # whoever waited for it was cut off
                self._add({"over": seat.id, "why": "the server ended", "at": clock()})

    def open(self, *, about: str, seconds: float, kind: str = "user", owner: str = "", episode: str = "") -> Seat:
        """A seat; words are waited for once they are asked for.

        Raises:
            RefusedError: There are too many, or the key has too many bytes.
        """
        self._look()
        if kind == "user":
            self.refuse_bytes(owner, about)
            if sum(seat.owner == owner and not seat.over for seat in self.seats.values()) >= _MOST_OF_A_KEY:
                raise RefusedError(f"this key has {_MOST_OF_A_KEY} open seats", status=429, code="queue_full")
        if sum(not seat.over for seat in self.seats.values()) >= _MOST:
            raise RefusedError(f"{_MOST} seats are taken", status=429, code="queue_full")
        id = uuid.uuid4().hex
        named = {"kind": kind, "owner": owner, "about": about, "seconds": seconds, "episode": episode}
        self._add({"seat": id, **named, "at": self._clock()})
        return self.seats[id]

    def get(self, id: str) -> Seat:
        """One of them.

        Raises:
            RefusedError: There is none.
        """
        self._look()
        if id not in self.seats:
            raise RefusedError(f'there is no seat "{id[:80]}"', status=404, code="not_found")
        return self.seats[id]

    def open_seats(self) -> list[Seat]:
        """Those under way, who waits the longest first."""
        self._look()
        return sorted(
            (seat for seat in self.seats.values() if not seat.over), key=lambda seat: (not seat.waits, seat.due)
        )

    def ask(self, id: str, turn: int, messages: Sequence[Mapping[str, Any]]) -> Seat:
        """Wait for the words of a turn; asked for once more it changes nothing.

        Args:
            turn: Its number, from 0.
            messages: What was said since the turn before.

        Raises:
            RefusedError: Another turn is next, or the seat is over.
        """
        seat = self.get(id)
        if turn == seat.asked - 1:
            return seat
        self._refuse_over(seat)
        if turn != seat.asked or seat.waits:
            raise RefusedError(f"turn {turn}: the next is {seat.asked}", status=409, param="turn", code="wrong_turn")
        if seat.kind == "user":
            self.refuse_bytes(seat.owner, list(messages))
        self._add({"asked": id, "turn": turn, "messages": list(messages), "at": self._clock()})
        return seat

    async def words(self, id: str, turn: int, *, wait: float = 0.0) -> Mapping[str, Any] | None:
        """What was said in a turn, waiting so many seconds at most; None: nothing yet, or the seat is over.

        Raises:
            RefusedError: There is no such seat or turn.
        """
        until, seat = time.monotonic() + wait, self.get(id)
        while True:
            changed = self._changed
            self._look()
            if 0 <= turn < len(seat.said):
                return seat.said[turn]
            if turn != seat.asked - 1:
                raise RefusedError(f"turn {turn}: was not asked for", status=404, param="turn")
            if seat.over:
                return None
            left = min(until - time.monotonic(), max(0.0, seat.due - self._clock()) + 0.01)
            if time.monotonic() >= until:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left)):  # wait_for may lose a hanging up that comes with a change
                    await changed.wait()

    def claim(self, by: str, id: str | None = None) -> Seat | None:
        """A seat for this person: the one named, else his own that waits, else the one that waits the longest and that
        he did not give back. None: there is none.

        Raises:
            RefusedError: The one named is somebody else's, or over.
        """
        self._look()
        if id is not None:
            seat: Seat | None = self.get(id)
        else:
            waiting = [each for each in self.seats.values() if each.waits]
            own = [each for each in waiting if each.by == by]
            free = [each for each in waiting if not each.by and by not in each.gave_back]
            seat = next(iter([*own, *sorted(free, key=lambda each: each.due - each.seconds)]), None)
        if seat is None:
            return None
        self._refuse_over(seat)
        if seat.by and seat.by != by:
            raise RefusedError(f"{seat.by} has claimed it", status=409, code="claimed")
        self._add({"claimed": seat.id, "by": by, "until": self._clock() + self.claim_seconds})
        return seat

    def release(self, id: str, by: str) -> Seat:
        """Give it back; others may have it, and this person is not given it again.

        Raises:
            RefusedError: He does not hold it.
        """
        seat = self.held(id, by)
        self._add({"released": id, "by": by, "why": "given back", "at": self._clock()})
        return seat

    def say(self, id: str, by: str, message: Mapping[str, Any], *, ended: bool = False) -> Seat:
        """The words that are waited for; the claim goes on.

        Args:
            ended: Whether they are the last: the seat is over.

        Raises:
            RefusedError: He does not hold it, or nothing is waited for.
        """
        seat = self.held(id, by)
        if not seat.waits:
            raise RefusedError("nothing is waited for; the agent has yet to answer", status=409, code="not_asked")
        self._add({"said": id, "by": by, "message": dict(message), "ended": ended, "at": self._clock()})
        return seat

    def close(self, id: str, why: str = "closed") -> None:
        """Nothing more is waited for."""
        if not self.get(id).over:
            self._add({"over": id, "why": why, "at": self._clock()})

    def note(
        self, text: str, *, episode: str, answer: int, by: str, rating: float | None = None, owner: str = ""
    ) -> None:
        """Keep what a person says of an answer.

        Raises:
            RefusedError: The key has too many bytes.
        """
        self.refuse_bytes(owner, text)
        named = {"episode": episode, "answer": answer, "by": by, "rating": rating, "at": self._clock()}
        named |= {"owner": owner} if owner else {}
        self._add({"note": text, **named})

    def refuse_bytes(self, owner: str, value: Any) -> None:
        """Check that a key may store one more value.

        Raises:
            RefusedError: Its open seats and its notes would have more than `max_bytes`.
        """
        stored = sum(seat.size for seat in self.seats.values() if seat.owner == owner and not seat.over)
        stored += self._note_bytes[owner]
        if stored + _size(value) > self.max_bytes:
            raise RefusedError(
                f"the open seats and the notes of this key have {stored} bytes of {self.max_bytes}; close seats",
                status=429,
                code="queue_full",
            )

    def forget(self, episode: str) -> None:
        """Every note of an episode, and every answer of it that was held, is gone, from the disk too."""
        removed = [note for note in self.notes if note["episode"] == episode]
        self.notes = [note for note in self.notes if note["episode"] != episode]
        for note in removed:
            self._note_bytes[note.get("owner", "")] -= _size(note)
        gone = {id for id, seat in self.seats.items() if seat.episode == episode}
        for id in gone:
            self.seats.pop(id).over = "forgotten"
        if self.path is not None and self.path.is_file():
            rows = read_objects(self.path, lambda row: read_event(row, _EVENTS))
            left = [row for row in rows if row.get("episode") != episode and row[next(iter(row))] not in gone]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in left))
        self._wake()

    def held(self, id: str, by: str) -> Seat:
        """A seat that this person has claimed.

        Raises:
            RefusedError: He has not, or it is over.
        """
        seat = self.get(id)
        self._refuse_over(seat)
        if seat.by != by:
            held = f"{seat.by} has claimed it" if seat.by else "claim it first; claims end by themselves after a while"
            raise RefusedError(held, status=409, code="not_claimed")
        return seat

    def _refuse_over(self, seat: Seat) -> None:
        if seat.over:
            raise RefusedError(f"the seat is over: {seat.over}", status=409, code="seat_over")

    def _look(self) -> None:
        """What became late since anybody looked."""
        now = self._clock()
        for seat in list(self.seats.values()):
            if seat.waits and now >= seat.due:
                self._add({"over": seat.id, "why": "deadline", "at": now})
            elif seat.waits and seat.by and now >= seat.until:
                self._add({"released": seat.id, "by": seat.by, "why": "deadline", "at": now})

    def _add(self, row: Mapping[str, Any]) -> None:
        if self.path is not None:
            with saving(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with open(self.path, "ab") as file:
                    kept = row if self._redact is None else redacted_words(row, self._redact)
                    file.write(json.dumps(kept).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
        self._see(row)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _read(self) -> None:
        """Read the journal.

        Raises:
            RunDirectoryError: A line is damaged, or contradicts those before it; the message names file and line.
        """
        if self.path is None or not self.path.is_file():
            return
        cut_incomplete_line(self.path)
        for _ in read_objects(self.path, lambda row: self._see(read_event(row, _EVENTS))):
            pass

    def _see(self, row: Mapping[str, Any]) -> None:
        kind = next(iter(row))
        if kind == "note":
            self.notes.append(row)
            self._note_bytes[row.get("owner", "")] += _size(row)
            return
        if kind == "seat":
            names = ("kind", "owner", "about", "seconds", "at", "episode")
            self.seats[row["seat"]] = Seat(row["seat"], **{name: row[name] for name in names})
            self.seats[row["seat"]].size = _size(row["about"])
            return
        if row[kind] not in self.seats:
            raise ValueError(f'there is no seat "{row[kind][:80]}"')
        seat = self.seats[row[kind]]
        if kind == "asked":
            if row["turn"] != seat.asked:
                raise ValueError(f"turn {row['turn']} does not follow turn {seat.asked - 1}")
            seat.messages += row["messages"]
            seat.size += _size(row["messages"])
            seat.asked, seat.due = row["turn"] + 1, row["at"] + seat.seconds
            if seat.by:  # who speaks here has his time for each turn
                seat.until = row["at"] + self.claim_seconds
        elif kind == "claimed":
            seat.by, seat.until = row["by"], row["until"]
        elif kind == "released":
            seat.by = ""
            seat.gave_back.add(row["by"])
        elif kind == "said":
            seat.said.append({name: row[name] for name in ("by", "message", "ended", "at")})
            seat.messages.append(row["message"])
            seat.size += _size(row["message"])
            seat.over = "said to be over" if row["ended"] else ""
        elif kind == "over":
            seat.over = row["why"]
        if seat.over:
            self._drop_closed(seat.owner)

    def _drop_closed(self, owner: str) -> None:
        """Drop the oldest closed seats of a key from memory, beyond the limits of its open ones."""
        closed = [seat for seat in self.seats.values() if seat.owner == owner and seat.over]
        size = sum(seat.size for seat in closed)
        for number, seat in enumerate(closed[:-1]):
            if len(closed) - number <= _MOST_OF_A_KEY and size <= self.max_bytes:
                break
            size -= seat.size
            del self.seats[seat.id]


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
