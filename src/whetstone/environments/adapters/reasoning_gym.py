"""The generators of reasoning-gym: a question, one answer, a verifier of their own.

Source: reasoning-gym, arXiv:2505.24760.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments.commands import TOOL
from whetstone.environments.game_tasks import said_as_command
from whetstone.environments.needs import check_needs, package
from whetstone.environments.protocol import Shown
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

_NEEDS = (package("reasoning_gym", "reasoning"),)


class ReasoningGym:
    """One question; the answer is all that is said, and ends the episode."""

    name = "reasoning_gym"
    needs = _NEEDS
    whole = True

    def __init__(self) -> None:
        self._entry: Mapping[str, Any] = {}
        self._dataset: Any = None
        self.score = 0.0

    def begin(self, task: Task, seed: int) -> Shown:
        """The question."""
        private = task.private
        self._dataset, self._entry = entry_of(private["dataset"], private["seed"], _frozen(private["options"]))
        self.score = 0.0
        return Shown(str(self._entry["question"]))

    def act(self, command: str) -> Shown:
        """The answer."""
        self.score = float(self._dataset.score_answer(command, self._entry))
        return Shown("", self.score, terminated=True)

    def verdict(self) -> Mapping[str, Any]:
        """The verifier's score; it is a success at 1."""
        return {"success": self.score >= 1, "score": self.score}

    def close(self) -> None:
        """Nothing is held."""


class ReasoningGymTasks(Generated):
    """Questions of one generator or several, drawn evenly.

    Args:
        seed: As of `Generated`.
        datasets: Names of generators, such as `leg_counting`.
        options: Passed to them.

    Raises:
        RecipeError: There is no such generator, or it takes no such option.
    """

    name = "reasoning_gym"
    most = 1

    def __init__(self, *, datasets: list[str], seed: int = 0, options: dict[str, Any] | None = None) -> None:
        check_needs("reasoning_gym", _NEEDS)
        from reasoning_gym.factory import DATASETS

        for name in datasets:
            if name not in DATASETS:
                raise RecipeError(f"reasoning_gym: no generator {name}{did_you_mean(name, DATASETS)[:200]}")
        super().__init__(seed=seed)
        self.datasets, self.options = datasets, options or {}
        for name in datasets:
            entry_of(name, 0, _frozen(self.options))

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        name = draw.choice(self.datasets)
        private = {"dataset": name, "seed": draw.randrange(2**31), "options": self.options}
        return Task("", "", private, {"kind": name})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The generator's own answer.

        Raises:
            TaskError: It has none: several are right, and it only verifies.
        """
        private = task.private
        _, entry = entry_of(private["dataset"], private["seed"], _frozen(private["options"]))
        if entry["answer"] is None:
            raise TaskError(f"reasoning_gym: {private['dataset']} has no answer of its own to show")
        answer = str(entry["answer"])
        return said_as_command(answer, tools) if any(tool.name == TOOL for tool in tools) else assistant(answer)


@functools.lru_cache(maxsize=4096)
def entry_of(name: str, seed: int, options: tuple[tuple[str, Any], ...]) -> tuple[Any, Mapping[str, Any]]:
    """(a dataset of one question, the question)"""
    import reasoning_gym

    try:
        dataset = reasoning_gym.create_dataset(name, seed=seed, size=1, **dict(options))
    except (TypeError, AssertionError, ValueError) as error:
        raise RecipeError(f"reasoning_gym: {name}: {error}") from None
    return dataset, dataset[0]


def _frozen(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in options.items()))
