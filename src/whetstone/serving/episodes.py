"""Open episodes of a server: their keys, their rewards, and the trajectories that they become.

Note:
    An episode with a final reward ends and is written once. A reward that is repeated, late or for another key's
    episode is rejected and changes nothing.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from whetstone.chat.api.request_fields import parse_finite, truncate_value, whole_number
from whetstone.chat.api.requests import CompletionRequest, RefusedError
from whetstone.serving.api_keys import Key
from whetstone.serving.conversation_matching import ServerEpisode, conversation_digest
from whetstone.trajectory import Task, Trajectory

LONGEST_NAME = 200
"""Maximum number of characters of an episode's or a task's name."""
_NAME = re.compile(rf"[ -~]{{0,{LONGEST_NAME}}}")
_MAX_ENDED = 4096
"""Number of ids of ended episodes that are kept for each key, to report that they ended."""


class Watcher(Protocol):
    """Interface of callbacks for events of served episodes; `OnlineLearner` implements it."""

    async def on_answer(self, episode: ServerEpisode) -> None:
        """Receive a new answer, `episode.answers[-1]`, with the messages after the previous answer."""
        ...

    def on_end(self, episode: ServerEpisode) -> None:
        """Receive an episode that has ended, with its rewards."""
        ...

    def on_intervention(self, episode: ServerEpisode, number: int) -> None:
        """Receive a human intervention: a person's message has replaced answer `number`."""
        ...

    def on_rating(self, episode: ServerEpisode, number: int, rating: float, note: str, by: str) -> None:
        """Receive a person's rating of an answer.

        Args:
            episode: Episode of the answer.
            number: Index of the answer, from 0.
            rating: Reward of the answer.
            note: What would have helped; can be empty.
            by: Name of the person.

        Raises:
            RefusedError: The answer was used for training already.
        """
        ...

    def forget_episode(self, id: str) -> None:
        """Delete all stored data of an episode.

        Raises:
            RefusedError: The policy was trained on the episode, so it can no longer be deleted.
        """
        ...


