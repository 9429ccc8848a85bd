"""Queue of seats that people take in episodes: requests for messages, claims with a deadline, and notes.

    test of an agent, or watched episode → seat → asked → claimed → said → … → over

Note:
    Two people never hold the same seat, and a person does not get a seat again that they gave back. Time passes between
    requests, so every request applies the deadlines first.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from whetstone.chat.api.requests import RefusedError
from whetstone.data.redacting import Redact
from whetstone.serving.human_in_the_loop.seat_journal import Seat, SeatJournal, json_size

KINDS = ("user", "policy")
"""Roles that a person may take: the user in a test of an agent, or the policy in a watched episode."""
_MOST = 10_000
_MOST_OF_A_KEY = 1_000
"""Maximum open seats of a key, and number of its closed seats that are kept in memory."""


class PeopleQueue:
    """The seats of a server and the notes of people.

    Args:
        path: File of the journal; an existing one is resumed. None: nothing is stored.
        redact: Removes sensitive text before it is stored; memory keeps the whole text while the server runs.
        claim_seconds: Time between claiming a seat and its message.
        max_bytes: Maximum size of the open seats and the notes of one key.
        clock: Returns seconds since 1970.
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
        self.claim_seconds, self._clock, self.max_bytes = claim_seconds, clock, max_bytes
        self._journal = SeatJournal(
            path, redact=redact, claim_seconds=claim_seconds, max_closed=_MOST_OF_A_KEY, max_bytes=max_bytes
        )
        for seat in list(self.seats.values()):
            if seat.kind == "policy" and not seat.over:  # its agent was disconnected
                self._journal.add({"over": seat.id, "why": "the server ended", "at": clock()})

    @property
    def seats(self) -> dict[str, Seat]:
        """Return seats by id; the oldest closed ones are dropped."""
        return self._journal.seats

    @property
    def notes(self) -> list[Mapping[str, Any]]:
        """Return notes of people on answers."""
        return self._journal.notes

    def open(self, *, about: str, seconds: float, kind: str = "user", owner: str = "", episode: str = "") -> Seat:
        """Open a seat; messages are requested later.

        Raises:
            RefusedError: There are too many seats, or the key has too many bytes.
        """
        self._apply_deadlines()
        if kind == "user":
            self.refuse_bytes(owner, about)
            if sum(seat.owner == owner and not seat.over for seat in self.seats.values()) >= _MOST_OF_A_KEY:
                raise RefusedError(f"this key has {_MOST_OF_A_KEY} open seats", status=429, code="queue_full")
        if sum(not seat.over for seat in self.seats.values()) >= _MOST:
            raise RefusedError(f"{_MOST} seats are taken", status=429, code="queue_full")
        id = uuid.uuid4().hex
        named = {"kind": kind, "owner": owner, "about": about, "seconds": seconds, "episode": episode}
        self._journal.add({"seat": id, **named, "at": self._clock()})
        return self.seats[id]

    def get(self, id: str) -> Seat:
        """Return a seat.

        Raises:
            RefusedError: It does not exist.
        """
        self._apply_deadlines()
        if id not in self.seats:
            raise RefusedError(f'there is no seat "{id[:80]}"', status=404, code="not_found")
        return self.seats[id]

    def open_seats(self) -> list[Seat]:
        """Return open seats, the longest waiting first."""
        self._apply_deadlines()
        return sorted(
            (seat for seat in self.seats.values() if not seat.over), key=lambda seat: (not seat.waits, seat.due)
        )

    def ask(self, id: str, turn: int, messages: Sequence[Mapping[str, Any]]) -> Seat:
        """Request the message of a turn; a repeated request has no effect.

        Args:
            turn: Number of the turn, from 0.
            messages: Messages since the previous turn.

        Raises:
            RefusedError: Another turn is next, or the seat is closed.
        """
        seat = self.get(id)
        if turn == seat.num_requested - 1:
            return seat
        self._refuse_over(seat)
        if turn != seat.num_requested or seat.waits:
            raise RefusedError(
                f"turn {turn}: the next is {seat.num_requested}", status=409, param="turn", code="wrong_turn"
            )
        if seat.kind == "user":
            self.refuse_bytes(seat.owner, list(messages))
        self._journal.add({"asked": id, "turn": turn, "messages": list(messages), "at": self._clock()})
        return seat

    async def words(self, id: str, turn: int, *, wait: float = 0.0) -> Mapping[str, Any] | None:
        """Return the message of a turn, waiting up to `wait` seconds.

        None: there is none yet, or the seat is closed.

        Raises:
            RefusedError: The seat or the turn does not exist.
        """
        until, seat = time.monotonic() + wait, self.get(id)
        while True:
            changed = self._journal.changed
            self._apply_deadlines()
            if 0 <= turn < len(seat.answers):
                return seat.answers[turn]
            if turn != seat.num_requested - 1:
                raise RefusedError(f"turn {turn}: was not requested", status=404, param="turn")
            if seat.over:
                return None
            left = min(until - time.monotonic(), max(0.0, seat.due - self._clock()) + 0.01)
            if time.monotonic() >= until:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left)):  # wait_for may lose a simultaneous disconnection
                    await changed.wait()

    def claim(self, by: str, id: str | None = None) -> Seat | None:
        """Claim a seat for a person.

        This is the named one, else their own waiting one, else the longest waiting one that they did not release.
        Returns None if no seat is waiting.

        Raises:
            RefusedError: The named seat belongs to another person or is closed.
        """
        self._apply_deadlines()
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
        self._journal.add({"claimed": seat.id, "by": by, "until": self._clock() + self.claim_seconds})
        return seat

    def release(self, id: str, by: str) -> Seat:
        """Release a seat for other people; this person does not get it again.

        Raises:
            RefusedError: The person has not claimed it.
        """
        seat = self.get_claimed(id, by)
        self._journal.add({"released": id, "by": by, "why": "given back", "at": self._clock()})
        return seat

    def say(self, id: str, by: str, message: Mapping[str, Any], *, ended: bool = False) -> Seat:
        """Store the requested message; the claim continues.

        Args:
            ended: Whether it is the last message: the seat is closed.

        Raises:
            RefusedError: The person has not claimed the seat, or no message is requested.
        """
        seat = self.get_claimed(id, by)
        if not seat.waits:
            raise RefusedError("no message is requested; the agent has not answered yet", status=409, code="not_asked")
        self._journal.add({"said": id, "by": by, "message": dict(message), "ended": ended, "at": self._clock()})
        return seat

    def close(self, id: str, why: str = "closed") -> None:
        """Close a seat."""
        if not self.get(id).over:
            self._journal.add({"over": id, "why": why, "at": self._clock()})

    def note(
        self, text: str, *, episode: str, answer: int, by: str, rating: float | None = None, owner: str = ""
    ) -> None:
        """Store a person's note on an answer.

        Raises:
            RefusedError: The key has too many bytes.
        """
        self.refuse_bytes(owner, text)
        named = {"episode": episode, "answer": answer, "by": by, "rating": rating, "at": self._clock()}
        named |= {"owner": owner} if owner else {}
        self._journal.add({"note": text, **named})

    def refuse_bytes(self, owner: str, value: Any) -> None:
        """Check that a key may store one more value.

        Raises:
            RefusedError: Its open seats and its notes would have more than `max_bytes`.
        """
        stored = sum(seat.size for seat in self.seats.values() if seat.owner == owner and not seat.over)
        stored += self._journal.note_bytes[owner]
        if stored + json_size(value) > self.max_bytes:
            raise RefusedError(
                f"the open seats and the notes of this key have {stored} bytes of {self.max_bytes}; close seats",
                status=429,
                code="queue_full",
            )

    def forget(self, episode: str) -> None:
        """Delete all notes on an episode and all seats in it, in the journal as well."""
        self._journal.forget(episode)

    def get_claimed(self, id: str, by: str) -> Seat:
        """Return a seat that this person has claimed.

        Raises:
            RefusedError: The person has not claimed it, or it is closed.
        """
        seat = self.get(id)
        self._refuse_over(seat)
        if seat.by != by:
            problem = f"{seat.by} has claimed it" if seat.by else "claim it first; claims expire"
            raise RefusedError(problem, status=409, code="not_claimed")
        return seat

    def _refuse_over(self, seat: Seat) -> None:
        if seat.over:
            raise RefusedError(f"the seat is over: {seat.over}", status=409, code="seat_over")

    def _apply_deadlines(self) -> None:
        """Apply deadlines that passed since the last call."""
        now = self._clock()
        for seat in list(self.seats.values()):
            if seat.waits and now >= seat.due:
                self._journal.add({"over": seat.id, "why": "deadline", "at": now})
            elif seat.waits and seat.by and now >= seat.until:
                self._journal.add({"released": seat.id, "by": seat.by, "why": "deadline", "at": now})
