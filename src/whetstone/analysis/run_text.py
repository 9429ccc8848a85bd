"""Reads a run, in progress or finished, and its trajectories for `whetstone show`.

Note: A run in progress is read while it is written, so the last line may be incomplete. It is left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from whetstone.errors import RunDirectoryError
from whetstone.json_lines import read_objects
from whetstone.recipe import Resolved
from whetstone.record import read_json, run_recipe
from whetstone.reporting import Journal
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import read_trajectory

_NEAREST = 3

T = TypeVar("T")


@dataclass(frozen=True)
class RunText:
    """Lazily loaded content of a run directory, for `whetstone show`."""

    run_dir: Path
    """The run directory."""

    @cached_property
    def recipe(self) -> Resolved:
        """Load the resolved recipe of the run.

        Raises:
            RunDirectoryError: The directory is not a run.
        """
        return run_recipe(self.run_dir)

    @cached_property
    def summary(self) -> Mapping[str, Any] | None:
        """Load `summary.json`; None if the run is not finished."""
        summary: Mapping[str, Any] | None = read_json(self.run_dir / "summary.json")
        return summary

    @cached_property
    def folders(self) -> tuple[Path, ...]:
        """Return the run directories of the stages in order; the run directory itself for a run of one stage."""
        stages = sorted((self.run_dir / "stages").glob("*/recipe.yaml"), key=lambda path: _number(path.parent.name))
        return tuple(path.parent for path in stages) or (self.run_dir,)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Read the rows of `metrics.jsonl` of all stages."""
        return [row for folder in self.folders for row in Journal(folder).read()]

    @cached_property
    def evaluations(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Load all evaluations in chronological order, as (name, result)."""
        paths = [path for folder in self.folders for path in (folder / "evaluations").glob("*.json")]
        results = {path.stem: read_json(path) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)}
        first = {"untrained": results.pop("untrained")} if "untrained" in results else {}
        return list({**first, **results}.items())

    def list_stages(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Return the started stages in order, as (name, rows of its steps)."""
        stages: list[tuple[str, list[dict[str, Any]]]] = []
        for row in self.rows:
            if not stages or stages[-1][0] != row["stage"]:
                stages.append((row["stage"], []))
            stages[-1][1].append(row)
        return stages

    def last_ids(self, count: int) -> list[str]:
        """Return the ids of the last `count` trajectories in the trajectory file that was written last."""
        files = self._files()
        return list(self._read(files[-1], lambda row: str(row["id"]), []))[:count] if files else []

    def find_trajectory(self, id: str) -> tuple[Path, Trajectory]:
        """Find a trajectory by its id in all trajectory files; damaged lines are skipped.

        Returns:
            (run directory of the file, trajectory)

        Raises:
            RunDirectoryError: No trajectory has this id; the message names similar ids and the first damaged line.
        """
        self.recipe  # noqa: B018  raises if there is no run
        wanted, damaged = id.encode(), list[str]()
        for path in reversed(self._files()):
            if wanted not in path.read_bytes():
                continue
            read: dict[str, Trajectory] = {}
            for trajectory in self._read(path, partial(read_trajectory, before=read), damaged):
                read[trajectory.id] = trajectory
                if trajectory.id == id:
                    return path.parent.parent, trajectory
        ids = [id for path in self._files() for id in self._read(path, lambda row: str(row["id"]), damaged)]
        near = difflib.get_close_matches(id, ids, n=_NEAREST, cutoff=0.5) or ids[-_NEAREST:]
        names = f"; the nearest are {', '.join(near)}" if near else "; none is on record yet"
        damage = f"; a damaged line is left out: {damaged[0]}" if damaged else ""
        raise RunDirectoryError(f"{self.run_dir}: no trajectory {id}{names}{damage}")

    def _read(self, path: Path, parse: Callable[[dict[str, Any]], T], damaged: list[str]) -> Iterator[T]:
        return read_objects(path, parse, on_damage=lambda line, reason: damaged.append(f"{path}:{line}: {reason}"))

    def _files(self) -> Sequence[Path]:
        """Return the trajectory files: evaluations first, then training steps in order."""
        paths = [path for folder in self.folders for path in (folder / "trajectories").glob("*.jsonl")]
        return sorted(
            paths, key=lambda path: (path.name.startswith("step-"), self.folders.index(path.parent.parent), path.name)
        )


def _number(name: str) -> tuple[int, str]:
    first = name.partition("-")[0]
    return (int(first) if first.isdigit() else 0, name)
