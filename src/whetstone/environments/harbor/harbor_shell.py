"""Environment of Harbor folders: a shell in the container of the task, and the tests of the task as verdict.

Grading happens in a container that the agent never used: it has the files of the agent's container, not its processes.

Note:
    Tests may write no reward because of the agent's files, or because they are broken. If they write none in an
    untouched container either, the fault is not the agent's, and the episode is invalid instead of a reward of 0.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from whetstone.environments.harbor.task_folder import SOLUTION, TESTS, HarborFolder, read_folder, resolve_variables
from whetstone.errors import InfrastructureError, SandboxError, TaskError
from whetstone.sandbox import CONTAINER_LIMITS, ContainerOptions, ContainerPool, Ending, shared_containers
from whetstone.sandbox.containers.container_session import ContainerSession
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.sandbox_tools import shown_outcome
from whetstone.tools.schema import Tool, tool_from_function

_LOGS = "/logs/verifier"
_MAX_REWARD_BYTES = 1 << 16
_PREPARE = (
    f"rm -rf {_LOGS}; mkdir -p {_LOGS} /logs/agent /logs/artifacts; chmod 777 {_LOGS} /logs/agent /logs/artifacts; "
    f"chmod +x {TESTS}/test.sh"
)


@dataclass(frozen=True, slots=True)
class HarborContainers:
    """Containers of one task folder.

    Args:
        folder: The task.
        container: `podman` or `docker`.
        network: Network of episodes and tests.
        build_network: Network of `RUN` instructions of the Dockerfile.
        call_seconds: Time limit of one command.
    """

    folder: HarborFolder
    container: Literal["podman", "docker"] = "podman"
    network: Literal["none", "open"] = "none"
    build_network: Literal["none", "open"] = "none"
    call_seconds: float = 120.0

    @property
    def container_pool(self) -> ContainerPool:
        """Return the containers of the task's image.

        Raises:
            SandboxError: The runtime or the image is missing.
        """
        folder = self.folder
        image = {"image": folder.image} if folder.image else {"build": str(folder.build_folder)}
        return shared_containers(
            ContainerOptions(
                container=self.container, network=self.network, build_network=self.build_network, cpus=folder.cpus,
                **image,
            )
        )  # fmt: skip

    async def open(self) -> ContainerSession:
        """Return a started container that is ready for an episode.

        Raises:
            InfrastructureError: It does not start, or does not become healthy.
        """
        session = await self._start()
        try:
            await self._wait_until_healthy(session)
        except BaseException:
            session.close()
            raise
        return session

    async def _start(self, snapshot: str = "") -> ContainerSession:
        folder = self.folder
        limits = replace(
            CONTAINER_LIMITS, wall_seconds=self.call_seconds, cpu_seconds=max(self.call_seconds, folder.agent_seconds),
            memory_mb=folder.memory_mb, folder_mb=folder.storage_mb, file_mb=folder.storage_mb, processes=1024,
        )  # fmt: skip
        try:
            pool = await asyncio.to_thread(lambda: self.container_pool)
        except SandboxError as error:
            raise InfrastructureError(str(error)) from error
        session = pool.session(limits=limits, workdir=folder.workdir)
        if snapshot:
            await session.restore(snapshot)
        else:
            await session.start()
        image = pool.prepare_image()
        if image not in _SHELLS:
            probe = await session.shell("command -v bash")
            _SHELLS[image] = "bash" if probe.exit_code == 0 else "sh"
        session.shell_program = _SHELLS[image]
        return session

    async def _wait_until_healthy(self, session: ContainerSession) -> None:
        check = self.folder.healthcheck
        if not check:
            return
        await asyncio.sleep(float(check.get("start_period_sec", 0)))
        for attempt in range(int(check.get("retries", 3))):
            if attempt:
                await asyncio.sleep(float(check.get("interval_sec", 5)))
            outcome = await session.shell(
                str(check["command"]),
                wall_seconds=float(check.get("timeout_sec", 30)),
                variables=self.command_variables,
            )
            if outcome.ending is Ending.OK and outcome.exit_code == 0:
                return
        raise InfrastructureError(f"{self.folder.path}: the container does not pass its health check")

    @property
    def command_variables(self) -> dict[str, str]:
        """Return the environment variables of commands."""
        return resolve_variables(self.folder.variables)

    async def play_solution(self, session: ContainerSession) -> str:
        """Run the solution in a container; return why it failed, or "" if it ended with exit code 0."""
        folder, own = self.folder, resolve_variables(self.folder.solution_variables)
        await session.upload_folder(folder.path / "solution", SOLUTION)
        outcome = await session.shell(
            f"chmod +x {SOLUTION}/solve.sh; {SOLUTION}/solve.sh",
            wall_seconds=folder.agent_seconds,
            variables={**self.command_variables, "DEBIAN_FRONTEND": "noninteractive", **own},
            user=folder.agent_user,
        )
        if outcome.ending is not Ending.OK:
            return outcome.error or outcome.ending.value
        lines = outcome.output.strip().splitlines()
        return f"exit code {outcome.exit_code}: {lines[-1] if lines else ''}"[:300] if outcome.exit_code else ""

    async def run_tests(self, session: ContainerSession | None) -> Grade:
        """Run the tests in a new container with the files of a session; without a session, in an untouched one.

        Raises:
            InfrastructureError: The runtime has failed.
        """
        snapshot = "" if session is None else await session.snapshot()
        try:
            grader = await self._start(snapshot)
        finally:
            if snapshot:
                self.container_pool.discard_snapshot(snapshot)
        try:
            return await self._run_tests_in(grader)
        finally:
            grader.close()

    async def _run_tests_in(self, grader: ContainerSession) -> Grade:
        folder = self.folder
        await grader.upload_folder(folder.path / "tests", TESTS)
        await grader.shell(_PREPARE, user="0")
        outcome = await grader.shell(
            f"{TESTS}/test.sh > {_LOGS}/test-stdout.txt 2>&1",
            wall_seconds=folder.verifier_seconds,
            variables={**self.command_variables, **resolve_variables(folder.verifier_variables)},
            user=folder.verifier_user,
        )
        log = (await grader.shell(f"tail -c 2000 {_LOGS}/test-stdout.txt")).output
        if outcome.ending is not Ending.OK:
            return Grade({}, f"the tests did not end: {outcome.error}", log)
        for name, parse in (("reward.json", parse_reward_json), ("reward.txt", parse_reward_text)):
            reward_file = await grader.read(f"{_LOGS}/{name}", max_bytes=_MAX_REWARD_BYTES)
            if reward_file.ending is Ending.OK:
                try:
                    return Grade(parse((reward_file.data or b"").decode(errors="replace")), "", log)
                except ValueError as error:
                    return Grade({}, f"{name}: {error}", log)
        last = (log.strip().splitlines() or ["no output"])[-1]
        return Grade({}, f"the tests wrote no reward (last line: {last[:200]})", log)


@dataclass(frozen=True, slots=True)
class Grade:
    """Result of the tests of a folder."""

    rewards: Mapping[str, float]
    """Rewards by name; empty if the tests wrote none."""
    reason: str
    """Why there is no reward."""
    log: str
    """End of the output of the tests."""

    @property
    def reward(self) -> float | None:
        """Return the reward of the task: `reward`, or the only one; None if there is none.

        Raises:
            TaskError: There are several and none is named `reward`.
        """
        if not self.rewards:
            return None
        if "reward" in self.rewards:
            return self.rewards["reward"]
        if len(self.rewards) > 1:
            raise TaskError(f"the tests wrote rewards {', '.join(sorted(self.rewards))}, and none is named reward")
        return next(iter(self.rewards.values()))


def parse_reward_text(text: str) -> dict[str, float]:
    """Parse `reward.txt`: a finite number.

    Raises:
        ValueError: It is not one.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text.strip()[:40]} is not finite")
    return {"reward": value}


