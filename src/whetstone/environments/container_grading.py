"""Grading of an episode in a separate container, in which no code of the agent has run, without a network.

The container has the files of the episode and none of its processes: all changed files for Harbor folders, as their
format requires; the files of the workspace for `grading` of other environments, in a container of the same or another
image. A command runs there. Its exit code is the reward, or the file that it writes.

Note:
    A command may write no reward because of the agent's files, or because it is broken. If it writes none for untouched
    files either, the fault is not the agent's, and the episode is invalid instead of a reward of 0.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol, runtime_checkable

from whetstone.errors import InfrastructureError, RecipeError, SandboxError, TaskError
from whetstone.plugins import OptionError, validate_options
from whetstone.sandbox import ContainerOptions, ContainerPool, Ending, Limits, shared_containers
from whetstone.sandbox.containers.container_archives import FolderTooLargeError
from whetstone.sandbox.containers.container_session import ContainerSession
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

TESTS = "/tests"
"""Folder of a container with the tests."""
_SCRIPT = f"{TESTS}/test.sh"
_LOGS = "/logs/verifier"
_MAX_REWARD_BYTES = 1 << 16
_MAX_LOG_CHARACTERS = 500
_PREPARE = (
    f"rm -rf {_LOGS}; mkdir -p {_LOGS} /logs/agent /logs/artifacts; chmod 777 {_LOGS} /logs/agent /logs/artifacts; "
    f"chmod +x {_SCRIPT} 2> /dev/null"
)
_UNTOUCHED: dict[Hashable, Grade] = {}
"""Grade of untouched files, by the tests that graded them."""
CopyFiles = Callable[[ContainerSession], Awaitable[None]]
"""Copies the files of an episode into a container."""


@runtime_checkable
class RunsInContainers(Protocol):
    """Tool class whose calls can run in a container of the episode."""

    container_pool: ContainerPool | None
    """Containers of the episodes; None if the calls run elsewhere."""


@dataclass(frozen=True, slots=True)
class Grade:
    """Result of the command that grades."""

    rewards: Mapping[str, float]
    """Rewards by name; empty if the command wrote none."""
    reason: str
    """Why there is no reward, or why the command was ended."""
    log: str
    """End of the output."""

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


@dataclass(frozen=True, slots=True)
class GradingRun:
    """Command that grades the files of a container."""

    command: str = _SCRIPT
    tests: Path | None = None
    """Folder that is copied to `/tests`."""
    test_files: Mapping[str, str] = field(default_factory=dict)
    """Further files of `/tests`: contents by relative path."""
    reward: Literal["exit_code", "file"] = "file"
    """Source of the reward."""
    seconds: float = 300.0
    """Time limit."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""
    user: str = ""
    """User of the command; that of the image by default."""

    async def run_in(self, grader: ContainerSession) -> Grade:
        """Run the command in a container with the files of an episode.

        Raises:
            InfrastructureError: The runtime has failed.
        """
        if self.test_files:
            with tempfile.TemporaryDirectory() as place:
                await asyncio.to_thread(self._write_tests, Path(place))
                await grader.upload_folder(Path(place), TESTS)
        elif self.tests is not None:
            await grader.upload_folder(self.tests, TESTS)
        await grader.shell(_PREPARE, user="0")
        outcome = await grader.shell(
            f"(\n{self.command}\n) > {_LOGS}/test-stdout.txt 2>&1",
            wall_seconds=self.seconds,
            variables=dict(self.variables),
            user=self.user,
        )
        log = (await grader.shell(f"tail -c 2000 {_LOGS}/test-stdout.txt")).output
        last = (log.strip().splitlines() or ["no output"])[-1][:200]
        has_ended = outcome.ending is Ending.OK
        if self.reward == "exit_code":
            reason = f"exit code {outcome.exit_code} (last line: {last})" if has_ended else outcome.error or ""
            passed = has_ended and outcome.exit_code == 0
            return Grade({"reward": float(passed)}, "" if passed else reason, log)
        if not has_ended:
            return Grade({}, f"the tests did not end: {outcome.error}", log)
        for name, parse in (("reward.json", parse_reward_json), ("reward.txt", parse_reward_text)):
            reward_file = await grader.read(f"{_LOGS}/{name}", max_bytes=_MAX_REWARD_BYTES)
            if reward_file.ending is Ending.OK:
                try:
                    return Grade(parse((reward_file.data or b"").decode(errors="replace")), "", log)
                except ValueError as error:
                    return Grade({}, f"{name}: {error}", log)
        return Grade({}, f"the tests wrote no reward (last line: {last})", log)

    def _write_tests(self, place: Path) -> None:
        if self.tests is not None:
            shutil.copytree(self.tests, place, symlinks=True, dirs_exist_ok=True)
        for name, text in self.test_files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")


