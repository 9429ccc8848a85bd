"""Environments of the package `verifiers` that run their own agents: their harness calls the policy at an endpoint.

    environment: {name: verifiers_harness, taskset: …}      tasks: {source: verifiers, taskset: …, env: {}}

The requests of the harness are the episode, as for any external agent (`external_agent.py`). The rewards of the
environment are its verdict. The package runs in a separate process, one for all episodes (`verifiers_bridge.py`).

Note:
    An episode that is canceled here would continue in the process, so the process receives a request to end it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from whetstone.chat import Message
from whetstone.environments.external_agent import ExternalAgent
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import parse_reward
from whetstone.environments.remote.verifiers import bridge_command, check_interpreter, get_bridge
from whetstone.errors import InfrastructureError, TaskError
from whetstone.trajectory import Task

_NO_LIMIT = 86_400.0
"""Seconds; the deadline of the episode ends it earlier."""


class VerifiersHarness:
    """Environment that plays a `verifiers` taskset with the harness of the package.

    Ends: terminated when the environment ends it.

    Args:
        taskset: Id of the installed taskset.
        python: Interpreter that has `verifiers` and the taskset; empty: the interpreter of this process.
        options: Configuration of the taskset, with its field names.
        env: Configuration of the environment, with its field names: `{agent: {harness: {id: null}, max_turns: 8}}`.
            Every role calls this policy, unless it has another client.
        runtime: `subprocess`: a harness that executes the model's code does so on this machine, not sandboxed; empty:
            such a harness is refused if it has no other runtime.
        max_tasks: Maximum number of tasks that are read; tasksets may be infinite.
        success_at: Minimum reward of a success.
        seconds: Timeout of loading in seconds.
        crash: Consequence of a failed episode. `outcome`: the reward scores it; `error`: the episode has no score.

    Raises:
        RecipeError: If the interpreter does not exist.
    """

    needs = ExternalAgent.needs

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
        self._agent = ExternalAgent(function=self._play, crash=crash)
        self._place: dict[str, Any] = {}

    def check(self) -> None:
        """Check that the interpreter can import `verifiers`; see `Verifiers.check`."""
        check_interpreter(self._command[0])

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Start the task in the process and return the harness's first request.

        Raises:
            TaskError: If the taskset has no such task.
            InfrastructureError: If the process failed.
            EpisodeError: If the harness sent no request.
        """
        if "index" not in task.private or "key" not in task.private:
            raise TaskError(f"task {task.id}: this is not a task of a verifiers taskset; set tasks.source: verifiers")
        self._place = {"index": task.private["index"], "key": task.private["key"]}
        return await self._agent.reset(task, seed=seed)

    async def step(self, action: Message) -> StepResult:
        """Answer the request of the harness with an action and return its next request."""
        return await self._agent.step(action)

    async def answer_request(self, conversation: int, action: Message) -> None:
        """Answer the pending request of a conversation."""
        await self._agent.answer_request(conversation, action)

    async def next_request(self) -> Observation | None:
        """Return the next request of the harness; None if it has ended."""
        return await self._agent.next_request()

    async def verdict(self) -> Mapping[str, Any]:
        """Return the reward, and each reward and metric by its name.

        If the episode failed, the error instead.
        """
        return await self._agent.verdict()

    async def close(self) -> None:
        """End the task in the process; the process stays for the next task."""
        await self._agent.close()

    async def _play(self, base_url: str) -> dict[str, Any]:
        """Play the task in the process, against the endpoint of this episode.

        Return the result.
        """
        bridge, episode = get_bridge(self._command, self.seconds), uuid.uuid4().hex
        try:
            result = await bridge.send_request("play", episode, seconds=_NO_LIMIT, base_url=base_url, **self._place)
        except BaseException:
            with contextlib.suppress(InfrastructureError, TaskError):  # the process ended, and its episodes with it
                await bridge.send_request("end", episode, seconds=self.seconds)
            raise
        if "failed" in result:
            return {"failed": str(result["failed"]), "success": False, "score": 0.0}
        reward = parse_reward(result["reward"], "verifiers")
        done = {"success": reward >= self.success_at, "score": max(0.0, min(1.0, reward)), "reward": reward}
        return {**{name: parse_reward(part, f"verifiers: {name}") for name, part in result["parts"].items()}, **done}
