"""Difficulty of tasks before training: success of a random policy and of greedy steps on its values.

    prefix of actions → candidate sequences of `lookahead` actions → mean reward of random episodes after each
    → the first action of the best sequence joins the prefix → … → success of the resulting episode

Tasks that are solved by greedy steps on the values of the random policy need little exploration; the smallest
`lookahead` that solves a task is its effective horizon without the costs of sampling.

Note:
    A prefix is replayed with the seed of the episode. In an environment with randomness, greedy steps know its outcome,
    so their success is an upper estimate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TypeVar

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments import Environment
from whetstone.evaluation.environment_checks.play_episode import Policy, play_with_policy
from whetstone.evaluation.environment_checks.random_policy import RandomPolicy
from whetstone.rewards import Reward, score_trajectory
from whetstone.seeding import derive_seed
from whetstone.trajectory import Task, Trajectory

ActionT = TypeVar("ActionT")


async def plan_greedily(
    actions: Callable[[tuple[ActionT, ...]], Awaitable[Sequence[ActionT]]],
    value: Callable[[tuple[ActionT, ...]], Awaitable[float]],
    *,
    lookahead: int = 1,
) -> tuple[ActionT, ...]:
    """Choose the actions of an episode by greedy lookahead over the values of a random policy (GORP).

        a_t = first action of argmax over sequences of `lookahead` actions of the mean return of random actions after it

    Of equal values the first sequence counts.

    Args:
        actions: Function from a prefix of actions to the next candidates; empty if the episode has ended.
        value: Function from a prefix to the mean return of episodes that continue it at random.
        lookahead: Number of actions that are enumerated before the random ones.

    Source: Laidlaw et al. 2023, arXiv:2304.09853, algorithm 1; 2024, arXiv:2312.08369, for stochastic environments.
    """
    prefix: tuple[ActionT, ...] = ()
    while options := await actions(prefix):
        sequences = [(*prefix, option) for option in options]
        for _ in range(lookahead - 1):
            longer = [[(*each, option) for option in await actions(each)] or [each] for each in sequences]
            sequences = [each for of_one in longer for each in of_one]
        values = [await value(each) for each in sequences]
        prefix = (*prefix, sequences[values.index(max(values))][len(prefix)])
    return prefix


@dataclass(frozen=True, slots=True)
class TaskDifficulty:
    """Success on one task before training."""

    task: str
    """Id of the task."""
    kind: str
    """Tag `kind` of the task; empty without one."""
    random: float
    """Success rate of the random policy."""
    greedy: bool
    """Whether greedy steps on the values of the random policy solve the task."""
    episodes: int
    """Number of episodes that were played."""
    policy: float | None = None
    """Success rate of a policy; None if none was evaluated."""


class DifficultyProbe:
    """Measures the difficulty of tasks by playing them at random and greedily.

    Args:
        make: Function that creates an environment.
        reward: Reward of the episodes; must be valid for unfinished episodes.
        episodes: Number of random episodes per value, and for the success rate.
        lookahead: Number of actions that a greedy step enumerates.
        width: Maximum number of candidates of one action.
        max_turns: Maximum number of turns per episode.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        reward: Reward,
        *,
        episodes: int = 16,
        lookahead: int = 1,
        width: int = 6,
        max_turns: int = 20,
    ) -> None:
        self.make, self.reward, self.episodes, self.lookahead = make, reward, episodes, lookahead
        self.width, self.max_turns, self.num_played = width, max_turns, 0

    async def measure(self, task: Task) -> TaskDifficulty:
        """Play a task at random and by greedy steps, and return its difficulty."""
        before = self.num_played
        solved = [(await self._play(task, (), number)).solved for number in range(self.episodes)]
        value, actions = partial(self._random_value, task), partial(self._candidates, task)
        plan = await plan_greedily(actions, value, lookahead=self.lookahead)
        greedy = (await self._play(task, plan, 0)).solved
        kind = str(task.tags.get("kind", ""))
        return TaskDifficulty(task.id, kind, fmean(solved), greedy, self.num_played - before)

    async def _random_value(self, task: Task, prefix: tuple[Message, ...]) -> float:
        scores = [(await self._play(task, prefix, number)).score for number in range(self.episodes)]
        return fmean(0.0 if score is None else score.value + sum(score.turns or ()) for score in scores)

    async def _candidates(self, task: Task, prefix: tuple[Message, ...]) -> Sequence[Message]:
        """Return the admissible commands after a prefix, or different random actions; at most `width`."""
        if len(prefix) >= self.max_turns:
            return ()
        draw = RandomPolicy(derive_seed("difficulty", task.id, "candidates", len(prefix)))
        by_text: dict[str, Message] = {}

        def policy(talk: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            for _ in range(4 * self.width):
                action = draw.choose_action(talk, tools, admissible)
                if len(by_text) < self.width:
                    by_text.setdefault(str(action.to_openai()), action)
            return assistant("")

        await self._play(task, prefix, 0, policy, max_turns=len(prefix) + 1)
        return tuple(by_text.values())

    async def _play(
        self,
        task: Task,
        prefix: tuple[Message, ...],
        number: int,
        policy: Policy | None = None,
        *,
        max_turns: int | None = None,
    ) -> Trajectory:
        """Play the actions of a prefix, then those of a policy, by default a random one; return the scored episode."""
        left = iter(prefix)
        then = policy or RandomPolicy(derive_seed("difficulty", task.id, len(prefix), number)).choose_action

        def act(talk: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            return next(left, None) or then(talk, tools, admissible)

        seed, limit = derive_seed("difficulty", task.id), max_turns or self.max_turns
        episode = await play_with_policy(self.make, task, act, seed=seed, max_turns=limit)
        self.num_played += 1
        return await score_trajectory(self.reward, episode.trajectory, task)
