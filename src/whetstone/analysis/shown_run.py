"""What does a run look like on a page of text, while it goes on as when it is over? And one of its trajectories?

Easy to get wrong: a run that goes on is read while it is written, so a last line may be half of one. It is left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from whetstone.errors import RunDirectoryError
from whetstone.recipe import Resolved
from whetstone.record import read_json, run_recipe
from whetstone.reporting import Journal
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import read_trajectory

_NEAREST = 3


@dataclass(frozen=True)
class ShownRun:
    """A run, as it stands in its directory."""

    run_dir: Path

    @cached_property
    def recipe(self) -> Resolved:
        """Its recipe.

        Raises:
            RunDirectoryError: There is no run.
        """
        return run_recipe(self.run_dir)

    @cached_property
    def summary(self) -> Mapping[str, Any] | None:
        """What it came to; None: it is not over."""
        found: Mapping[str, Any] | None = read_json(self.run_dir / "summary.json")
        return found

    @cached_property
    def folders(self) -> tuple[Path, ...]:
        """The run directories of its stages, in order; itself where it has none of its own."""
        stages = sorted((self.run_dir / "stages").glob("*/recipe.yaml"), key=lambda path: _number(path.parent.name))
        return tuple(path.parent for path in stages) or (self.run_dir,)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Its steps, of all stages."""
        return [row for folder in self.folders for row in Journal(folder).read()]

    @cached_property
    def evaluations(self) -> list[tuple[str, Mapping[str, Any]]]:
        """(name, what it came to) of its evaluations, in the order in which they were made."""
        paths = [path for folder in self.folders for path in (folder / "evaluations").glob("*.json")]
        found = {path.stem: read_json(path) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)}
        first = {"untrained": found.pop("untrained")} if "untrained" in found else {}
        return list({**first, **found}.items())

    def stages(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """(stage, its steps) of those that began."""
        found: list[tuple[str, list[dict[str, Any]]]] = []
        for row in self.rows:
            if not found or found[-1][0] != row["stage"]:
                found.append((row["stage"], []))
            found[-1][1].append(row)
        return found

    def last_ids(self, count: int) -> list[str]:
        """Ids of trajectories of the file that was written last."""
        files = self._files()
        return [row["id"] for row in _read(files[-1])][:count] if files else []

    def trajectory(self, id: str) -> tuple[Path, Trajectory]:
        """(the run directory it is of, the trajectory with this id)

        Raises:
            RunDirectoryError: There is none; the message has the nearest.
        """
        self.recipe  # noqa: B018  says where there is no run
        wanted = id.encode()
        for path in reversed(self._files()):
            if wanted not in path.read_bytes():
                continue
            read: dict[str, Trajectory] = {}
            for row in _read(path):
                try:
                    trajectory = read_trajectory(row, read)
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise RunDirectoryError(f"{path}: holds what is no trajectory: {str(error)[:160]}") from None
                read[trajectory.id] = trajectory
                if trajectory.id == id:
                    return path.parent.parent, trajectory
        raise RunDirectoryError(f"{self.run_dir}: no trajectory {id}{self._nearest(id)}")

    def _nearest(self, id: str) -> str:
        ids = [row["id"] for path in self._files() for row in _read(path) if isinstance(row.get("id"), str)]
        near = difflib.get_close_matches(id, ids, n=_NEAREST, cutoff=0.5) or ids[-_NEAREST:]
        return f"; the nearest are {', '.join(near)}" if near else "; none is on record yet"

    def _files(self) -> Sequence[Path]:
        """Files of trajectories, those of training behind those of evaluations, and the last step last."""
        paths = [path for folder in self.folders for path in (folder / "trajectories").glob("*.jsonl")]
        return sorted(
            paths, key=lambda path: (path.name.startswith("step-"), self.folders.index(path.parent.parent), path.name)
        )


def _read(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for line in file:
            try:
                row = orjson.loads(line)
            except ValueError:
                return
            if isinstance(row, dict):
                yield row


def _number(name: str) -> tuple[int, str]:
    first = name.partition("-")[0]
    return (int(first) if first.isdigit() else 0, name)
