"""Which episodes are under way, whose are they, what were they worth, and where do they go when they are over?

Easy to get wrong: an episode that was paid is over, and is written once. A reward that comes twice, too late or for
another's episode is refused and changes nothing.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from whetstone.chat.api.asked import Asked, RefusedError
from whetstone.serving.access import Key
from whetstone.serving.recording import Episode, begins_with
from whetstone.trajectory import Trajectory

_REMEMBERED = 4096
"""Ids of episodes that are over, to say so to whoever asks for them."""


class Watcher(Protocol):
    """Is told what becomes of episodes, with all that was drawn in them."""

    async def went_on(self, episode: Episode) -> None:
        """An answer was added, behind what followed the one before it."""
        ...

    def ended(self, episode: Episode) -> None:
        """One is over."""
        ...

    def taken_over(self, episode: Episode, number: int) -> None:
        """A person said something in the place of this answer."""
        ...

    def rated(self, episode: Episode, number: int, rating: float, note: str, by: str) -> None:
        """A person says what this answer was worth, and in words what would have helped.

        Raises:
            RefusedError: Something was made of it already.
        """
        ...

    def forget(self, id: str) -> None:
        """One is to be forgotten.

        Raises:
            RefusedError: It cannot be any more.
        """
        ...


class Episodes:
    """Those of a server.

    Args:
        over: Takes each trajectory when its episode is over.
        watcher: Told what becomes of each.
        most: Episodes under way at once; the one nobody asked for the longest is over when there are more.
        idle_seconds: After which one nobody asks is over, without a reward if it had none.
    """

    def __init__(
        self,
        over: Callable[[Trajectory], None] | None = None,
        *,
        most: int = 4096,
        idle_seconds: float = 3600.0,
        watcher: Watcher | None = None,
    ) -> None:
        self.watcher = watcher
        self._over, self._most, self._idle = over, most, idle_seconds
        self._open: OrderedDict[str, Episode] = OrderedDict()
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._last: dict[str, list[Episode]] = {}
        """By the digest of what was said up to an answer, the episodes it was said in."""

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._open)

    def __iter__(self) -> Iterator[Episode]:
        """Those under way, the one asked last at the end."""
        return iter(list(self._open.values()))

    def of(self, key: Key, asked: Asked, *, named: str = "", task: str = "", seed: int | None = None) -> Episode:
        """The episode a request belongs to: the one it names, else one in which its beginning was said, else a new one.

        Args:
            seed: See `Episode.seed`.

        Raises:
            RefusedError: It names one that is over, or another's.
        """
        self._reap()
        if named:
            if self._ended.get(named) is not None:
                raise _over(named)
            episode = self._open.get(named) or self._begun(named, key, task)
            self._own(key, episode)
        else:
            episode = self._known(key, asked) or self._begun(uuid.uuid4().hex, key, task)
        episode.asked = time.monotonic()
        episode.seed = seed if seed is not None else episode.seed
        self._open.move_to_end(episode.id)
        return episode

    def named(self, key: Key, id: str) -> Episode:
        """One under way, or a new one of this name.

        Raises:
            RefusedError: It is over, or another's.
        """
        if id in self._open or self._ended.get(id) is not None:
            return self.get(key, id)
        return self._begun(id, key, "")

    def _known(self, key: Key, asked: Asked) -> Episode | None:
        """One of the key's in which the beginning of what is asked was said, rather one nobody has gone on from."""
        if asked.prompt is not None:
            own = [each for each in reversed(self._open.values()) if each.owner == key.name]
            return next((each for each in own if each.prompted_before(asked.prompt) is not None), None)
        digest = begins_with(asked.messages, asked.tools)
        known = [each for each in self._last.get(digest or "", ()) if not each.closed and each.owner == key.name]
        known.sort(key=lambda each: sum(said.followed for said in each.said if said.digest == digest))
        return known[0] if known else None

    async def heard(self, episode: Episode) -> None:
        """An answer was added to it."""
        self._last.setdefault(episode.said[-1].digest, []).append(episode)
        if self.watcher is not None:
            await self.watcher.went_on(episode)

    def get(self, key: Key, id: str) -> Episode:
        """One that is under way.

        Raises:
            RefusedError: It is over, unknown, or another's.
        """
        if self._ended.get(id) is not None:
            raise _over(id)
        episode = self._open.get(id)
        if episode is None:
            raise _unknown(id)
        self._own(key, episode)
        return episode

    def reward(self, key: Key, id: str, said: Mapping[str, Any]) -> Episode:
        """Pay an episode: `{"reward": 1.0}` ends it; `{"turn": 0, "reward": 0.5}` pays an answer, and it goes on;
        `{"reward": 1.0, "turns": {"0": 0.5}}` does both.

        Raises:
            RefusedError: It is over, unknown or another's, or the numbers are none.
        """
        episode = self.get(key, id)
        if not key.may("reward"):
            raise RefusedError(
                "this key may not pay episodes: that takes the role reward or admin", status=403, code="forbidden"
            )
        if not episode.said:
            raise RefusedError(f'nothing was said in the episode "{id[:80]}" yet', status=409, code="episode_empty")
        if unknown := sorted(set(said) - {"reward", "turn", "turns", "final"}):
            raise RefusedError(f"{unknown[0]}: not known; there are reward, turn, turns, final", param=unknown[0])
        given = said.get("turns") or {}
        if not isinstance(given, Mapping):
            raise RefusedError("turns: an object of answer numbers and rewards", param="turns")
        turns = {_turn(number, episode): _number(worth, "turns") for number, worth in given.items()}
        worth = _number(said.get("reward"), "reward") if said.get("reward") is not None else None
        if said.get("turn") is not None:
            if worth is None:
                raise RefusedError("reward: a number is asked for", param="reward")
            turns[_turn(said["turn"], episode)] = worth
            worth = None
        episode.turn_rewards |= turns
        if worth is not None:
            episode.reward = worth
        if worth is not None and said.get("final", True):
            self.end(episode)
        return episode

    def taken_over(self, episode: Episode, number: int) -> None:
        """A person said something in the place of an answer: who goes on from his words is in this episode."""
        person = episode.said[number].replaced
        assert person is not None
        self._last.setdefault(person.digest, []).append(episode)
        if self.watcher is not None:
            self.watcher.taken_over(episode, number)

    def rated(self, episode: Episode, number: int, rating: float, note: str, by: str) -> None:
        """A person says what an answer was worth: its reward, whatever else is said of it.

        Raises:
            RefusedError: It was learned from already.
        """
        if self.watcher is not None:
            self.watcher.rated(episode, number, rating, note, by)
        episode.turn_rewards[number] = rating

    def end(self, episode: Episode) -> None:
        """It is over; what was said in it is handed on."""
        if episode.closed:
            return
        episode.closed = True
        self._open.pop(episode.id, None)
        self._ended[episode.id] = episode.owner
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        self._let_go(episode)
        if episode.said and self.watcher is not None:
            self.watcher.ended(episode)
        if episode.said and self._over is not None:
            for trajectory in (episode.trajectory(), *episode.replaced()):
                self._over(trajectory)

    def delete(self, key: Key, id: str) -> None:
        """Forget an episode under way; it is handed to nobody."""
        episode = self.get(key, id)
        if self.watcher is not None:
            self.watcher.forget(id)
        episode.said.clear()
        self.end(episode)

    def close(self) -> None:
        """All are over."""
        for episode in self:
            self.end(episode)

    def _begun(self, id: str, key: Key, task: str) -> Episode:
        if len(self._open) >= self._most:
            self.end(next(iter(self._open.values())))
        episode = self._open[id] = Episode(id, task, key.name, asked=time.monotonic())
        return episode

    def _own(self, key: Key, episode: Episode) -> None:
        if episode.owner != key.name and not key.may("admin"):  # as if it were not there
            raise _unknown(episode.id)

    def _let_go(self, episode: Episode) -> None:
        for said in episode.said:
            left = [each for each in self._last.get(said.digest, ()) if each is not episode]
            if left:
                self._last[said.digest] = left
            else:
                self._last.pop(said.digest, None)

    def _reap(self) -> None:
        late = time.monotonic() - self._idle
        while self._open and (first := next(iter(self._open.values()))).asked < late:
            self.end(first)


def _over(id: str) -> RefusedError:
    return RefusedError(
        f'the episode "{id[:80]}" is over: it was paid (final: false leaves one open), deleted, or nobody asked in it '
        "for long; begin another",
        status=409,
        code="episode_over",
    )


def _unknown(id: str) -> RefusedError:
    hint = "each answer names its own in the header x-whetstone-episode"
    return RefusedError(f'there is no episode "{id[:80]}"; {hint}', status=404, code="not_found")


def _turn(number: Any, episode: Episode) -> int:
    try:
        turn = int(number)
    except (TypeError, ValueError):
        turn = -1
    if not 0 <= turn < len(episode.said):
        raise RefusedError(
            f"turn {str(number)[:20]}: the episode has {len(episode.said)} answers, from 0", param="turn"
        )
    return turn


def _number(value: Any, param: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedError(f"{param}: a number is asked for, got {str(value)[:40]}", param=param)
    return float(value)
