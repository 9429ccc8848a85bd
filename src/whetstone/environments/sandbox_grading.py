"""Grading of an episode in a separate sandbox, in which no code of the agent has run, without a network.

The sandbox has the files of the episode and none of its processes: all changed files for Harbor folders, as their
format requires; the files of the workspace for `grading` of other environments, in a sandbox of the same kind: a
container, namespaces, or an environment of Harbor. A command runs there. Its exit code is the reward, or the file that
it writes.

Note:
    There may be no reward because of the agent's files, such as a deleted `tar`, or because the command or the sandbox
    is broken. If there is none for untouched files either, the fault is not the agent's, and the episode is invalid
    instead of a reward of 0.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shlex
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, Protocol, runtime_checkable

from whetstone.errors import InfrastructureError, RecipeError, SandboxError, TaskError
from whetstone.plugins import OptionError, validate_options
from whetstone.sandbox import (
    ContainerOptions,
    Ending,
    Isolation,
    Limits,
    Outcome,
    Sandbox,
    SandboxSession,
    shared_containers,
)
from whetstone.sandbox.archive_transfer import upload_host_folder
from whetstone.sandbox.isolation import WORK
from whetstone.sandbox.protocol import SessionPool
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

TESTS_VARIABLE, LOGS_VARIABLE = "WHETSTONE_TESTS", "WHETSTONE_LOGS"
"""Environment variables of the command: the folder with the tests, and that of the reward files."""
_MAX_REWARD_BYTES = 1 << 16
_MAX_LOG_CHARACTERS = 500
_UNTOUCHED: dict[Hashable, Grade] = {}
"""Grade of untouched files, by the tests that graded them."""
PackFiles = Callable[[IO[bytes]], Awaitable[Outcome]]
"""Writes the files of an episode as a tar archive; the outcome is that of the agent's code."""


