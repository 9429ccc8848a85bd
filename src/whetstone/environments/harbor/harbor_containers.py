"""Containers of a Harbor folder: one for the agent, and new ones for the tests.

The tests run in a container that the agent never used: it has the files of the agent's container, not its processes.
"""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from whetstone.environments.harbor.task_folder import (
    SOLUTION,
    HarborFolder,
    HarborStep,
    resolve_variables,
)
from whetstone.environments.sandbox_grading import Grade, GradingRun
from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox import CONTAINER_LIMITS, ContainerOptions, ContainerPool, Ending, Outcome, shared_containers
from whetstone.sandbox.archive_transfer import upload_host_folder
from whetstone.sandbox.containers.container_session import ContainerSession


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
            await self._wait_until_healthy(session, self.folder.healthcheck)
        except BaseException:
            session.close()
            raise
        return session

    async def _start(self, snapshot: str = "") -> ContainerSession:
        folder = self.folder
        cpu_seconds = max(self.call_seconds, sum(step.agent_seconds for step in folder.steps))
        limits = replace(
            CONTAINER_LIMITS, wall_seconds=self.call_seconds, cpu_seconds=cpu_seconds,
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

    async def prepare_step(self, session: ContainerSession, step: HarborStep) -> None:
        """Copy the files of a step to the working directory, run its `setup.sh`, and wait for its health check.

        Raises:
            InfrastructureError: The script or the check fails.
        """
        if step.workdir_files is not None:
            staged, target = f"{session.scratch_folder}/step-files", session.working_folder
            await upload_host_folder(session, step.workdir_files, staged)
            copy = f"chmod -R a+rX {staged} && cp -R {staged}/. {shlex.quote(target)}/ && rm -rf {staged}"
            await self._run_or_raise(session, copy, step, "its files")
            if (step.workdir_files / "setup.sh").is_file():
                script = shlex.quote(f"{target.rstrip('/')}/setup.sh")
                command = f"cd {shlex.quote(target)} && {session.shell_program} {script}"
                await self._run_or_raise(session, command, step, "setup.sh", user=step.agent_user)
        await self._wait_until_healthy(session, step.healthcheck)

    async def _run_or_raise(
        self, session: ContainerSession, command: str, step: HarborStep, what: str, *, user: str = "0"
    ) -> None:
        outcome = await session.shell(
            f"({command})", wall_seconds=step.agent_seconds, variables=self.command_variables, user=user
        )
        if failure := _describe_failure(outcome):
            raise InfrastructureError(f"{step.path}: {what} failed: {failure}")

    async def _wait_until_healthy(self, session: ContainerSession, check: Mapping[str, Any]) -> None:
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

    async def play_solution(self, session: ContainerSession, step: HarborStep) -> str:
        """Run the solution of a step; return why it failed, or "" if it ended with exit code 0."""
        own = resolve_variables(self.folder.solution_variables)
        await upload_host_folder(session, step.solution, SOLUTION)
        await session.shell(f"chmod -R a+rX {SOLUTION}; chmod a+x {SOLUTION}/solve.sh", user="0")
        outcome = await session.shell(
            f"{SOLUTION}/solve.sh",
            wall_seconds=step.agent_seconds,
            variables={**self.command_variables, "DEBIAN_FRONTEND": "noninteractive", **own},
            user=step.agent_user,
        )
        return _describe_failure(outcome)

    async def run_tests(self, session: ContainerSession | None, step: HarborStep) -> Grade:
        """Run the tests of a step in a new container with the files of a session; without one, in an untouched one.

        Raises:
            InfrastructureError: The runtime has failed.
        """
        variables = {**self.command_variables, **resolve_variables(step.verifier_variables)}
        run = GradingRun(tests=step.tests, seconds=step.verifier_seconds, variables=variables, user=step.verifier_user)
        snapshot = "" if session is None else await session.snapshot()
        try:
            grader = await self._start(snapshot)
        finally:
            if snapshot:
                self.container_pool.discard_snapshot(snapshot)
        try:
            return await run.run_in(grader)
        finally:
            grader.close()


_SHELLS: dict[str, str] = {}
"""Program that reads commands, by image: `bash` if the image has it."""


def _describe_failure(outcome: Outcome) -> str:
    """Return why a command failed; "" if it ended with exit code 0."""
    if outcome.ending is not Ending.OK:
        return outcome.error or outcome.ending.value
    lines = outcome.output.strip().splitlines()
    return f"exit code {outcome.exit_code}: {lines[-1] if lines else ''}"[:300] if outcome.exit_code else ""


def ends_task(step: HarborStep, grade: Grade) -> bool:
    """Return whether no later step is played: there is no reward, or one is below the minimum of the step."""
    rewards = {"reward": grade.reward, **grade.rewards} if grade.reward is not None else {}
    return not rewards or any(rewards.get(name, -math.inf) < least for name, least in step.min_rewards.items())


def combine_grades(folder: HarborFolder, grades: Sequence[Grade]) -> Grade:
    """Return the grade of a task from those of its steps that were played.

    As in Harbor, the rewards are means over these steps, or those of the last one (`multi_step_reward_strategy`). A
    step whose files are the reason that it has no reward counts as 0; Harbor leaves it out.
    """
    if len(grades) == 1 or folder.reward_strategy == "final":
        return grades[-1]
    names = sorted({name for grade in grades for name in grade.rewards})
    means = {name: sum(grade.rewards.get(name, 0.0) for grade in grades) / len(grades) for name in names}
    return Grade(means, next((grade.reason for grade in grades if grade.reason), ""), "")
