"""Environment of Harbor folders: a shell in the container of the task, and the tests of the task as verdict.

The tests run in a container that the agent never used: it has the files of the agent's container, not its processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from whetstone.environments.harbor.task_folder import SOLUTION, HarborFolder, read_folder, resolve_variables
from whetstone.environments.sandbox_grading import Grade, GradingRun, build_verdict
from whetstone.errors import InfrastructureError, SandboxError, TaskError
from whetstone.sandbox import CONTAINER_LIMITS, ContainerOptions, ContainerPool, Ending, shared_containers
from whetstone.sandbox.archive_transfer import upload_host_folder
from whetstone.sandbox.containers.container_session import ContainerSession
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.sandbox_tools import shown_outcome
from whetstone.tools.schema import Tool, tool_from_function


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
        image: dict[str, Any] = {"image": folder.image} if folder.image else {"build": str(folder.build_folder)}
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
        await upload_host_folder(session, folder.path / "solution", SOLUTION)
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

    @property
    def _grading_run(self) -> GradingRun:
        folder = self.folder
        variables = {**self.command_variables, **resolve_variables(folder.verifier_variables)}
        return GradingRun(
            tests=folder.path / "tests", seconds=folder.verifier_seconds, variables=variables, user=folder.verifier_user
        )

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
            return await self._grading_run.run_in(grader)
        finally:
            grader.close()


_SHELLS: dict[str, str] = {}
"""Program that reads commands, by image: `bash` if the image has it."""


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
        containers = self._containers
        path, session = containers.folder.path, self._session
        return await build_verdict(
            lambda: containers.run_tests(session), str(path), path, lambda: containers.run_tests(None)
        )

    async def close(self) -> None:
        """Remove the container."""
        if self._session is not None:
            self._session.close()
            self._session = None
