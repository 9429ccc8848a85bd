"""Environment of Harbor folders: a shell in the container of the task, and the tests of the task as verdict.

A task with several steps has an instruction and tests for each; its steps share the container of the agent.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from whetstone.chat import Message, user
from whetstone.environments.harbor.harbor_containers import HarborContainers, combine_grades, ends_task
from whetstone.environments.harbor.task_folder import HarborFolder, HarborStep, read_folder
from whetstone.environments.protocol import NEW_CONVERSATION, Observation, StepResult
from whetstone.environments.sandbox_grading import Grade, build_verdict, grade_or_raise
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.errors import TaskError
from whetstone.sandbox.containers.container_session import ContainerSession
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.sandbox_tools import shown_outcome
from whetstone.tools.schema import Tool, tool_from_function


class HarborShell:
    """A shell in the container of a Harbor folder: one tool, `shell`. The tests of the folder judge the episode.

    Args:
        options: Options of `HarborContainers` by name; all but the folder.
    """

    def __init__(self, *, options: Mapping[str, Any]) -> None:
        self._options = options
        self.effects = "read" if options["network"] == "none" else None
        """Effect of the commands; unknown with a network."""
        self._containers: HarborContainers | None = None
        self._session: ContainerSession | None = None
        self._grades: list[Grade] = []
        """Grades of the steps that have ended."""
        self._is_over = False

    @property
    def task_folder(self) -> HarborFolder:
        """Return the folder of the open episode."""
        assert self._containers is not None
        return self._containers.folder

    @property
    def step(self) -> HarborStep:
        """Return the current step; after the last one, the last one."""
        return self.task_folder.steps[min(len(self._grades), len(self.task_folder.steps) - 1)]

    async def open(self, episode: Episode) -> None:
        """Start the container of the task."""
        try:
            folder = await asyncio.to_thread(read_folder, Path(episode.task.private["folder"]))
        except KeyError:
            raise TaskError("harbor: a task has no folder; use `tasks: {source: harbor, path: …}`") from None
        self._containers, self._grades, self._is_over = HarborContainers(folder, **self._options), [], False
        self._session = await self._containers.open()
        await self._containers.prepare_step(self._session, folder.steps[0])

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
        outcome = await self._session.shell(
            command, variables=self._containers.command_variables, user=self.step.agent_user
        )
        return shown_outcome(outcome)

    async def finish_step(self) -> tuple[float, HarborStep | None]:
        """Grade the current step and prepare the next one.

        Returns:
            (reward of the step, next step). None if the task is over.

        Raises:
            InfrastructureError: The tests write no reward, in an untouched container either, or the next step cannot
                be prepared.
        """
        assert self._containers is not None
        assert self._session is not None
        step, grade = self.step, await self._grade_step()
        self._grades.append(grade)
        if ends_task(step, grade) or len(self._grades) == len(self.task_folder.steps):
            self._is_over = True
            return grade.reward or 0.0, None
        await self._containers.prepare_step(self._session, self.step)
        return grade.reward or 0.0, self.step

    async def verdict(self) -> Mapping[str, Any]:
        """Return `success` (a reward of 1 or more), `score` (the reward) and all rewards by name.

        A success of several steps also requires that all were played; `steps` is the number of played ones.

        Raises:
            InfrastructureError: The tests write no reward, in an untouched container either.
        """
        if not self._is_over:
            self._grades.append(await self._grade_step())
            self._is_over = True
        verdict, planned = build_verdict(combine_grades(self.task_folder, self._grades)), len(self.task_folder.steps)
        if planned == 1:
            return verdict
        played = len(self._grades)
        return {**verdict, "success": verdict["success"] and played == planned, "steps": played}

    async def _grade_step(self) -> Grade:
        assert self._containers is not None
        containers, session, step = self._containers, self._session, self.step
        place = str(step.path)
        return await grade_or_raise(
            lambda: containers.run_tests(session, step), place, place, lambda: containers.run_tests(None, step)
        )

    async def close(self) -> None:
        """Remove the container."""
        if self._session is not None:
            self._session.close()
            self._session = None


class HarborEnvironment(ToolEnvironment):
    """Environment of Harbor task folders: a shell in a container of the task, judged by its tests.

    An answer without a call ends the task, or its current step. The reward of that turn is the reward of the step, and
    the next observation is the instruction of the next step.

    Args:
        container: Container runtime.
        network: Network of the container.
        build_network: Network of `RUN` instructions while images are built.
        call_seconds: Time limit of one command in seconds.
        max_result_characters: Maximum length of a tool result; longer results keep their head and tail.
        resume_trajectory: Whether a later step continues the conversation; false: it starts a new one, as in Harbor.
    """

    def __init__(
        self,
        *,
        container: Literal["podman", "docker"] = "podman",
        network: Literal["none", "open"] = "none",
        build_network: Literal["none", "open"] = "none",
        call_seconds: float = 120.0,
        max_result_characters: int = 8000,
        resume_trajectory: bool = False,
    ) -> None:
        options = {
            "container": container, "network": network, "build_network": build_network, "call_seconds": call_seconds
        }  # fmt: skip
        super().__init__(
            tools=[functools.partial(HarborShell, options=options)], max_result_characters=max_result_characters
        )
        (self._shell,) = (each for each in self.toolset.holders if isinstance(each, HarborShell))
        self._resumes = resume_trajectory

    async def step(self, action: Message) -> StepResult:
        """Execute the calls of an action, or end a step of the task with an answer.

        Raises:
            InfrastructureError: The runtime has failed, or the tests write no reward, in an untouched container either.
        """
        result = await super().step(action)
        if not result.terminated or len(self._shell.task_folder.steps) == 1:
            return result
        reward, following = await self._shell.finish_step()
        if following is None:
            return replace(result, reward=reward)
        message = user(following.instruction)
        if self._resumes:
            return StepResult(Observation((message,)), reward=reward)
        return StepResult(Observation((message,), self.toolset.specs, conversation=NEW_CONVERSATION), reward=reward)
