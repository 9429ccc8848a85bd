"""Adapter for ScienceWorld: primary-school experiments in text, in a Java process.

Note:
    - The score falls to −100 if the agent focuses on the wrong object; it is clipped at 0 and divided by 100.
    - The Java gateway does not support two threads, so each game has a process.
    - Objects are listed in the order of a hash table, which differs between runs. Listed lines are sorted here, so that
    the same episode has the same text.
    - A variation that does not exist is not loaded, and the program continues with the previous state, solved or not.
    Variations are therefore checked first.
    - Some tasks start with points that the agent did not earn; these are subtracted.

Source: ScienceWorld, arXiv:2203.07540.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments.dependencies import check_requirements, require_package, require_program
from whetstone.environments.game_tasks import command_to_message
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import TaskError, did_you_mean
from whetstone.plugins import OptionError
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

_NEEDS = (require_package("scienceworld", "scienceworld"), require_program("java", "default-jre-headless"))
_SOLUTIONS = {
    "boil": 182, "change-the-state-of-matter-of": 130, "chemistry-mix": 56, "freeze": 143, "grow-fruit": 103,
    "grow-plant": 75, "inclined-plane-determine-angle": 189, "inclined-plane-friction-named-surfaces": 325,
    "inclined-plane-friction-unnamed-surfaces": 202, "measure-melting-point-unknown-substance": 96, "melt": 142,
    "mendelian-genetics-known-plant": 261, "mendelian-genetics-unknown-plant": 261,
}  # fmt: skip
"""Number of commands of ScienceWorld's solution of a task, the maximum over variations and simplifications; other tasks
take 50."""
_MIN_STEPS = 100
"""Minimum of the maximum number of commands per episode."""
_one_at_a_time = threading.RLock()
"""Lock of the Java gateway, which does not support two threads."""
_EASY = ("find-living-thing", "find-non-living-thing", "find-plant", "find-animal", "lifespan-longest-lived")
"""Tasks of `ScienceWorldTasks` by default; their solutions are short."""


class ScienceWorld:
    """Game that plays one variation of a ScienceWorld task.

    Args:
        simplifications: Names of ScienceWorld's simplifications; `easy` for all.
        max_steps: Number of commands after which the episode is truncated; null: twice the length of ScienceWorld's
            solution of the task, and at least 100.
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
        """Load the variation of the task and return its description and the first text.

        Raises:
            TaskError: If there is no such task or variation.
        """
        self._info, self._given, self.steps, self.done = {}, 0.0, 0, False
        name, variation = task.private["task"], int(task.private["variation"])
        self.limit = max_commands(name) if self.max_steps is None else self.max_steps
        if variation not in range(count_variations(name)):
            raise TaskError(f"scienceworld: {name} has variations 0 to {count_variations(name) - 1}, got {variation}")
        env = _java()
        env.load(name, variation, self.simplifications)
        text, info = env.reset()
        if str(text).startswith("ERROR"):
            raise TaskError(f"scienceworld: {name}, variation {variation}, cannot be loaded: {str(text)[:120]}")
        self._info = info
        self._given = float(info.get("score", 0)) / 100
        return GameObservation(f"{env.get_task_description()}\n{sort_blocks(str(text))}")

    def act(self, command: str) -> GameObservation:
        """Execute one command; the reward is the change of the score."""
        before = self._score()
        text, _, done, self._info = _java().step(command)
        self.steps += 1
        self.done = bool(done)
        understood = not str(text).startswith(("No known action", "Unknown action"))
        late = self.steps >= self.limit and not self.done
        return GameObservation(
            sort_blocks(str(text)), self._score() - before, terminated=self.done, truncated=late, understood=understood
        )

    def verdict(self) -> Mapping[str, Any]:
        """Return the score from 0 to 1, without the initial points.

        A score of 1 is a success.
        """
        return {"success": self._score() >= 1, "score": self._score(), "steps": self.steps}

    def admissible(self) -> list[str]:
        """Return the actions that ScienceWorld lists as valid in the current state."""
        return list(self._info.get("valid", ()))

    def close(self) -> None:
        """Do nothing; the Java program stays for the next game of this process."""

    def _score(self) -> float:
        """Return the score from 0 to 1 without the points that the task started with."""
        return max(0.0, (float(self._info.get("score", 0)) / 100 - self._given) / (1 - self._given))


class ScienceWorldTasks(Generated):
    """Task source: variations of ScienceWorld tasks, one in ten of them held out.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        tasks: Names of tasks; null: five short ones.
        variations: Maximum number of variations of each task; some tasks have fewer.
        simplifications: Names of ScienceWorld's simplifications; `easy` for all. The same as those of the environment,
            since the gold path depends on them.
    """

    name = "scienceworld"
    most = 1

    def __init__(
        self, *, seed: int = 0, tasks: list[str] | None = None, variations: int = 100, simplifications: str = "easy"
    ) -> None:
        check_requirements("scienceworld", _NEEDS)
        super().__init__(seed=seed)
        self.tasks, self.variations, self.simplifications = tasks or list(_EASY), variations, simplifications
        if not self.tasks:
            raise OptionError("tasks", "the list is empty; name one or more tasks")
        if variations < 1:
            raise OptionError("variations", f"must be 1 or more, got {variations}")

    def make(self, draw: Random, level: int) -> Task:
        """Generate a task with a random variation; see `Generated`."""
        name = draw.choice(self.tasks)
        return Task(
            "",
            "",
            {"task": name, "variation": draw.randrange(min(self.variations, count_variations(name)))},
            {"kind": name},
        )

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next command of ScienceWorld's gold path.

        Assumes that the conversation follows the gold path.
        """
        path = _gold_path(task.private["task"], task.private["variation"], self.simplifications)
        taken = sum(message.role == "assistant" for message in conversation)
        return command_to_message(path[min(taken, len(path) - 1)], tools)


def max_commands(task: str) -> int:
    """Return the maximum number of commands of an episode of a task.

    It is twice the length of ScienceWorld's solution, and at least 100.
    """
    return max(_MIN_STEPS, 2 * _SOLUTIONS.get(task, 0))


def sort_blocks(text: str) -> str:
    """Sort the indented lines of each block of a text.

    ScienceWorld lists objects in an order that differs between runs.
    """
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
    """Return the ScienceWorld program of this process; start it at the first call."""
    from scienceworld import ScienceWorldEnv

    return ScienceWorldEnv("", envStepLimit=10_000)


@functools.cache
def _task_names() -> tuple[str, ...]:
    """Return the names of all tasks that ScienceWorld offers; cached."""
    return tuple(_java().get_task_names())


@functools.cache
def count_variations(task: str) -> int:
    """Return the number of variations of a ScienceWorld task.

    Raises:
        TaskError: If there is no such task; the message has the nearest name.
    """
    with _one_at_a_time:
        known = _task_names()
        if task not in known:
            raise TaskError(f"scienceworld: no task named {task}{did_you_mean(task, known)}")
        return int(_java().get_max_variations(task))


@functools.lru_cache(maxsize=4096)
def _gold_path(task: str, variation: int, simplifications: str) -> tuple[str, ...]:
    """Return the commands of ScienceWorld's solution of a variation."""
    with _one_at_a_time:
        env = _java()
        env.load(task, variation, simplifications, generateGoldPath=True)
        return tuple(env.get_gold_action_sequence())