class EpisodeRegistry:
    """Registry of the open episodes of a server: finds the episode of each request, and ends episodes.

    Args:
        on_trajectory: Receives each trajectory when its episode ends.
        judging: Receives the trajectories of episodes instead, with their tasks. Replaced answers still go to
            `on_trajectory`.
        watcher: Receives the events of each episode.
        max_open: Maximum number of open episodes. Beyond it, the least recently used episode of the key with the most
            episodes ends.
        idle_seconds: Time after which an episode without requests ends, without a reward if it had none.
        reward_range: Smallest and largest accepted reward; None accepts any finite number.
    """

    def __init__(
        self,
        on_trajectory: Callable[[Trajectory], None] | None = None,
        *,
        max_open: int = 4096,
        idle_seconds: float = 3600.0,
        watcher: Watcher | None = None,
        judging: Callable[[Trajectory, Task], None] | None = None,
        reward_range: Sequence[float] | None = None,
    ) -> None:
        self.watcher, self.judging = watcher, judging
        self._on_trajectory, self._max_open, self._idle, self.reward_range = (
            on_trajectory,
            max_open,
            idle_seconds,
            reward_range,
        )
        self._open: OrderedDict[tuple[str, str], ServerEpisode] = OrderedDict()
        """By name of the key and id: two keys can use the same id."""
        self._ended: dict[str, OrderedDict[str, None]] = {}
        """By name of the key, ids of its last ended episodes."""
        self._last: dict[str, list[ServerEpisode]] = {}
        """By the digest of the conversation up to an answer, the episodes that contain it."""

    def __len__(self) -> int:
        """Return the number of open episodes."""
        return len(self._open)

    def __iter__(self) -> Iterator[ServerEpisode]:
        """Iterate over open episodes, the least recently used first."""
        return iter(list(self._open.values()))

    def find_or_open(
        self, key: Key, request: CompletionRequest, *, name: str = "", task: str = "", seed: int | None = None
    ) -> ServerEpisode:
        """Find the episode of a request, or open a new one.

        A named episode is found by its name. Otherwise the episode is the one that contains the prefix of the
        conversation, or else a new one.

        Args:
            key: Key of the request.
            request: The parsed request.
            name: Id of the episode; empty if the request names none.
            task: Name of the task, for a new episode.
            seed: See `ServerEpisode.seed`.

        Raises:
            RefusedError: The named episode has ended or belongs to another key.
        """
        self._end_idle()
        if name:
            episode = self._find(key, name) or self._open_new(name, key, task)
        else:
            episode = self._find_by_prefix(key, request) or self._open_new(uuid.uuid4().hex, key, task)
        episode.last_request = time.monotonic()
        episode.seed = seed if seed is not None else episode.seed
        self._open.move_to_end((episode.owner, episode.id))
        return episode

    def get_or_open(self, key: Key, id: str) -> ServerEpisode:
        """Return the open episode of this id, or open it.

        Raises:
            RefusedError: The episode has ended or belongs to another key.
        """
        return self._find(key, id) or self._open_new(id, key, "")

    def open_episode(self, key: Key, body: Mapping[str, Any]) -> ServerEpisode:
        """Open an episode before its first request.

        The body is `{"id": …, "task": …, "seed": …}`; all keys are optional.

        Raises:
            RefusedError: The episode exists or has ended, or a field is invalid.
        """
        if unknown := sorted(set(body) - {"id", "task", "seed"}):
            raise RefusedError(f"{unknown[0]}: unknown field; allowed: id, task, seed", param=unknown[0])
        id, task, parsed_task = body.get("id"), body.get("task") or "", None
        if isinstance(task, Mapping):
            if self.judging is None:
                raise RefusedError(
                    "task: this server does not score; send the name, or start it with --judge", param="task"
                )
            parsed_task = _parse_task(task)
            task = parsed_task.id
        id = check_name("id", id, of_episode=True) if id else uuid.uuid4().hex
        task, seed = check_name("task", task), parse_episode_seed(body.get("seed"), "seed")
        self._end_idle()
        if self._find(key, id) is not None:
            raise RefusedError(f'the episode "{id}" exists already', status=409, code="episode_exists", param="id")
        episode = self._open_new(id, key, task)
        episode.problem, episode.seed = parsed_task, seed
        return episode

    def _find_by_prefix(self, key: Key, request: CompletionRequest) -> ServerEpisode | None:
        """Return an episode of the key that contains the prefix of a request, preferably one not continued yet."""
        if request.prompt is not None:
            own = [each for each in reversed(self._open.values()) if each.owner == key.name]
            return next((each for each in own if each.find_prompt_prefix(request.prompt) is not None), None)
        digest = conversation_digest(request.messages, request.tools)
        known = [each for each in self._last.get(digest or "", ()) if not each.closed and each.owner == key.name]
        known.sort(key=lambda each: sum(answer.num_continued for answer in each.answers if answer.digest == digest))
        return known[0] if known else None

    async def register_answer(self, episode: ServerEpisode) -> None:
        """Register a new answer, so that later requests are matched to it, and pass it to the watcher."""
        self._last.setdefault(episode.answers[-1].digest, []).append(episode)
        if self.watcher is not None:
            await self.watcher.on_answer(episode)

    def get(self, key: Key, id: str) -> ServerEpisode:
        """Return an open episode by its id.

        Raises:
            RefusedError: The episode has ended, is unknown, or belongs to another key.
        """
        episode = self._find(key, id)
        if episode is None:
            raise _unknown_error(id)
        return episode

    def set_reward(self, key: Key, id: str, body: Mapping[str, Any]) -> ServerEpisode:
        """Store the rewards in a request body, and end the episode if they are final.

        `{"reward": 1.0}` ends the episode; `{"turn": 0, "reward": 0.5}` rewards an answer only; `{"reward": 1.0,
        "turns": {"0": 0.5}}` does both; `{"final": true}` ends it without a reward.

        Raises:
            RefusedError: The episode has ended, is unknown or belongs to another key, or a value is invalid.
        """
        episode = self.get(key, id)
        if not key.has_role("reward") and set(body) != {"final"}:
            raise RefusedError(
                "this key may not reward episodes; the role reward or admin is required", status=403, code="forbidden"
            )
        final = body.get("final")
        if final is not None and not isinstance(final, bool):
            raise RefusedError(f"final: must be true or false, got {truncate_value(final)}", param="final")
        if not episode.answers:
            if final and set(body) == {"final"}:
                self.end(episode)
                return episode
            raise RefusedError(f'the episode "{id[:80]}" has no answers yet', status=409, code="episode_empty")
        reward, turn_rewards = _parse_rewards(body, episode, self.check_reward)
        episode.turn_rewards |= turn_rewards
        if reward is not None:
            episode.reward = reward
        if final or (final is None and reward is not None):
            self.end(episode)
        return episode

    def register_intervention(self, episode: ServerEpisode, number: int) -> None:
        """Register a person's message that replaces an answer, and pass it to the watcher.

        Later requests that continue from the person's message are matched to this episode.
        """
        person = episode.answers[number].replaced
        assert person is not None
        self._last.setdefault(person.digest, []).append(episode)
        if self.watcher is not None:
            self.watcher.on_intervention(episode, number)

    def register_rating(self, episode: ServerEpisode, number: int, rating: float, note: str, by: str) -> None:
        """Store a person's rating as the reward of an answer; it overrides other rewards.

        Raises:
            RefusedError: The answer was used for training already, or the reward is outside of the range.
        """
        rating = self.check_reward(rating, "rating")
        if self.watcher is not None:
            self.watcher.on_rating(episode, number, rating, note, by)
        episode.turn_rewards[number] = rating

    def check_reward(self, value: Any, where: str) -> float:
        """Return the reward in a request body as a float.

        Args:
            value: Value of the field.
            where: Name of the field, for the error.

        Raises:
            RefusedError: The value is not a finite number, or outside of `reward_range`.
        """
        number = parse_finite(value, where)
        low, high = self.reward_range or (number, number)
        if not low <= number <= high:
            allowed = f"{low:g} to {high:g} (live.reward_range)"
            raise RefusedError(f"{where}: a reward must be from {allowed}, got {number:g}", param=where)
        return number

    def end(self, episode: ServerEpisode) -> None:
        """End an episode, and pass its trajectory to `on_trajectory` or `judging`."""
        if episode.closed:
            return
        episode.closed = True
        self._open.pop((episode.owner, episode.id), None)
        ended = self._ended.setdefault(episode.owner, OrderedDict())
        ended[episode.id] = None
        while len(ended) > _MAX_ENDED:
            ended.popitem(last=False)
        self._forget_digests(episode)
        if episode.answers and self.watcher is not None:
            self.watcher.on_end(episode)
        if not episode.answers:
            return
        full, replaced = episode.build_trajectory(), list(episode.replaced_trajectories())
        if self.judging is not None:
            self.judging(full, episode.problem or Task(full.task_id, ""))
        else:
            replaced.insert(0, full)
        if self._on_trajectory is not None:
            for trajectory in replaced:
                self._on_trajectory(trajectory)

    def delete(self, key: Key, id: str) -> None:
        """Delete an open episode; its trajectory is discarded."""
        episode = self.get(key, id)
        if self.watcher is not None:
            self.watcher.forget_episode(episode.record_id)
        episode.answers.clear()
        self.end(episode)

    def close(self) -> None:
        """End all open episodes, when the server stops."""
        for episode in self:
            self.end(episode)

    def _open_new(self, id: str, key: Key, task: str) -> ServerEpisode:
        if len(self._open) >= self._max_open:
            owners = Counter(each.owner for each in self._open.values())
            owners[key.name] += 1  # a key with more episodes does not end those of another
            fullest = max(owners, key=lambda owner: owners[owner])
            self.end(next(each for each in self._open.values() if each.owner == fullest))
        episode = self._open[key.name, id] = ServerEpisode(id, task, key.name, last_request=time.monotonic())
        return episode

    def _find(self, key: Key, id: str) -> ServerEpisode | None:
        """Return the open episode of this id that a key may use: its own, or for an administrator any.

        Raises:
            RefusedError: The episode has ended.
        """
        if (key.name, id) in self._open:
            return self._open[key.name, id]
        if id in self._ended.get(key.name, ()):
            raise _ended_error(id)
        if key.has_role("admin"):
            for episode in self._open.values():
                if episode.id == id:
                    return episode
            if any(id in ended for ended in self._ended.values()):
                raise _ended_error(id)
        return None

    def _forget_digests(self, episode: ServerEpisode) -> None:
        for answer in episode.answers:
            remaining = [each for each in self._last.get(answer.digest, ()) if each is not episode]
            if remaining:
                self._last[answer.digest] = remaining
            else:
                self._last.pop(answer.digest, None)

    def _end_idle(self) -> None:
        late = time.monotonic() - self._idle
        while self._open and (first := next(iter(self._open.values()))).last_request < late:
            self.end(first)