def parse_reward_json(text: str) -> dict[str, float]:
    """Parse `reward.json`: finite numbers by name.

    Raises:
        ValueError: It is something else.
    """
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError("not a JSON object with rewards")
    for name, value in parsed.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is not a finite number")
    return {name: float(value) for name, value in parsed.items()}


_SHELLS: dict[str, str] = {}
"""Program that reads commands, by image: `bash` if the image has it."""
_UNTOUCHED: dict[Path, Grade] = {}
"""Result of the tests in an untouched container, by folder."""


class HarborShell:
    """A shell in the container of a Harbor folder: one tool, `shell`. The tests of the folder judge the episode.

    Args:
        container: Container runtime.
        network: Network of the container: `none`, or `open`.
        build_network: Network of `RUN` instructions while images are built.
        call_seconds: Time limit of one command in seconds.
    """

    def __init__(
        self,
        *,
        container: Literal["podman", "docker"] = "podman",
        network: Literal["none", "open"] = "none",
        build_network: Literal["none", "open"] = "none",
        call_seconds: float = 120.0,
    ) -> None:
        self._options: dict[str, Any] = {
            "container": container, "network": network, "build_network": build_network, "call_seconds": call_seconds
        }  # fmt: skip
        self.effects = "read" if network == "none" else None
        """Effect of the commands; unknown with a network."""
        self._containers: HarborContainers | None = None
        self._session: ContainerSession | None = None

    async def open(self, episode: Episode) -> None:
        """Start the container of the task."""
        try:
            folder = await asyncio.to_thread(read_folder, Path(episode.task.private["folder"]))
        except KeyError:
            raise TaskError("harbor: a task has no folder; use `tasks: {source: harbor, path: …}`") from None
        self._containers = HarborContainers(folder, **self._options)
        self._session = await self._containers.open()

    def tools(self) -> list[Tool]:
        """Return the tool."""
        return [replace(tool_from_function(self.shell), keeps_time=True)]

    async def shell(self, command: str) -> Result:
        """Run a command in the container of the task. Files, the current folder and background processes last.

        Args:
            command: The command; it may have several lines.
        """
        assert self._session is not None
        assert self._containers is not None
        folder = self._containers.folder
        outcome = await self._session.shell(
            command, variables=self._containers.command_variables, user=folder.agent_user
        )
        return shown_outcome(outcome)

    async def verdict(self) -> Mapping[str, Any]:
        """Return `success` (a reward of 1 or more), `score` (the reward) and all rewards by name.

        Raises:
            InfrastructureError: The tests write no reward, in an untouched container either.
        """
        assert self._containers is not None
        grade = await self._containers.run_tests(self._session)
        reward = grade.reward
        if reward is None:
            path = self._containers.folder.path
            if path not in _UNTOUCHED:
                _UNTOUCHED[path] = await self._containers.run_tests(None)
            if not _UNTOUCHED[path].rewards:
                raise InfrastructureError(f"{path}: {_UNTOUCHED[path].reason}, in an untouched container either")
            return {"success": False, "score": 0.0, "no_reward": grade.reason}
        names = {f"reward_{name}": value for name, value in grade.rewards.items() if name != "reward"}
        return {"success": reward >= 1, "score": reward, **names}

    async def close(self) -> None:
        """Remove the container."""
        if self._session is not None:
            self._session.close()
            self._session = None
