"""Which episodes are under way, whose are they, what were they worth, and where do they go when they are over?

Easy to get wrong: an episode that was paid is over, and is written once. A reward that comes twice, too late or for
another's episode is refused and changes nothing.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from whetstone.chat.api.asked import Asked, RefusedError
from whetstone.chat.api.fields import finite, shortened, whole_number
from whetstone.serving.access import Key
from whetstone.serving.recording import Episode, begins_with
from whetstone.trajectory import Task, Trajectory

LONGEST_NAME = 200
"""Signs, of an episode or a task."""
_NAME = re.compile(rf"[ -~]{{0,{LONGEST_NAME}}}")
_REMEMBERED = 4096
"""Number of ids of ended episodes that are kept for each key, to report that they ended."""


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
        judging: Takes it instead, with its task, where it is an episode and not an answer a person replaced.
        watcher: Told what becomes of each.
        most: Episodes under way at once; where there are more, that of the key with the most of them is over in which
            nobody asked for the longest.
        idle_seconds: After which one nobody asks is over, without a reward if it had none.
        reward_range: Smallest and largest reward that is accepted; None: any finite number.
    """

    def __init__(
        self,
        over: Callable[[Trajectory], None] | None = None,
        *,
        most: int = 4096,
        idle_seconds: float = 3600.0,
        watcher: Watcher | None = None,
        judging: Callable[[Trajectory, Task], None] | None = None,
        reward_range: Sequence[float] | None = None,
    ) -> None:
        self.watcher, self.judging = watcher, judging
        self._over, self._most, self._idle, self.reward_range = over, most, idle_seconds, reward_range
        self._open: OrderedDict[tuple[str, str], Episode] = OrderedDict()
        """By name of the key and id: two keys can use the same id."""
        self._ended: dict[str, OrderedDict[str, None]] = {}
        """By name of the key, ids of its last ended episodes."""
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
            episode = self._find(key, named) or self._begun(named, key, task)
        else:
            episode = self._known(key, asked) or self._begun(uuid.uuid4().hex, key, task)
        episode.asked = time.monotonic()
        episode.seed = seed if seed is not None else episode.seed
        self._open.move_to_end((episode.owner, episode.id))
        return episode

    def named(self, key: Key, id: str) -> Episode:
        """One under way, or a new one of this name.

        Raises:
            RefusedError: It is over, or another's.
        """
        return self._find(key, id) or self._begun(id, key, "")

    def opened(self, key: Key, said: Mapping[str, Any]) -> Episode:
        """A new one, before anything is said in it: `{"id": …, "task": …, "seed": …}`, each of which may be left out.

        Raises:
            RefusedError: It is there already, or over; or something in it is not as it has to be.
        """
        if unknown := sorted(set(said) - {"id", "task", "seed"}):
            raise RefusedError(f"{unknown[0]}: not known; there are id, task, seed", param=unknown[0])
        id, task, problem = said.get("id"), said.get("task") or "", None
        if isinstance(task, Mapping):
            if self.judging is None:
                raise RefusedError(
                    "task: nobody judges here (whetstone serve --judge); its name is enough", param="task"
                )
            problem = _problem(task)
            task = problem.id
        id = checked_name("id", id, of_episode=True) if id else uuid.uuid4().hex
        task, seed = checked_name("task", task), seed_of(said.get("seed"), "seed")
        self._reap()
        if self._find(key, id) is not None:
            raise RefusedError(f'there is an episode "{id}" already', status=409, code="episode_exists", param="id")
        episode = self._begun(id, key, task)
        episode.problem, episode.seed = problem, seed
        return episode

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
        episode = self._find(key, id)
        if episode is None:
            raise _unknown(id)
        return episode

    def reward(self, key: Key, id: str, said: Mapping[str, Any]) -> Episode:
        """Pay an episode: `{"reward": 1.0}` ends it; `{"turn": 0, "reward": 0.5}` pays an answer, and it goes on;
        `{"reward": 1.0, "turns": {"0": 0.5}}` does both; `{"final": true}` ends it unpaid.

        Raises:
            RefusedError: It is over, unknown or another's, or the numbers are none.
        """
        episode = self.get(key, id)
        if not key.may("reward") and set(said) != {"final"}:
            raise RefusedError(
                "this key may not pay episodes: that takes the role reward or admin", status=403, code="forbidden"
            )
        final = said.get("final")
        if final is not None and not isinstance(final, bool):
            raise RefusedError(f"final: true or false, got {shortened(final)}", param="final")
        if not episode.said:
            if final and set(said) == {"final"}:
                self.end(episode)
                return episode
            raise RefusedError(f'nothing was said in the episode "{id[:80]}" yet', status=409, code="episode_empty")
        reward, turn_rewards = _parse_rewards(said, episode, self.checked_reward)
        episode.turn_rewards |= turn_rewards
        if reward is not None:
            episode.reward = reward
        if final or (final is None and reward is not None):
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
            RefusedError: It was learned from already, or the reward is outside of the range.
        """
        rating = self.checked_reward(rating, "rating")
        if self.watcher is not None:
            self.watcher.rated(episode, number, rating, note, by)
        episode.turn_rewards[number] = rating

    def checked_reward(self, value: Any, where: str) -> float:
        """Return a reward that may be stored.

        Raises:
            RefusedError: It is not a finite number, or outside of `reward_range`.
        """
        number = finite(value, where)
        low, high = self.reward_range or (number, number)
        if not low <= number <= high:
            allowed = f"{low:g} to {high:g} (live.reward_range)"
            raise RefusedError(f"{where}: a reward is from {allowed}, got {number:g}", param=where)
        return number

    def end(self, episode: Episode) -> None:
        """It is over; what was said in it is handed on."""
        if episode.closed:
            return
        episode.closed = True
        self._open.pop((episode.owner, episode.id), None)
        ended = self._ended.setdefault(episode.owner, OrderedDict())
        ended[episode.id] = None
        while len(ended) > _REMEMBERED:
            ended.popitem(last=False)
        self._let_go(episode)
        if episode.said and self.watcher is not None:
            self.watcher.ended(episode)
        if not episode.said:
            return
        whole, replaced = episode.trajectory(), list(episode.replaced())
        if self.judging is not None:
            self.judging(whole, episode.problem or Task(whole.task_id, ""))
        else:
            replaced.insert(0, whole)
        if self._over is not None:
            for trajectory in replaced:
                self._over(trajectory)

    def delete(self, key: Key, id: str) -> None:
        """Forget an episode under way; it is handed to nobody."""
        episode = self.get(key, id)
        if self.watcher is not None:
            self.watcher.forget(episode.record_id)
        episode.said.clear()
        self.end(episode)

    def close(self) -> None:
        """All are over."""
        for episode in self:
            self.end(episode)

    def _begun(self, id: str, key: Key, task: str) -> Episode:
        if len(self._open) >= self._most:
            owners = Counter(each.owner for each in self._open.values())
            owners[key.name] += 1  # nobody ends another's with more of his own
            fullest = max(owners, key=lambda owner: owners[owner])
            self.end(next(each for each in self._open.values() if each.owner == fullest))
        episode = self._open[key.name, id] = Episode(id, task, key.name, asked=time.monotonic())
        return episode

    def _find(self, key: Key, id: str) -> Episode | None:
        """Return the open episode of this id that a key may use: its own, or for an administrator any.

        Raises:
            RefusedError: It ended.
        """
        if (key.name, id) in self._open:
            return self._open[key.name, id]
        if id in self._ended.get(key.name, ()):
            raise _over(id)
        if key.may("admin"):
            for episode in self._open.values():
                if episode.id == id:
                    return episode
            if any(id in ended for ended in self._ended.values()):
                raise _over(id)
        return None

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


def checked_name(param: str, given: Any, *, of_episode: bool = False) -> str:
    """The name of an episode, or of a task.

    Raises:
        RefusedError: It cannot be one.
    """
    if not isinstance(given, str) or not _NAME.fullmatch(given) or (of_episode and "/" in given):
        raise RefusedError(
            f"{param}: names have up to {LONGEST_NAME} printable signs of ASCII, those of episodes no stroke",
            param=param,
        )
    return given


def seed_of(given: Any, param: str) -> int | None:
    """The seed of an episode, as a number or as digits; None: it has none.

    Raises:
        RefusedError: It is none.
    """
    return None if given is None or given == "" else whole_number(given, param)


def _problem(given: Mapping[str, Any]) -> Task:
    """A task that is to be judged."""
    if unknown := sorted(set(given) - {"id", "prompt", "private"}):
        raise RefusedError(f"task.{unknown[0]}: not known; there are id, prompt, private", param="task")
    id, prompt, private = given.get("id", ""), given.get("prompt", ""), given.get("private", {})
    if not isinstance(prompt, str) or not isinstance(private, Mapping):
        raise RefusedError("task: prompt is a text, private an object", param="task")
    return Task(checked_name("task.id", id), prompt, private)


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


def _parse_rewards(
    body: Mapping[str, Any], episode: Episode, check: Callable[[Any, str], float]
) -> tuple[float | None, dict[int, float]]:
    """Return the reward of an episode and the rewards of its answers by number, from the body of a request.

    Args:
        check: Returns a reward that may be stored; see `Episodes.checked_reward`.

    Raises:
        RefusedError: If a key is unknown, a value is not a number, or an answer is named twice.
    """
    if unknown := sorted(set(body) - {"reward", "turn", "turns", "final"}):
        raise RefusedError(f"{unknown[0]}: not known; there are reward, turn, turns, final", param=unknown[0])
    by_answer = body.get("turns") or {}
    if not isinstance(by_answer, Mapping):
        raise RefusedError("turns: an object of answer numbers and rewards", param="turns")
    turn_rewards = {_turn(turn, episode): check(value, "turns") for turn, value in by_answer.items()}
    num_named = len(by_answer)
    reward = check(body["reward"], "reward") if body.get("reward") is not None else None
    if body.get("turn") is not None:
        if reward is None:
            raise RefusedError("reward: a number is asked for", param="reward")
        turn_rewards[_turn(body["turn"], episode)], reward = reward, None
        num_named += 1
    if len(turn_rewards) < num_named:
        raise RefusedError("turns: names an answer twice", param="turns")
    return reward, turn_rewards


def _turn(given: Any, episode: Episode) -> int:
    turn = whole_number(given, "turn")
    if turn >= len(episode.said):
        raise RefusedError(f"turn {turn}: the episode has {len(episode.said)} answers, from 0", param="turn")
    return turn