def check_name(param: str, value: Any, *, of_episode: bool = False) -> str:
    """Check the name of an episode or task in a request, and return it.

    Args:
        param: Name of the field or header, for the error.
        value: Value of the field.
        of_episode: Whether the name is the id of an episode, which must not contain a slash.

    Raises:
        RefusedError: The value is not a text of printable ASCII characters, or too long.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value) or (of_episode and "/" in value):
        raise RefusedError(
            f"{param}: names have up to {LONGEST_NAME} printable ASCII characters; ids of episodes have no slash",
            param=param,
        )
    return value


def parse_episode_seed(value: Any, param: str) -> int | None:
    """Parse the seed of an episode, a number or digits; None if there is none.

    Raises:
        RefusedError: The value is not a whole number.
    """
    return None if value is None or value == "" else whole_number(value, param)


def _parse_task(value: Mapping[str, Any]) -> Task:
    """Parse the object `task` of a request into a task that a reward function can score."""
    if unknown := sorted(set(value) - {"id", "prompt", "private"}):
        raise RefusedError(f"task.{unknown[0]}: unknown field; allowed: id, prompt, private", param="task")
    id, prompt, private = value.get("id", ""), value.get("prompt", ""), value.get("private", {})
    if not isinstance(prompt, str) or not isinstance(private, Mapping):
        raise RefusedError("task: prompt must be a text and private an object", param="task")
    return Task(check_name("task.id", id), prompt, private)


def _ended_error(id: str) -> RefusedError:
    return RefusedError(
        f'the episode "{id[:80]}" has ended: it was rewarded (final: false keeps it open), deleted, or idle for '
        "too long; start another",
        status=409,
        code="episode_over",
    )


def _unknown_error(id: str) -> RefusedError:
    hint = "each response names its episode in the header x-whetstone-episode"
    return RefusedError(f'there is no episode "{id[:80]}"; {hint}', status=404, code="not_found")


def _parse_rewards(
    body: Mapping[str, Any], episode: ServerEpisode, check: Callable[[Any, str], float]
) -> tuple[float | None, dict[int, float]]:
    """Return the reward of an episode and the rewards of its answers by number, from the body of a request.

    Args:
        check: Returns a reward that may be stored; see `EpisodeRegistry.check_reward`.

    Raises:
        RefusedError: If a key is unknown, a value is not a number, or an answer is named twice.
    """
    if unknown := sorted(set(body) - {"reward", "turn", "turns", "final"}):
        raise RefusedError(f"{unknown[0]}: unknown field; allowed: reward, turn, turns, final", param=unknown[0])
    by_answer = body.get("turns") or {}
    if not isinstance(by_answer, Mapping):
        raise RefusedError("turns: must be an object of answer indices and rewards", param="turns")
    turn_rewards = {_parse_turn(turn, episode): check(value, "turns") for turn, value in by_answer.items()}
    num_named = len(by_answer)
    reward = check(body["reward"], "reward") if body.get("reward") is not None else None
    if body.get("turn") is not None:
        if reward is None:
            raise RefusedError("reward: must be a number", param="reward")
        turn_rewards[_parse_turn(body["turn"], episode)], reward = reward, None
        num_named += 1
    if len(turn_rewards) < num_named:
        raise RefusedError("turns: names an answer twice", param="turns")
    return reward, turn_rewards


def _parse_turn(value: Any, episode: ServerEpisode) -> int:
    turn = whole_number(value, "turn")
    if turn >= len(episode.answers):
        raise RefusedError(f"turn {turn}: the episode has {len(episode.answers)} answers, counted from 0", param="turn")
    return turn