async def build_verdict(
    grade: Grade, place: str, tests: Hashable, grade_untouched: Callable[[], Awaitable[Grade]]
) -> dict[str, Any]:
    """Return `success` (a reward of 1 or more), `score` (the reward) and all rewards by name.

    Args:
        grade: Grade of the episode.
        place: Place of the tests in messages.
        tests: Key of the tests; untouched files are graded at most once for each.
        grade_untouched: Grades files that no agent has changed.

    Raises:
        InfrastructureError: There is no reward, and none for untouched files either.
    """
    reward = grade.reward
    if reward is None:
        if tests not in _UNTOUCHED:
            _UNTOUCHED[tests] = await grade_untouched()
        if not _UNTOUCHED[tests].rewards:
            raise InfrastructureError(f"{place}: {_UNTOUCHED[tests].reason}, in an untouched container either")
        return {"success": False, "score": 0.0, "no_reward": grade.reason}
    names = {f"reward_{name}": value for name, value in grade.rewards.items() if name != "reward"}
    reason = {"failed_grading": grade.reason[:_MAX_LOG_CHARACTERS]} if grade.reason else {}
    return {"success": reward >= 1, "score": reward, **names, **reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingOptions:
    """Grading of the workspace in a separate container: `grading: {command: …}`, with `tests`, or both.

    The container has no network. The files of the episode replace those of its workspace before the command runs there.
    """

    command: str = ""
    """Command for `sh`, run in the workspace; `/tests/test.sh` by default."""
    tests: str = ""
    """Folder whose copy is at `/tests` while the command runs, and never in an episode. A task can add files under
    `test_files` in its private data: contents by relative path."""
    reward: Literal["exit_code", "file"] = "exit_code"
    """`exit_code`: 1 if the command ends with exit code 0, else 0. `file`: the number in `/logs/verifier/reward.txt`,
    or the numbers by name in `/logs/verifier/reward.json`."""
    image: str = ""
    """Name of a local image; that of the episode by default."""
    workspace: str = ""
    """Folder with the files to grade; by default `/workspace` for agents, and the `WORKDIR` of the image for tools."""
    seconds: float = 300.0
    """Time limit of the command; it counts towards the deadline of the episode."""

    def __post_init__(self) -> None:
        folder = Path(self.tests)
        if not (self.command or self.tests):
            raise OptionError("grading", "set command, or tests: a folder with test.sh")
        if self.tests and not folder.is_dir():
            raise OptionError("grading.tests", f"there is no folder {self.tests}; create it")
        if not (self.command or (folder / "test.sh").is_file()):
            raise OptionError("grading.tests", f"{folder / 'test.sh'} is missing; create it, or set grading.command")
        if not self.seconds > 0:
            raise OptionError("grading.seconds", f"must be above 0, got {self.seconds:g}")
        if self.workspace and not PurePosixPath(self.workspace).is_absolute():
            raise OptionError("grading.workspace", f"must be an absolute path, got {self.workspace}")


def _parse_options(values: Mapping[str, Any]) -> GradingOptions:
    """Return the options in a recipe's `grading: {…}`.

    Raises:
        OptionError: A key does not exist or has a value of another type, or a folder is missing.
    """
    try:
        return GradingOptions(**validate_options(GradingOptions, dict(values)))
    except OptionError as error:
        key = error.key if error.key.startswith("grading") else f"grading.{error.key}"
        raise OptionError(key, error.message) from None


class WorkspaceGrading:
    """Grades workspaces of episodes, each in a new container.

    Args:
        options: Values of `grading` in a recipe; see `GradingOptions`.
        containers: Containers of the episodes, whose image the grading containers have unless the options name another.
            None: the episodes have no containers.

    Raises:
        OptionError: An option is invalid.
        RecipeError: The runtime or the image is missing.
    """

    def __init__(self, options: Mapping[str, Any], containers: ContainerPool | None) -> None:
        self.options = _parse_options(options)
        image = {"image": self.options.image, "build": "", "rootfs": ""} if self.options.image else {}
        if containers is None and not image:
            raise OptionError("grading.image", "is required, because episodes have no containers; set a local image")
        try:
            if containers is None:
                self._pool = shared_containers(ContainerOptions(container="podman", **image))  # type: ignore[arg-type]
            else:
                wanted = replace(containers.options, network="none", **image)  # type: ignore[arg-type]
                self._pool = containers if wanted == containers.options else shared_containers(wanted)
        except SandboxError as error:
            raise RecipeError(f"grading: {error}") from None

    async def grade_files(
        self, task: Task, limits: Limits, workdir: str, copy_files: CopyFiles, copy_original: CopyFiles
    ) -> dict[str, Any]:
        """Return the verdict on the files of an episode; see `build_verdict`.

        Args:
            task: Task of the episode.
            limits: Limits of the container.
            workdir: Working directory of the container.
            copy_files: Copies the files of the episode into the working directory.
            copy_original: Copies the files with which the episode started.

        Raises:
            TaskError: `test_files` of the task are invalid.
            InfrastructureError: The runtime has failed, or the command writes no reward for the original files either.
        """
        options, test_files = self.options, _parse_test_files(task)
        tests = Path(options.tests) if options.tests else None
        run = GradingRun(options.command or _SCRIPT, tests, test_files, options.reward, options.seconds)

        async def grade_copy(copy: CopyFiles) -> Grade:
            grader = self._pool.session(limits=limits, workdir=workdir)
            try:
                await copy(grader)
                return await run.run_in(grader)
            except FolderTooLargeError as error:
                return Grade({"reward": 0.0}, str(error), "")
            finally:
                grader.close()

        key = (options, tuple(sorted(test_files.items())))
        return await build_verdict(
            await grade_copy(copy_files), f"grading of {task.id}", key, lambda: grade_copy(copy_original)
        )


def _parse_test_files(task: Task) -> dict[str, str]:
    """Return the files under `test_files` in the private data of a task, by relative path.

    Raises:
        TaskError: They are not texts by relative path.
    """
    files = task.private.get("test_files", {})
    if not isinstance(files, Mapping) or not all(isinstance(text, str) for text in files.values()):
        raise TaskError(f"{task.id}: test_files must be texts by relative path")
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise TaskError(f"{task.id}: test_files: {name} is outside of {TESTS}; use a relative path")
    return dict(files)


class ContainerGrading:
    """Component without tools that grades the container of `shell` and `files` at the end of an episode.

    Args:
        options: Values of `grading` in a recipe.
        containers: Containers of the tools.
    """

    def __init__(self, options: Mapping[str, Any], containers: ContainerPool) -> None:
        self._grading = WorkspaceGrading(options, containers)
        self._session: ContainerSession | None = None
        self._task: Task | None = None

    def tools(self) -> list[Any]:
        """Return an empty list."""
        return []

    def open(self, episode: Episode) -> None:
        """Store the task and the session of the tools."""
        self._session, self._task = episode.shared["session"], episode.task

    async def verdict(self) -> Mapping[str, Any]:
        """Return the verdict on the files of the container.

        Raises:
            RecipeError: The working directory is the root of the file system.
            InfrastructureError: See `WorkspaceGrading.grade_files`.
        """
        session, task = self._session, self._task
        assert session is not None
        assert task is not None
        await session.start()
        folder = self._grading.options.workspace or session.working_folder
        if folder == "/":
            raise RecipeError("grading.workspace: the image has no WORKDIR; set the folder with the files to grade")

        async def copy_files(grader: ContainerSession) -> None:
            await session.copy_folder(folder, grader)

        async def copy_original(grader: ContainerSession) -> None:
            grader.files = dict(session.files)

        return await self._grading.grade_files(task, session.limits, folder, copy_files, copy_original)
