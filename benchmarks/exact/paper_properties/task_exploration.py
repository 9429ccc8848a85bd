"""Tasks of curious play in an environment whose reachable states are enumerated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Literal

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.chat import ToolCall, assistant
from whetstone.environments import Environment, ToolEnvironment
from whetstone.evaluation.environment_checks.play_episode import play_with_policy, replay_actions
from whetstone.evaluation.task_exploration import TaskExplorer
from whetstone.rewards.environment_state.state import state, state_digest
from whetstone.trajectory import Task

_START = Task("lamps", "")
_NAMES = "abcd"


class _Lamps:
    """Four lamps."""

    effects = "read"

    def open(self, episode: Any) -> None:
        """Switch all lamps off."""
        self.lamps = dict.fromkeys(_NAMES, False)

    def tools(self) -> list[Any]:
        """Return the tool."""
        return [self.toggle]

    def toggle(self, lamp: Literal["a", "b", "c", "d"]) -> str:
        """Toggle a lamp.

        Args:
            lamp: The lamp.
        """
        self.lamps[lamp] = not self.lamps[lamp]
        return "done"

    def verdict(self) -> Mapping[str, Any]:
        """Return the lamps."""
        return {"state": dict(self.lamps)}


def _make() -> Environment:
    return ToolEnvironment(tools=[_Lamps()])


def _pay(task: Task, played: Task) -> float:
    """Return the reward of a task for the calls of another one."""
    calls = [assistant("", ToolCall(call["name"], call["arguments"])) for call in played.private["solution"]]
    episode = asyncio.run(
        play_with_policy(_make, _START, replay_actions(calls), seed=9, max_turns=len(calls))
    ).trajectory
    return float(asyncio.run(state(episode, task)).value)


@exact("cues", of=TaskExplorer, note="goals are states in place of a model's wording; nothing is trained on the tasks")
def curious_play_finds_each_state_as_a_task() -> list[Figure]:
    """Four lamps have 15 states other than the start. Tasks of 150 curious episodes are exactly these states, each with
    the fewest calls that reach it; the reward pays the calls of a task and of no other one; tasks that a random player
    reaches are rejected."""
    explorer = TaskExplorer(_make, max_random=1.0)
    tasks = asyncio.run(explorer.explore_tasks(_START, 150))
    strict = asyncio.run(TaskExplorer(_make, max_random=0.0, random_players=400).explore_tasks(_START, 150))
    states = {
        state_digest({name: name in on for name in _NAMES}): count
        for count in range(1, 5)
        for on in combinations(_NAMES, count)
    }
    goals = {task.private["digest"]: len(task.private["solution"]) for task in tasks}
    paid = [[_pay(task, other) for other in tasks] for task in tasks]
    return [
        Figure("states that are tasks, of 15", "=", 15, len(goals.keys() & states.keys())),
        Figure("tasks that are no such state", "=", 0, len(goals.keys() - states.keys())),
        Figure("tasks with more calls than lamps to toggle", "=", 0, sum(goals[key] > states[key] for key in states)),
        Figure(
            "reward for the calls of the task, mean", "=", 1, sum(paid[k][k] for k in range(len(tasks))) / len(tasks)
        ),
        Figure("reward for the calls of other tasks, sum", "=", 0, sum(map(sum, paid)) - len(tasks)),
        Figure("tasks that no random player of 400 reaches", "=", 0, len(strict)),
    ]
