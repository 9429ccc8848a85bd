"""Tasks from an environment without tasks: states that curious play reaches, filtered by replay, become goals.

    start → play that prefers rare calls → final state → fewest calls that reach it → gates → a task for `reward: state`

Gates: the state differs from the start, the calls reach it again with other random events, few random players reach it,
and no other task has it.

Source: CuES 2025, for exploration before there are tasks; here goals are states, not a model's wording of the calls.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments import Environment
from whetstone.errors import TaskError
from whetstone.evaluation.environment_checks.play_episode import Policy, play_with_policy, replay_actions
from whetstone.evaluation.environment_checks.random_policy import RandomPolicy
from whetstone.rewards.environment_state.state import state_digest
from whetstone.trajectory import Task

_CANDIDATES = 8
_SHOWN_CHARACTERS = 200


@dataclass(slots=True)
class TaskExplorer:
    """Plays an environment and turns the states that it reaches into tasks.

    Args:
        make: Function that creates the environment. Its verdict must have `state`, plain data.
        max_actions: Maximum number of calls of an exploring episode.
        max_changes: Maximum number of entries in which the state of a task differs from the start.
        random_players: Number of random episodes per task.
        max_random: Maximum fraction of random episodes that reach the state of a task, from 0 to 1.
        seed: Determines all calls.
    """

    make: Callable[[], Environment]
    max_actions: int = 6
    max_changes: int = 8
    random_players: int = 10
    max_random: float = 0.1
    seed: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Number of episodes without a task, by gate: `unchanged`, `known`, `many_changes`, `not_replayable`, `random`."""
    _counts: Counter[str] = field(default_factory=Counter)
    _draw: Random = field(init=False)

    def __post_init__(self) -> None:
        self._draw = Random(self.seed)

    async def explore_tasks(self, start: Task, episodes: int) -> list[Task]:
        """Explore from a start and return the tasks that pass the gates.

        Args:
            start: Task whose private data determines the initial state; its prompt and goal are not used.
            episodes: Number of exploring episodes.

        Returns:
            Tasks with the private data of the start, `digest` (the goal) and `solution` (calls that reach it); the tag
            `difficulty` is the number of calls.

        Raises:
            TaskError: If the verdict of the environment has no `state`.
        """
        initial = await self._reach(start, ())
        known, tasks = {state_digest(initial)}, list[Task]()
        for _ in range(episodes):
            actions, final = await self._play(start, self._choose_rare, self._draw.randint(1, self.max_actions))
            digest = state_digest(final)
            changes = describe_changes(initial, final)
            gate = "unchanged" if digest == state_digest(initial) else "known" if digest in known else ""
            known.add(digest)
            gate = gate or ("many_changes" if len(changes) > self.max_changes else "")
            if not gate and not await self._is_replayable(start, actions, digest):
                gate = "not_replayable"
            if not gate:
                actions = await self._shorten(start, actions, digest)
                if await self._measure_random(start, digest) > self.max_random:
                    gate = "random"
            if gate:
                self.rejected[gate] += 1
                continue
            calls = [{"name": call.name, "arguments": call.arguments} for each in actions for call in each.tool_calls]
            prompt = "Reach this state, and change nothing else:\n" + "\n".join(f"- {each}" for each in changes)
            private = {**start.private, "digest": digest, "solution": calls}
            private.pop("predicates", None)
            tags = {**start.tags, "difficulty": str(len(actions))}
            tasks.append(Task(f"{start.id}/{digest[:12]}", prompt, private, tags))
        return tasks

    def _choose_rare(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]
    ) -> Message:
        """Return the rarest of some random actions with a call."""
        player = RandomPolicy(self._draw.getrandbits(32))
        candidates = [player.choose_action(conversation, tools, admissible) for _ in range(_CANDIDATES)]
        acting = [each for each in candidates if each.tool_calls] or candidates
        chosen = min(acting, key=lambda each: (self._counts[_key(each)], self._counts[_name(each)]))
        self._counts.update({_key(chosen), _name(chosen)})
        return chosen

    async def _play(
        self, start: Task, policy: Policy, count: int, *, seed: int | None = None
    ) -> tuple[tuple[Message, ...], Any]:
        """Play `count` actions; return them and the final state."""
        played = await play_with_policy(
            self.make, start, policy, seed=self.seed if seed is None else seed, max_turns=count
        )
        final = played.trajectory.final
        if "state" not in final:
            raise TaskError("the verdict of the environment has no `state`; return it in verdict(), as plain data")
        return played.actions, final["state"]

    async def _reach(self, start: Task, actions: Sequence[Message], *, seed: int | None = None) -> Any:
        return (await self._play(start, replay_actions(actions), len(actions), seed=seed))[1]

    async def _is_replayable(self, start: Task, actions: Sequence[Message], digest: str) -> bool:
        seeds = (self.seed, self.seed + 1)
        return all([state_digest(await self._reach(start, actions, seed=seed)) == digest for seed in seeds])

    async def _shorten(self, start: Task, actions: tuple[Message, ...], digest: str) -> tuple[Message, ...]:
        """Remove one or two actions at a time as long as the rest reaches the same state."""
        for count in (1, 2, 1):
            for removed in combinations(reversed(actions), count):
                rest = tuple(each for each in actions if not any(each is other for other in removed))
                if len(rest) == len(actions) - count > 0 and state_digest(await self._reach(start, rest)) == digest:
                    actions = rest
        return actions

    async def _measure_random(self, start: Task, digest: str) -> float:
        """Return the fraction of random episodes that reach a state."""
        reached = 0
        for number in range(self.random_players):
            player = RandomPolicy(number)
            _, final = await self._play(start, player.choose_action, self.max_actions)
            reached += state_digest(final) == digest
        return reached / max(1, self.random_players)


def _key(action: Message) -> str:
    return json.dumps([[call.name, call.arguments] for call in action.tool_calls] or action.text)


def _name(action: Message) -> str:
    return action.tool_calls[0].name if action.tool_calls else ""


def describe_changes(before: Any, after: Any, path: str = "") -> list[str]:
    """Return one line per entry of plain data that was changed, added or removed.

    >>> describe_changes({"a": 1, "b": {"c": [2]}}, {"b": {"c": [2, 3]}, "d": "x"})
    ['a is removed', 'b.c.1 is 3', 'd is "x"']
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [*before, *(key for key in after if key not in before)]
        pairs = [(str(key), before.get(key, _Missing), after.get(key, _Missing)) for key in keys]
    elif isinstance(before, list) and isinstance(after, list):
        longest = range(max(len(before), len(after)))
        pairs = [
            (str(k), before[k] if k < len(before) else _Missing, after[k] if k < len(after) else _Missing)
            for k in longest
        ]
    elif after is _Missing:
        return [f"{path} is removed"]
    else:
        text = json.dumps(after, ensure_ascii=False, default=str)
        return [] if before == after else [f"{path or 'the state'} is {text[:_SHOWN_CHARACTERS]}"]
    return [line for key, old, new in pairs for line in describe_changes(old, new, f"{path}.{key}" if path else key)]


class _Missing:
    """Value of an entry that does not exist."""