@runtime_checkable
class HasSession(Protocol):
    """Tool class whose calls run in a session of the episode."""

    session_pool: SessionPool
    """Factory of the sessions."""
    keeps_files: bool
    """Whether files last from call to call."""


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
    """Command that grades the files of a session."""

    command: str = ""
    """Command for `sh`; the file `test.sh` of the tests by default."""
    tests: Sequence[Path] = ()
    """Folders of this machine with the tests; files of a later one replace those of an earlier one."""
    test_files: Mapping[str, str] = field(default_factory=dict)
    """Further files of the tests: contents by relative path."""
    reward: Literal["exit_code", "file"] = "file"
    """Source of the reward."""
    seconds: float = 300.0
    """Time limit."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""
    user: str = ""
    """User of the command, in containers; that of the image by default."""

    async def run_in(self, grader: SandboxSession, folder: str = "") -> Grade:
        """Run the command in a session with the files of an episode.

        The tests are copied to `tests` in the scratch folder of the session, which is `/tests` in containers. Reward
        files are in its `logs/verifier`.

        Args:
            grader: Session without processes of the episode.
            folder: Folder in which the command runs; that of the session by default.

        Raises:
            InfrastructureError: The sandbox has failed, or the tests cannot be copied.
        """
        tests, logs = f"{grader.scratch_folder}/tests", f"{grader.scratch_folder}/logs/verifier"
        if self.test_files or len(self.tests) > 1:
            with tempfile.TemporaryDirectory() as place:
                await asyncio.to_thread(self._write_tests, Path(place))
                await upload_host_folder(grader, Path(place), tests)
        elif self.tests:
            await upload_host_folder(grader, self.tests[0], tests)
        script, log_file = shlex.quote(f"{tests}/test.sh"), shlex.quote(f"{logs}/test-stdout.txt")
        await grader.shell(_prepare_command(logs, script), user="0")
        moved = f"cd -- {shlex.quote(folder)} || exit 1; " if folder else ""
        outcome = await grader.shell(
            f"{moved}(\n{self.command or script}\n) > {log_file} 2>&1",
            wall_seconds=self.seconds,
            variables={TESTS_VARIABLE: tests, LOGS_VARIABLE: logs, **self.variables},
            user=self.user,
        )
        log = (await grader.shell(f"tail -c 2000 {log_file}")).output
        last = (log.strip().splitlines() or ["no output"])[-1][:200]
        has_ended = outcome.ending is Ending.OK
        if self.reward == "exit_code":
            reason = f"exit code {outcome.exit_code} (last line: {last})" if has_ended else outcome.error or ""
            passed = has_ended and outcome.exit_code == 0
            return Grade({"reward": float(passed)}, "" if passed else reason, log)
        if not has_ended:
            return Grade({}, f"the tests did not end: {outcome.error}", log)
        for name, parse in (("reward.json", parse_reward_json), ("reward.txt", parse_reward_text)):
            reward_file = await grader.read(f"{logs}/{name}", max_bytes=_MAX_REWARD_BYTES)
            if reward_file.ending is Ending.OK:
                try:
                    return Grade(parse((reward_file.data or b"").decode(errors="replace")), "", log)
                except ValueError as error:
                    return Grade({}, f"{name}: {error}", log)
        return Grade({}, f"the tests wrote no reward (last line: {last})", log)

    def _write_tests(self, place: Path) -> None:
        for folder in self.tests:
            shutil.copytree(folder, place, symlinks=True, dirs_exist_ok=True)
        for name, text in self.test_files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")


def _prepare_command(logs: str, script: str) -> str:
    """Return the command that makes the folders of logs empty and writable, and the script executable."""
    others = [f"{logs.removesuffix('verifier')}{name}" for name in ("agent", "artifacts")]
    folders = shlex.join([logs, *others])
    return f"rm -rf {shlex.quote(logs)}; mkdir -p {folders}; chmod 777 {folders}; chmod +x {script} 2> /dev/null"


async def grade_or_raise(
    grade_episode: Callable[[], Awaitable[Grade]],
    place: str,
    tests: Hashable,
    grade_untouched: Callable[[], Awaitable[Grade]],
) -> Grade:
    """Grade the files of an episode; the grade has no rewards if these files are the reason.

    Args:
        grade_episode: Grades the files of the episode.
        place: Place of the tests in messages.
        tests: Key of the tests; untouched files are graded at most once for each, and again if the sandbox fails.
        grade_untouched: Grades files that no agent has changed.

    Raises:
        InfrastructureError: There is no reward, and none for untouched files either.
    """
    try:
        grade = await grade_episode()
    except InfrastructureError as error:  # the agent is the cause if untouched files can be graded now
        grade = Grade({}, str(error), "")
        _UNTOUCHED.pop(tests, None)
    if grade.reward is None:
        if tests not in _UNTOUCHED:
            _UNTOUCHED[tests] = await grade_untouched()
        if not _UNTOUCHED[tests].rewards:
            raise InfrastructureError(f"{place}: {_UNTOUCHED[tests].reason}, for untouched files either")
    return grade


def build_verdict(grade: Grade) -> dict[str, Any]:
    """Return `success` (a reward of 1 or more), `score` (the reward, or 0) and all rewards by name."""
    reward = grade.reward
    if reward is None:
        return {"success": False, "score": 0.0, "no_reward": grade.reason[:_MAX_LOG_CHARACTERS]}
    names = {f"reward_{name}": value for name, value in grade.rewards.items() if name != "reward"}
    reason = {"failed_grading": grade.reason[:_MAX_LOG_CHARACTERS]} if grade.reason else {}
    return {"success": reward >= 1, "score": reward, **names, **reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingOptions:
    """Grading of the workspace in a separate sandbox: `grading: {command: …}`, with `tests`, or both.

    The sandbox has no network. The files of the episode replace those of its workspace before the command runs there.
    Its variables `WHETSTONE_TESTS` and `WHETSTONE_LOGS` are the folders of the tests and of the reward files.
    """

    command: str = ""
    """Command for `sh`, run in the workspace; `$WHETSTONE_TESTS/test.sh` by default."""
    tests: str = ""
    """Folder whose copy is at `$WHETSTONE_TESTS` while the command runs (`/tests` in containers), and never in an
    episode. A task can add files under `test_files` in its private data: contents by relative path."""
    reward: Literal["exit_code", "file"] = "exit_code"
    """`exit_code`: 1 if the command ends with exit code 0, else 0. `file`: the number in `$WHETSTONE_LOGS/reward.txt`,
    or the numbers by name in `$WHETSTONE_LOGS/reward.json` (`/logs/verifier` in containers)."""
    image: str = ""
    """Name of a local image; that of the episode by default. Namespaces have none."""
    workspace: str = ""
    """Folder with the files to grade. By default `/workspace` for agents in containers, the `WORKDIR` of the image for
    tools, and the folder of the session in namespaces."""
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


def _check_workspace(workspace: str, isolation: Isolation) -> None:
    """Check that a folder to grade is one that sessions of a sandbox without an image can write.

    Raises:
        OptionError: It is not.
    """
    is_inside = PurePosixPath(os.path.normpath(workspace)).is_relative_to(WORK)
    if isolation is not Isolation.NAMESPACES or not is_inside:
        message = f"must be in {WORK} of namespaces, got {workspace}; remove it to grade the folder of the session"
        raise OptionError("grading.workspace", message)


class WorkspaceGrading:
    """Grades workspaces of episodes, each in a new session.

    Args:
        options: Values of `grading` in a recipe; see `GradingOptions`.
        pool: Factory of the sessions of the episodes, whose kind and image the grading sessions have. None: the
            episodes have no sessions, and containers of the image in the options grade them.

    Raises:
        OptionError: An option is invalid.
        RecipeError: The runtime or the image is missing, or the sandbox cannot be closed.
    """

    def __init__(self, options: Mapping[str, Any], pool: SessionPool | None) -> None:
        self.options = _parse_options(options)
        image = self.options.image
        if pool is None and not image:
            raise OptionError("grading.image", "is required, because episodes have no sandbox; set a local image")
        if self.options.workspace and isinstance(pool, Sandbox):
            _check_workspace(self.options.workspace, pool.isolation)
        try:
            pool = pool or shared_containers(ContainerOptions(container="podman", image=image))
            self._pool, self._create_grader = pool, pool.grader_factory(image)
        except OptionError as error:
            raise OptionError(f"grading.{error.key}", error.message) from None
        except SandboxError as error:
            raise RecipeError(f"grading: {error}") from None

    async def grade_files(
        self, task: Task, limits: Limits, folder: str, pack_episode: PackFiles, pack_original: PackFiles
    ) -> dict[str, Any]:
        """Return the verdict on the files of an episode; see `build_verdict` and `grade_or_raise`.

        Args:
            task: Task of the episode.
            limits: Limits of the grading session.
            folder: Folder of the files. In a sandbox without a separate file system it is replaced by another one.
            pack_episode: Packs the files at the end of the episode.
            pack_original: Packs the files with which the episode started.

        Raises:
            TaskError: `test_files` of the task are invalid.
            InfrastructureError: The sandbox has failed, or the command writes no reward for the original files either.
        """
        options, test_files = self.options, _parse_test_files(task)
        tests = (Path(options.tests),) if options.tests else ()
        run = GradingRun(options.command, tests, test_files, options.reward, options.seconds)

        async def grade_archive(archive: IO[bytes]) -> Grade:
            grader = self._create_grader(limits)
            try:
                await grader.start()
                scratch = grader.scratch_folder
                target = f"{scratch}/workspace" if scratch == grader.working_folder else folder
                copied = await grader.upload_archive(archive, target)
                if copied.ending is not Ending.OK:
                    return Grade({}, f"the workspace cannot be copied: {copied.error}", "")
                return await run.run_in(grader, target)
            finally:
                if (closing := grader.close()) is not None:
                    await closing

        async def grade_files_of(pack: PackFiles) -> Grade:
            with tempfile.TemporaryFile() as archive:
                packed = await pack(archive)
                if packed.ending is not Ending.OK:
                    return Grade({}, packed.error or packed.ending.value, "")
                try:
                    return await grade_archive(archive)
                except InfrastructureError:  # such as a lost connection
                    return await grade_archive(archive)

        key = (self._pool, options, tuple(sorted(test_files.items())))
        place = f"grading of {task.id}"
        return build_verdict(
            await grade_or_raise(
                lambda: grade_files_of(pack_episode), place, key, lambda: grade_files_of(pack_original)
            )
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
            raise TaskError(f"{task.id}: test_files: {name} is outside of the folder; use a relative path")
    return dict(files)


class ToolGrading:
    """Component without tools that grades the files of `shell`, `files` and `python` at the end of an episode.

    Args:
        options: Values of `grading` in a recipe.
        pool: Factory of the tools' sessions.
    """

    def __init__(self, options: Mapping[str, Any], pool: SessionPool) -> None:
        self._grading, self._pool = WorkspaceGrading(options, pool), pool
        self._session: SandboxSession | None = None
        self._task: Task | None = None

    def tools(self) -> list[Any]:
        """Return an empty list."""
        return []

    def open(self, episode: Episode) -> None:
        """Store the task and the session of the tools."""
        self._session, self._task = episode.shared["session"], episode.task

    async def verdict(self) -> Mapping[str, Any]:
        """Return the verdict on the files of the session.

        Raises:
            RecipeError: The working directory is the root of the file system.
            InfrastructureError: See `WorkspaceGrading.grade_files`.
        """
        session, task = self._session, self._task
        assert session is not None
        assert task is not None
        await session.start()

        async def pack_original(archive: IO[bytes]) -> Outcome:
            untouched = self._pool.session(limits=session.limits)
            untouched.files = dict(session.files)
            try:
                await untouched.start()
                return await untouched.download_archive(self._graded_folder(untouched), archive)
            finally:
                if (closing := untouched.close()) is not None:
                    await closing

        folder = self._graded_folder(session)
        return await self._grading.grade_files(
            task, session.limits, folder, lambda archive: session.download_archive(folder, archive), pack_original
        )

    def _graded_folder(self, session: SandboxSession) -> str:
        folder = self._grading.options.workspace or session.working_folder
        if folder == "/":
            raise RecipeError("grading.workspace: the image has no WORKDIR; set the folder with the files to grade")
        return folder
