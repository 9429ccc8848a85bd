"""ScienceWorld: experiments of primary school in text, in a Java program of its own.

Easy to get wrong: the score falls to −100 where the wrong thing is focused on; it is cut at 0 and divided by 100. A
gateway to Java is not for two threads, so each game has a process. And it lists what lies about in the order of a hash
table, which is another one each time: listed lines are sorted here, so that the same episode reads the same. A
variation that does not exist is not loaded, and the program goes on with what it had, solved or not: what was loaded is
looked at. And some tasks begin with points nobody has earned.

Source: ScienceWorld, arXiv:2203.07540.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments.dependencies import check_needs, package, program
from whetstone.environments.game_tasks import said_as_command
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import TaskError, did_you_mean
from whetstone.plugins import OptionError
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

_NEEDS = (package("scienceworld", "scienceworld"), program("java", "default-jre-headless"))
_SOLUTIONS = {
    "boil": 182, "change-the-state-of-matter-of": 130, "chemistry-mix": 56, "freeze": 143, "grow-fruit": 103,
    "grow-plant": 75, "inclined-plane-determine-angle": 189, "inclined-plane-friction-named-surfaces": 325,
    "inclined-plane-friction-unnamed-surfaces": 202, "measure-melting-point-unknown-substance": 96, "melt": 142,
    "mendelian-genetics-known-plant": 261, "mendelian-genetics-unknown-plant": 261,
}  # fmt: skip
"""Commands of ScienceWorld's own solution, the longest over variations and simplifications; other tasks take 50."""
_MIN_STEPS = 100
_one_at_a_time = threading.RLock()
"""A gateway to Java is not for two threads."""
_EASY = ("find-living-thing", "find-non-living-thing", "find-plant", "find-animal", "lifespan-longest-lived")


class ScienceWorld:
    """One variation of one task.

    Args:
        simplifications: As ScienceWorld names them; `easy` for all.
        max_steps: Commands until it is cut short; null: 100, and twice as many as ScienceWorld's own solution of a task
            takes.
    """

    name = "scienceworld"
    needs = _NEEDS
    isolation: Isolation = "process"

    def __init__(self, *, simplifications: str = "easy", max_steps: int | None = None) -> None:
        self.simplifications, self.max_steps = simplifications, max_steps
        self._info: Mapping[str, Any] = {}
        self._given = 0.0
        self.steps, self.limit, self.done = 0, 0, False

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Load the variation.

        Raises:
            TaskError: There is no such task or variation.
        """
        self._info, self._given, self.steps, self.done = {}, 0.0, 0, False
        name, variation = task.private["task"], int(task.private["variation"])
        self.limit = steps_of(name) if self.max_steps is None else self.max_steps
        if variation not in range(variations_of(name)):
            raise TaskError(f"ScienceWorld's {name} has variations 0 to {variations_of(name) - 1}, got {variation}")
        env = _java()
        env.load(name, variation, self.simplifications)
        text, info = env.reset()
        if str(text).startswith("ERROR"):
            raise TaskError(f"ScienceWorld cannot load {name}, variation {variation}: {str(text)[:120]}")
        self._info = info
        self._given = float(info.get("score", 0)) / 100
        return GameObservation(f"{env.get_task_description()}\n{in_order(str(text))}")

    def act(self, command: str) -> GameObservation:
        """One command."""
        before = self._score()
        text, _, done, self._info = _java().step(command)
        self.steps += 1
        self.done = bool(done)
        understood = not str(text).startswith(("No known action", "Unknown action"))
        late = self.steps >= self.limit and not self.done
        return GameObservation(
            in_order(str(text)), self._score() - before, terminated=self.done, truncated=late, understood=understood
        )

    def verdict(self) -> Mapping[str, Any]:
        """The score, from 0 to 1, of what was not there at first; it is a success at 1."""
        return {"success": self._score() >= 1, "score": self._score(), "steps": self.steps}

    def admissible(self) -> list[str]:
        """ScienceWorld's own."""
        return list(self._info.get("valid", ()))

    def close(self) -> None:
        """The program stays for the next game of this process."""

    def _score(self) -> float:
        return max(0.0, (float(self._info.get("score", 0)) / 100 - self._given) / (1 - self._given))


class ScienceWorldTasks(Generated):
    """Variations of tasks, one in ten of them held out.

    Args:
        seed: As of `Generated`.
        tasks: Names of tasks; null: five short ones.
        variations: How many of each are drawn from, at most; some tasks have fewer.
        simplifications: As of the environment; the gold path depends on it.
    """

    name = "scienceworld"
    most = 1

    def __init__(
        self, *, seed: int = 0, tasks: list[str] | None = None, variations: int = 100, simplifications: str = "easy"
    ) -> None:
        check_needs("scienceworld", _NEEDS)
        super().__init__(seed=seed)
        self.tasks, self.variations, self.simplifications = tasks or list(_EASY), variations, simplifications
        if not self.tasks:
            raise OptionError("tasks", "no task, so there is nothing to draw")
        if variations < 1:
            raise OptionError("variations", f"one or more of each task is drawn from, got {variations}")

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        name = draw.choice(self.tasks)
        return Task(
            "",
            "",
            {"task": name, "variation": draw.randrange(min(self.variations, variations_of(name)))},
            {"kind": name},
        )

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """ScienceWorld's gold path, one command after the other."""
        path = _gold_path(task.private["task"], task.private["variation"], self.simplifications)
        taken = sum(message.role == "assistant" for message in conversation)
        return said_as_command(path[min(taken, len(path) - 1)], tools)


def steps_of(task: str) -> int:
    """Return how many commands an episode of a task may have: enough for ScienceWorld's own solution, twice."""
    return max(_MIN_STEPS, 2 * _SOLUTIONS.get(task, 0))


def in_order(text: str) -> str:
    """A text whose indented lines are sorted, block by block."""
    lines: list[str] = []
    block: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("\t"):
            block.append(line)
            continue
        lines += sorted(block)
        block = []
        lines.append(line)
    return "\n".join(lines[:-1])


@functools.cache
def _java() -> Any:
    """The one program of this process."""
    from scienceworld import ScienceWorldEnv

    return ScienceWorldEnv("", envStepLimit=10_000)


@functools.cache
def _task_names() -> tuple[str, ...]:
    return tuple(_java().get_task_names())


@functools.cache
def variations_of(task: str) -> int:
    """How many variations a task has.

    Raises:
        TaskError: There is no such task; the message has the nearest.
    """
    with _one_at_a_time:
        known = _task_names()
        if task not in known:
            raise TaskError(f"ScienceWorld has no task {task}{did_you_mean(task, known)}")
        return int(_java().get_max_variations(task))


@functools.lru_cache(maxsize=4096)
def _gold_path(task: str, variation: int, simplifications: str) -> tuple[str, ...]:
    with _one_at_a_time:
        env = _java()
        env.load(task, variation, simplifications, generateGoldPath=True)
        return tuple(env.get_gold_action_sequence())
