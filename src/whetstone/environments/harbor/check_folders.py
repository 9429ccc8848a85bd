"""Check of Harbor folders: their requirements, and the rewards of an untouched container and of the solution."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whetstone.environments.harbor.harbor_containers import HarborContainers, combine_grades, ends_task
from whetstone.environments.harbor.task_folder import find_folders, read_folder
from whetstone.environments.sandbox_grading import Grade
from whetstone.errors import InfrastructureError, RecipeError, TaskError
from whetstone.plugins import validate_options

FolderStatus = Literal["solved", "unsolved", "no solution", "cannot be played"]


@dataclass(frozen=True, slots=True)
class FolderReport:
    """Result of the check of one folder."""

    name: str
    status: FolderStatus
    reason: str = ""
    """Why it is not solved."""
    untouched_reward: float | None = None
    """Reward without any action; None if the tests wrote none."""
    solution_reward: float | None = None
    canary: str = ""
    """File with a canary string: only for evaluation."""
    fetches: tuple[str, ...] = ()
    """Files with commands that request a network."""


async def check_folders(path: Path, options: dict[str, Any]) -> AsyncIterator[FolderReport]:
    """Yield the report of each folder.

    Args:
        path: A task folder, or a folder with task folders.
        options: Options of `HarborContainers`.

    Raises:
        TaskError: There is no folder.
        RecipeError: An option does not exist.
    """

    def known(
        *,
        container: Literal["podman", "docker"] = "podman",
        network: Literal["none", "open"] = "none",
        build_network: Literal["none", "open"] = "none",
        call_seconds: float = 120.0,
    ) -> None: ...

    values = validate_options(known, options)
    for place in find_folders(path):
        yield await _check_folder(place, values)


async def _check_folder(place: Path, options: dict[str, Any]) -> FolderReport:
    try:
        folder = read_folder(place)
    except TaskError as error:
        return FolderReport(place.name, "cannot be played", str(error))
    about: dict[str, Any] = {"canary": folder.canary, "fetches": folder.fetches}
    if folder.problems:
        return FolderReport(folder.name, "cannot be played", "; ".join(folder.problems), **about)
    containers = HarborContainers(folder, **options)
    try:
        untouched, _ = await _play(containers, has_solution=False)
        about["untouched_reward"] = untouched.reward
        if without := [step for step in folder.steps if step.solution_script is None]:
            missing = (without[0].solution / "solve.sh").relative_to(folder.path)
            return FolderReport(folder.name, "no solution", f"{missing} is missing", **about)
        grade, failure = await _play(containers, has_solution=True)
        about["solution_reward"] = grade.reward
    except (InfrastructureError, RecipeError, TaskError) as error:
        return FolderReport(folder.name, "cannot be played", str(error), **about)
    if untouched.reward is not None and untouched.reward >= 1:
        return FolderReport(folder.name, "unsolved", "its tests pass without any action", **about)
    if grade.reward is not None and grade.reward >= 1 and not (failure and len(folder.steps) > 1):
        return FolderReport(folder.name, "solved", "", **about)
    reasons = [grade.reason or f"reward {grade.reward:g}", f"solution: {failure}" if failure else ""]
    if folder.fetches and options.get("network", "none") == "none":
        reasons.append(f"there is no network, and {', '.join(folder.fetches)} fetch{'es' * (len(folder.fetches) == 1)}")
    return FolderReport(folder.name, "unsolved", "; ".join(filter(None, reasons)), **about)


async def _play(containers: HarborContainers, *, has_solution: bool) -> tuple[Grade, str]:
    """Play all steps of a folder by their solutions, or without any action.

    Returns:
        (combined grade, why a solution failed or "").
    """
    folder, grades, failures = containers.folder, list[Grade](), list[str]()
    session = await containers.open()
    try:
        for step in folder.steps:
            await containers.prepare_step(session, step)
            if has_solution and (failure := await containers.play_solution(session, step)):
                failures.append(f"{step.name}: {failure}" if step.name else failure)
            grades.append(await containers.run_tests(session, step))
            if ends_task(step, grades[-1]):
                break
    finally:
        session.close()
    combined = combine_grades(folder, grades)
    if len(grades) < len(folder.steps) and has_solution:
        failures.append(f"no step after {folder.steps[len(grades) - 1].name} was played")
    return combined, "; ".join(failures)


def count_statuses(reports: Sequence[FolderReport]) -> dict[str, int]:
    """Return the number of folders by status."""
    return {status: count for status in ("solved", "unsolved", "no solution", "cannot be played")
            if (count := sum(report.status == status for report in reports))}  # fmt: skip
