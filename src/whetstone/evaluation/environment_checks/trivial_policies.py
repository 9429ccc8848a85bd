"""Check that trivial policies get no reward: those without a move never win, early stops only by luck.

    policies → episodes (several tasks, a bounded number of turns and seconds) → attempts, one per policy → a check

Note: If a task requires no call, calling nothing is right. Tasks that the expert solves without any of the available
tools are counted separately.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from whetstone.chat import Message, ToolSpec
from whetstone.environments import Environment
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.evaluation.environment_checks.chance_level import (
    is_explained_by_luck,
    lucky_move_probability,
    lucky_win_probability,
)
from whetstone.evaluation.environment_checks.degenerate_policies import IMPOSTORS, NEVER_ACT, ODD_TEXTS
from whetstone.evaluation.environment_checks.play_episode import PlayedEpisode, Policy, play_with_policy
from whetstone.rewards import Reward
from whetstone.tasks import Expert, Source
from whetstone.trajectory import Score, Task
from whetstone.user_code import describe_exception

_SEED = 7
_MOST_SHOWN = 3
_MEND = "report success only if the task was done: not by default, by a bound met at the start, or if others gave up"


@dataclass(slots=True)
class Attempts:
    """Results of one trivial policy over all of its episodes."""

    player: str
    """Name of the policy."""
    episodes: int = 0
    """Number of episodes."""
    wins: int = 0
    """Number of episodes that count as success."""
    right: int = 0
    """Number of wins on tasks for which the expert calls nothing, either."""
    highest: float = 0.0
    """Highest score, by the environment or by the reward."""
    chances: list[float] = field(default_factory=list)
    """Probability per episode that it is won by luck."""
    won: list[str] = field(default_factory=list)
    """IDs of the tasks that were won."""
    faults: list[str] = field(default_factory=list)
    """Errors that ended an episode, and invalid scores."""

    @property
    def is_lucky(self) -> bool:
        """Return whether luck explains the number of wins; see `is_explained_by_luck`."""
        return self.wins == 0 or (self.player not in NEVER_ACT and is_explained_by_luck(self.wins, self.chances))


@dataclass(slots=True)
class TrivialPolicyCheck:
    """Checks that trivial policies get no reward, with the settings and results of the check.

    Args:
        tasks: Number of tasks.
        max_turns: Maximum number of turns of an episode.
        seconds: Time in seconds after which no round starts; each round plays every policy once.
        longest: Timeout of an episode, in seconds.
    """

    make: Callable[[], Environment]
    source: Source
    reward: Reward
    tasks: int = 12
    max_turns: int = 40
    seconds: float = 30.0
    longest: float = 60.0
    attempts: dict[str, Attempts] = field(default_factory=lambda: {name: Attempts(name) for name in IMPOSTORS})
    odd_actions: int = field(default=0, init=False)
    """Number of actions of the nonsense policy so far."""

    async def check(self) -> Check:
        """Play the episodes of all trivial policies; return the result of the check."""
        began = time.perf_counter()
        for number in range(self.tasks):
            if number and time.perf_counter() - began > self.seconds:
                break
            for name in IMPOSTORS:
                await self._episode(name, number)
        # if episodes end with their first action, most odd texts were not sent yet
        num_episodes = self.attempts["nonsense"].episodes
        while max(num_episodes, self.odd_actions) < len(ODD_TEXTS) and time.perf_counter() - began < self.seconds:
            await self._episode("nonsense", num_episodes)
            num_episodes += 1
        return _summarize(list(self.attempts.values()))

    async def _episode(self, name: str, number: int) -> None:
        task, attempts, player = self.source.task(number), self.attempts[name], IMPOSTORS[name](number)
        chances: list[float | None] = []

        def policy(conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            action = player(conversation, tools, admissible)
            chances.append(lucky_move_probability(action, admissible, tools))
            return action

        attempts.episodes += 1
        try:
            async with asyncio.timeout(self.longest):
                played = await self._play(task, policy)
                score = await self.reward(played.trajectory, task)
        except TimeoutError:
            attempts.faults.append(f"{name}: task {task.id} did not end within {self.longest:g} s")
            return
        except Exception as error:  # any exception of an environment is a fault
            attempts.faults.append(f"{name}: task {task.id} raised {_line(error)}")
            return
        attempts.chances.append(lucky_win_probability(chances))
        self.odd_actions += len(played.actions) if name == "nonsense" else 0
        await self._counted(attempts, task, played, score)

    async def _counted(self, attempts: Attempts, task: Task, played: PlayedEpisode, score: Score) -> None:
        own_score = played.trajectory.final.get("score", 0.0)
        if not 0 <= float(own_score) <= 1:
            attempts.faults.append(f"{attempts.player}: task {task.id} has a score of {own_score}, not from 0 to 1")
        if score.invalid or not math.isfinite(score.value):
            attempts.faults.append(f"{attempts.player}: task {task.id} has no score: {score.invalid or score.value}")
            return
        attempts.highest = max(attempts.highest, float(own_score), score.value)
        if score.success and await self._nothing_to_call(task):
            attempts.right += 1
        elif score.success:
            attempts.wins += 1
            attempts.won.append(task.id)

    async def _nothing_to_call(self, task: Task) -> bool:
        """Return whether the expert solves a task without calling any of the available tools."""
        source, offered = self.source, False
        if not isinstance(source, Expert):
            return False

        def policy(conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            nonlocal offered
            offered = offered or any(tool.name != "act" for tool in tools)
            return source.demonstrate(task, conversation, tools)

        try:
            played = await self._play(task, policy)
        except Exception:  # another check tests the expert
            return False
        return offered and not any(action.tool_calls for action in played.actions)

    async def _play(self, task: Task, policy: Policy) -> PlayedEpisode:
        return await play_with_policy(self.make, task, policy, seed=_SEED, max_turns=self.max_turns)


def _summarize(attempts: Sequence[Attempts]) -> Check:
    """Return the result of the check from the attempts of all policies."""
    won = [
        f"{each.player} wins {each.wins} of {each.episodes} ({each.won[0]})" for each in attempts if not each.is_lucky
    ]
    faults = [*won, *(fault for each in attempts for fault in each.faults)]
    if faults:
        more = f" and {len(faults) - _MOST_SHOWN} more" if len(faults) > _MOST_SHOWN else ""
        mend = _MEND if won else "answer unparseable actions, count them as turns, and keep scores in [0, 1]"
        return Check("", CheckStatus.FAIL, "; ".join(faults[:_MOST_SHOWN]) + more, mend)
    notes = [
        f"{each.player} wins {each.wins} of {each.episodes}, which luck explains" for each in attempts if each.wins
    ]
    right = sum(each.right for each in attempts)
    if right:
        notes.append(f"{right} episodes win without a call, like the expert's")
    paid = [each for each in attempts if each.player in NEVER_ACT and each.highest > 0]
    notes += [f"{each.player} has a score of up to {each.highest:.3g}" for each in paid if not each.right]
    episodes = sum(each.episodes for each in attempts)
    if notes:
        return Check("", CheckStatus.WARN, "; ".join(notes))
    return Check("", CheckStatus.PASS, f"{episodes} episodes without doing the task: no success, no score, no fault")


def _line(error: Exception) -> str:
    return ascii(describe_exception(error).splitlines()[0][:160])[1:-1]
