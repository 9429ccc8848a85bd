"""How are trajectories kept? JSON Lines, one trajectory a line; what is in a line says `trajectory_json.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson

from whetstone.atomic_write import write_text
from whetstone.errors import RunDirectoryError
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import encoded_trajectory, read_trajectory


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Replace `path` by these trajectories, whole or not at all.

    Raises:
        SaveError: It could not be written; what was there is untouched.
    """
    write_text(path, "".join(encoded_trajectory(t).decode() + "\n" for t in trajectories))


def read_trajectories(path: Path) -> list[Trajectory]:
    """What `write_trajectories` wrote. Forks share their parent's turns where the parent stands before them.

    Raises:
        RunDirectoryError: No such file, or a line that cannot be read; the message names file and line.
    """
    if not path.is_file():
        raise RunDirectoryError(f"{path}: no such trajectory file")
    read: dict[str, Trajectory] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                trajectory = read_trajectory(orjson.loads(line), read)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise RunDirectoryError(
                    f"{path}:{number}  not a trajectory: {type(error).__name__}: {error}"
                ) from error
            read[trajectory.id] = trajectory
    return list(read.values())
