"""Trajectory files: JSON Lines with one trajectory per line, in the format of `trajectory_json.py`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import fmean

from whetstone.atomic_write import write_text
from whetstone.errors import RunDirectoryError, WhetstoneError
from whetstone.json_lines import read_objects
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import encode_trajectory, read_trajectory


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write trajectories to a file atomically, replacing an existing file.

    Raises:
        SaveError: The file could not be written; an existing file is unchanged.
    """
    write_text(path, "".join(encode_trajectory(t).decode() + "\n" for t in trajectories))


def read_trajectories(
    path: Path,
    *,
    error: type[WhetstoneError] = RunDirectoryError,
    problem: str = "  not a trajectory",
    may_be_incomplete: bool = False,
) -> list[Trajectory]:
    """Read the trajectories of a file that `write_trajectories` wrote.

    A fork shares its common turns with its parent, if the parent precedes it in the file.

    Args:
        path: File of trajectories as JSON lines.
        error: Class of the error.
        problem: Text of its message between line number and reason.
        may_be_incomplete: Whether an incomplete last line is ignored.

    Raises:
        WhetstoneError: The file does not exist, or a line cannot be read; the message names file and line.
    """
    if not path.is_file():
        raise error(f"{path}: no such trajectory file")
    read: dict[str, Trajectory] = {}
    parse = partial(read_trajectory, before=read)
    rows = read_objects(path, parse, error=error, problem=problem, may_be_incomplete=may_be_incomplete)
    for trajectory in rows:
        read[trajectory.id] = trajectory
    return list(read.values())


def read_task_outcomes(path: Path) -> dict[str, float]:
    """Read a trajectory file and return the success rate of scored episodes, by task id.

    Raises:
        RunDirectoryError: The file does not exist, or a line cannot be read.
    """
    outcomes: dict[str, list[bool]] = {}
    for trajectory in read_trajectories(path):
        if trajectory.score is not None:
            outcomes.setdefault(trajectory.task_id, []).append(trajectory.solved)
    return {task: fmean(solved) for task, solved in outcomes.items()}
