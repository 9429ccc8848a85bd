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
from whetstone.serving.human_in_the_loop.seat_journal import HumanSeat, SeatJournal, json_size

KINDS = ("user", "policy")
"""Roles that a person may take: the user in a test of an agent, or the policy in a watched episode."""
_MOST = 10_000
_MOST_OF_A_KEY = 1_000
"""Maximum open seats of a key, and number of its closed seats that are kept in memory."""


class PeopleQueue:
    """Queue of seats that wait for people, with the notes that people write on answers.

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
    def seats(self) -> dict[str, HumanSeat]:
        """Return the seats by id; the oldest closed seats are no longer in memory."""
        return self._journal.seats

    @property
    def notes(self) -> list[Mapping[str, Any]]:
        """Return the notes that people wrote on answers, in order."""
        return self._journal.notes

    def open_seat(
        self, *, about: str, seconds: float, kind: str = "user", owner: str = "", episode: str = ""
    ) -> HumanSeat:
        """Open a seat, whose messages are requested with `request_message`.

        Args:
            about: Instruction for the person, such as the goal of the user.
            seconds: Time that each turn waits for its message.
            kind: Role of the person, one of `KINDS`.
            owner: Name of the API key that opens the seat.
            episode: Episode of the seat; empty for a test of an agent.

        Raises:
            RefusedError: There are too many seats, or the seats and notes of the key have too many bytes.
        """
        self._apply_deadlines()
        if kind == "user":
            self.refuse_bytes(owner, about)
            if sum(seat.owner == owner and not seat.over for seat in self.seats.values()) >= _MOST_OF_A_KEY:
                raise RefusedError(
                    f"this key has {_MOST_OF_A_KEY} open seats, the maximum; close one first",
                    status=429,
                    code="queue_full",
                )
        if sum(not seat.over for seat in self.seats.values()) >= _MOST:
            raise RefusedError(
                f"the queue is full ({_MOST} open seats); close seats or try again later", status=429, code="queue_full"
            )
        id = uuid.uuid4().hex
        named = {"kind": kind, "owner": owner, "about": about, "seconds": seconds, "episode": episode}
        self._journal.add({"seat": id, **named, "at": self._clock()})
        return self.seats[id]

    def get(self, id: str) -> HumanSeat:
        """Return a seat by its id, open or closed.

        Raises:
            RefusedError: The seat does not exist.
        """
        self._apply_deadlines()
        if id not in self.seats:
            raise RefusedError(f'there is no seat "{id[:80]}"', status=404, code="not_found")
        return self.seats[id]

    def open_seats(self) -> list[HumanSeat]:
        """Return open seats, the longest waiting first."""
        self._apply_deadlines()
        return sorted(
            (seat for seat in self.seats.values() if not seat.over), key=lambda seat: (not seat.waits, seat.due)
        )

    def request_message(self, id: str, turn: int, messages: Sequence[Mapping[str, Any]]) -> HumanSeat:
        """Request the message of the next turn of a seat; a repeated request has no effect.

        Args:
            id: Id of the seat.
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
                f"turn {turn}: the next turn of this seat is {seat.num_requested}",
                status=409,
                param="turn",
                code="wrong_turn",
            )
        if seat.kind == "user":
            self.refuse_bytes(seat.owner, list(messages))
        self._journal.add({"asked": id, "turn": turn, "messages": list(messages), "at": self._clock()})
        return seat

    async def wait_for_message(self, id: str, turn: int, *, wait: float = 0.0) -> Mapping[str, Any] | None:
        """Return the message of a turn, waiting up to `wait` seconds for it.

        Returns:
            `{"by", "message", "ended", "at"}`; None if no person has answered yet, or the seat is closed.

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

    def claim_seat(self, by: str, id: str | None = None) -> HumanSeat | None:
        """Claim a seat for a person.

        Args:
            by: Name of the person.
            id: Id of the seat. None: the seat that the person has claimed already if a message is requested there,
                else the seat that has waited longest and that the person did not release.

        Returns:
            The claimed seat; None if no seat is waiting.

        Raises:
            RefusedError: The named seat belongs to another person or is closed.
        """
        self._apply_deadlines()
        if id is not None:
            seat: HumanSeat | None = self.get(id)
        else:
            waiting = [each for each in self.seats.values() if each.waits]
            own = [each for each in waiting if each.by == by]
            free = [each for each in waiting if not each.by and by not in each.gave_back]
            seat = next(iter([*own, *sorted(free, key=lambda each: each.due - each.seconds)]), None)
        if seat is None:
            return None
        self._refuse_over(seat)
        if seat.by and seat.by != by:
            raise RefusedError(f"{seat.by} has claimed this seat; claim another one", status=409, code="claimed")
        self._journal.add({"claimed": seat.id, "by": by, "until": self._clock() + self.claim_seconds})
        return seat

    def release_seat(self, id: str, by: str) -> HumanSeat:
        """Release a claimed seat for other people; the same person does not get it again.

        Raises:
            RefusedError: The person has not claimed the seat.
        """
        seat = self.get_claimed(id, by)
        self._journal.add({"released": id, "by": by, "why": "given back", "at": self._clock()})
        return seat

    def store_message(self, id: str, by: str, message: Mapping[str, Any], *, ended: bool = False) -> HumanSeat:
        """Store a person's message for the requested turn. The person keeps the seat.

        Args:
            id: Id of the seat.
            by: Name of the person, who has claimed the seat.
            message: Message in the OpenAI format.
            ended: Whether this is the last message, so that the seat is closed.

        Raises:
            RefusedError: The person has not claimed the seat, or no message is requested.
        """
        seat = self.get_claimed(id, by)
        if not seat.waits:
            raise RefusedError("no message is requested; the agent has not answered yet", status=409, code="not_asked")
        self._journal.add({"said": id, "by": by, "message": dict(message), "ended": ended, "at": self._clock()})
        return seat

    def close(self, id: str, why: str = "closed") -> None:
        """Close a seat; `why` is reported to later requests. A closed seat is unchanged."""
        if not self.get(id).over:
            self._journal.add({"over": id, "why": why, "at": self._clock()})

    def store_note(
        self, text: str, *, episode: str, answer: int, by: str, rating: float | None = None, owner: str = ""
    ) -> None:
        """Store a person's note or rating on an answer.

        Args:
            text: The note; can be empty with a rating.
            episode: Id of the episode in records.
            answer: Index of the answer, from 0.
            by: Name of the person.
            rating: Reward of the answer; None without a rating.
            owner: Name of the API key of the person.

        Raises:
            RefusedError: The seats and notes of the key have too many bytes.
        """
        self.refuse_bytes(owner, text)
        named = {"episode": episode, "answer": answer, "by": by, "rating": rating, "at": self._clock()}
        named |= {"owner": owner} if owner else {}
        self._journal.add({"note": text, **named})

    def refuse_bytes(self, owner: str, value: Any) -> None:
        """Check that the open seats and notes of a key have space for one more value.

        Raises:
            RefusedError: The seats and notes would have more than `max_bytes`.
        """
        stored = sum(seat.size for seat in self.seats.values() if seat.owner == owner and not seat.over)
        stored += self._journal.note_bytes[owner]
        if stored + json_size(value) > self.max_bytes:
            raise RefusedError(
                f"the open seats and the notes of this key have {stored} bytes of {self.max_bytes}; close seats",
                status=429,
                code="queue_full",
            )

    def forget_episode(self, episode: str) -> None:
        """Delete all notes on an episode and all seats of the episode, in memory and in the journal."""
        self._journal.forget_episode(episode)

    def get_claimed(self, id: str, by: str) -> HumanSeat:
        """Return a seat after checking that a person has claimed it.

        Raises:
            RefusedError: The person has not claimed the seat, or the seat is closed.
        """
        seat = self.get(id)
        self._refuse_over(seat)
        if seat.by != by:
            problem = (
                f"{seat.by} has claimed this seat"
                if seat.by
                else "no person has claimed this seat; claim it first (claims expire)"
            )
            raise RefusedError(problem, status=409, code="not_claimed")
        return seat

    def _refuse_over(self, seat: HumanSeat) -> None:
        if seat.over:
            raise RefusedError(f"the seat is over: {seat.over}", status=409, code="seat_over")

    def _apply_deadlines(self) -> None:
        """Release claims and close seats whose deadlines have passed since the last call."""
        now = self._clock()
        for seat in list(self.seats.values()):
            if seat.waits and now >= seat.due:
                self._journal.add({"over": seat.id, "why": "deadline", "at": now})
            elif seat.waits and seat.by and now >= seat.until:
                self._journal.add({"released": seat.id, "by": seat.by, "why": "deadline", "at": now})
