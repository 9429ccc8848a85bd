"""Is there nothing for nothing? Impostors play; who makes no move may never win, and who stops at once only as often as
luck explains.

    impostors → episodes (several tasks, a bounded number of turns and seconds) → attempts, one of each player → a check

Easy to get wrong: where nothing is to be called, calling nothing is right. A task of which the expert calls none of the
tools there are is counted apart.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from whetstone.chat import Message, ToolSpec
from whetstone.environments import Environment
from whetstone.evaluation.checks import Check, CheckStatus
from whetstone.evaluation.contract.impostors import IMPOSTORS, NEVER_ACT, ODD_TEXTS
from whetstone.evaluation.contract.luck import chance_of, explained, of_episode
from whetstone.evaluation.contract.playing import Played, Policy, play
from whetstone.rewards import Reward
from whetstone.tasks import Expert, Source
from whetstone.trajectory import Score, Task
from whetstone.user_code import describe_exception

_SEED = 7
_MOST_SHOWN = 3
_MEND = "say success only where the task was done: not by default, by a bound met from the start, or as others gave up"


@dataclass(slots=True)
class Attempts:
    """What one impostor came to."""

    player: str
    episodes: int = 0
    wins: int = 0
    right: int = 0
    """Wins of tasks of which the expert, too, calls nothing."""
    highest: float = 0.0
    """The best score, by the world or by the reward."""
    chances: list[float] = field(default_factory=list)
    """Of each episode, that it is won by luck."""
    won: list[str] = field(default_factory=list)
    """The tasks."""
    faults: list[str] = field(default_factory=list)
    """What ended an episode as a fault, and scores that are none."""

    @property
    def lucky(self) -> bool:
        """Whether luck explains the wins."""
        return self.wins == 0 or (self.player not in NEVER_ACT and explained(self.wins, self.chances))


@dataclass(slots=True)
class Nothing:
    """What impostors play, for how long, and what they came to.

    Args:
        tasks: How many.
        max_turns: Of an episode.
        seconds: Behind which no episode begins; each impostor has played by then as often as the others.
        longest: Seconds an episode may take.
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
    """Of nonsense, so far."""

    async def check(self) -> Check:
        """All play, and what it came to is said."""
        began = time.perf_counter()
        for number in range(self.tasks):
            if number and time.perf_counter() - began > self.seconds:
                break
            for name in IMPOSTORS:
                await self._episode(name, number)
        # where an episode is over with its first action, most of what is odd was not said yet
        given = self.attempts["nonsense"].episodes
        while max(given, self.odd_actions) < len(ODD_TEXTS) and time.perf_counter() - began < self.seconds:
            await self._episode("nonsense", given)
            given += 1
        return _judged(list(self.attempts.values()))

    async def _episode(self, name: str, number: int) -> None:
        task, attempts, player = self.source.task(number), self.attempts[name], IMPOSTORS[name](number)
        chances: list[float | None] = []

        def policy(conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            action = player(conversation, tools, admissible)
            chances.append(chance_of(action, admissible, tools))
            return action

        attempts.episodes += 1
        try:
            async with asyncio.timeout(self.longest):
                played = await self._play(task, policy)
                score = await self.reward(played.trajectory, task)
        except TimeoutError:
            attempts.faults.append(f"{name}: task {task.id} did not end within {self.longest:g} s")
            return
        except Exception as error:  # whatever words can bring a world to raise is what is looked for
            attempts.faults.append(f"{name}: task {task.id} raised {_line(error)}")
            return
        attempts.chances.append(of_episode(chances))
        self.odd_actions += len(played.actions) if name == "nonsense" else 0
        await self._counted(attempts, task, played, score)

    async def _counted(self, attempts: Attempts, task: Task, played: Played, score: Score) -> None:
        given = played.trajectory.final.get("score", 0.0)
        if not 0 <= float(given) <= 1:
            attempts.faults.append(f"{attempts.player}: task {task.id} has a score of {given}, not from 0 to 1")
        if score.invalid or not math.isfinite(score.value):
            attempts.faults.append(f"{attempts.player}: task {task.id} has no score: {score.invalid or score.value}")
            return
        attempts.highest = max(attempts.highest, float(given), score.value)
        if score.success and await self._nothing_to_call(task):
            attempts.right += 1
        elif score.success:
            attempts.wins += 1
            attempts.won.append(task.id)

    async def _nothing_to_call(self, task: Task) -> bool:
        """Whether there are tools of which the expert needs none."""
        source, offered = self.source, False
        if not isinstance(source, Expert):
            return False

        def policy(conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
            nonlocal offered
            offered = offered or any(tool.name != "act" for tool in tools)
            return source.demonstrate(task, conversation, tools)

        try:
            played = await self._play(task, policy)
        except Exception:  # an expert that cannot is another check's matter
            return False
        return offered and not any(action.tool_calls for action in played.actions)

    async def _play(self, task: Task, policy: Policy) -> Played:
        return await play(self.make, task, policy, seed=_SEED, max_turns=self.max_turns)


def _judged(attempts: Sequence[Attempts]) -> Check:
    """What all came to."""
    won = [f"{each.player} wins {each.wins} of {each.episodes} ({each.won[0]})" for each in attempts if not each.lucky]
    faults = [*won, *(fault for each in attempts for fault in each.faults)]
    if faults:
        more = f" and {len(faults) - _MOST_SHOWN} more" if len(faults) > _MOST_SHOWN else ""
        mend = _MEND if won else "answer what cannot be read, count it as a turn, and keep scores from 0 to 1"
        return Check("", CheckStatus.FAIL, "; ".join(faults[:_MOST_SHOWN]) + more, mend)
    notes = [
        f"{each.player} wins {each.wins} of {each.episodes}, which luck explains" for each in attempts if each.wins
    ]
    right = sum(each.right for each in attempts)
    if right:
        notes.append(f"{right} episodes win by calling nothing, as the expert does")
    paid = [each for each in attempts if each.player in NEVER_ACT and each.highest > 0]
    notes += [f"{each.player} has a score of up to {each.highest:.3g}" for each in paid if not each.right]
    episodes = sum(each.episodes for each in attempts)
    if notes:
        return Check("", CheckStatus.WARN, "; ".join(notes))
    return Check("", CheckStatus.PASS, f"{episodes} episodes without doing the task: no success, no score, no fault")


def _line(error: Exception) -> str:
    return ascii(describe_exception(error).splitlines()[0][:160])[1:-1]
