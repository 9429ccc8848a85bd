"""Environments of the package `verifiers` that play their agents themselves: their harness asks at an address.

    environment: {name: verifiers_harness, taskset: …}      tasks: {source: verifiers, taskset: …, env: {}}

What the harness asks becomes the episode, as of any agent of others (`agent.py`); what the environment's rewards come
to is its verdict. The package runs in a process of its own, one for all episodes (`verifiers_bridge.py`).

Easy to get wrong: an episode that is given up here still runs there, so it is told to end.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from whetstone.chat import Message
from whetstone.environments.agent import Agent
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import reward_of
from whetstone.environments.remote.verifiers import bridge_command, bridge_of, check_interpreter
from whetstone.errors import InfrastructureError, TaskError
from whetstone.trajectory import Task

_NO_LIMIT = 86_400.0
"""An episode's own deadline ends it before."""


class VerifiersHarness:
    """One episode of an environment of `verifiers`. Ends: terminated when that is over there.

    Args:
        taskset: Its id, as it is installed.
        python: The interpreter that has `verifiers` and the taskset; empty: this one.
        options: The taskset's configuration, by its own names.
        env: The configuration of the environment, by its own names: `{agent: {harness: {id: null}, max_turns: 8}}`.
            Every role asks this policy, unless it has a client of its own.
        runtime: `subprocess`: a harness that runs what the model says does so on this machine, unconfined; empty: such
            a one is refused where it has no other runtime.
        max_tasks: Tasks that are read of it; tasksets may have no end.
        success_at: The reward from which the episode is a success.
        seconds: How long loading may take.
        crash: As of `agent`: what becomes of an episode that fails there.

    Raises:
        RecipeError: There is no such interpreter.
    """

    needs = Agent.needs

    def __init__(
        self,
        *,
        taskset: str,
        python: str = "",
        options: dict[str, Any] | None = None,
        env: dict[str, Any] | None = None,
        runtime: Literal["", "subprocess"] = "",
        max_tasks: int = 10_000,
        success_at: float = 1.0,
        seconds: float = 120.0,
        crash: str = "outcome",
    ) -> None:
        self._command = bridge_command(taskset, python, options, runtime, max_tasks, env=env or {})
        self.success_at, self.seconds = success_at, seconds
        self._agent = Agent(function=self._played, crash=crash)
        self._place: dict[str, Any] = {}

    def check(self) -> None:
        """See `Verifiers.check`."""
        check_interpreter(self._command[0])

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin the task there.

        Raises:
            TaskError: It is none of the taskset.
            InfrastructureError: The process failed.
            EpisodeError: The harness asked nothing.
        """
        if "index" not in task.private or "key" not in task.private:
            raise TaskError(f"task {task.id}: no task of a verifiers taskset; its tasks are `source: verifiers`")
        self._place = {"index": task.private["index"], "key": task.private["key"]}
        return await self._agent.reset(task, seed=seed)

    async def step(self, action: Message) -> StepResult:
        """The answer to what the harness asked; what it asks next."""
        return await self._agent.step(action)

    def verdict(self) -> Mapping[str, Any]:
        """The reward, and each reward and metric by its name; what failed where something did."""
        return self._agent.verdict()

    async def close(self) -> None:
        """End the task there; the process stays for the next."""
        await self._agent.close()

    async def _played(self, base_url: str) -> dict[str, Any]:
        bridge, episode = bridge_of(self._command, self.seconds), uuid.uuid4().hex
        try:
            said = await bridge.ask("play", episode, seconds=_NO_LIMIT, base_url=base_url, **self._place)
        except BaseException:
            with contextlib.suppress(InfrastructureError, TaskError):  # it has ended with all it had
                await bridge.ask("end", episode, seconds=self.seconds)
            raise
        if "failed" in said:
            return {"failed": str(said["failed"]), "success": False, "score": 0.0}
        reward = reward_of(said["reward"], "verifiers")
        done = {"success": reward >= self.success_at, "score": max(0.0, min(1.0, reward)), "reward": reward}
        return {**{name: reward_of(part, f"verifiers: {name}") for name, part in said["parts"].items()}, **done}
