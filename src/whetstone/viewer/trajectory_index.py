"""Queries on the index of the trajectories of a run, which `IndexUpdates` fills while the run writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whetstone.chat.api.requests import RefusedError
from whetstone.json_lines import parse_object
from whetstone.viewer.index_file import IndexFile, read_components
from whetstone.viewer.index_updates import IndexUpdates
from whetstone.viewer.run_files import RunFiles
from whetstone.viewer.trajectory_query import TrajectoryQuery

_NAMED = ("part", "kind", "ended", "tools", "outcomes", "marks", "task", "file")
"""Columns with the number of a name; rows are narrow, since a filter scans all of them."""
_NUMBERS = ("step", "reward", "success", "turns", "calls", "tokens", "seconds", "version", "of_group")
_TEXTS = ("id", "error", "parent", "fork_turn", "role", "excerpt", "place", "length")


@dataclass(frozen=True, slots=True)
class Page:
    """Result of a query: totals over all matching trajectories, and the requested rows."""

    count: int
    """Number of matching trajectories."""
    reward: float | None
    """Mean reward of the scored trajectories."""
    success: float | None
    """Fraction of successes among trajectories with a known outcome."""
    rows: list[dict[str, Any]]
    """Rows with the reward's components under `parts`."""


class TrajectoryIndex:
    """Index of the trajectories of one run, for filtering and paging.

    Args:
        run_dir: The run.
        folder: Folder of indexes; None: the user's cache.
        follow_symlinks: Whether a symbolic link may lead out of the run.
    """

    def __init__(self, run_dir: Path, *, folder: Path | None = None, follow_symlinks: bool = False) -> None:
        self.run_dir = run_dir.resolve()
        self.file = IndexFile(self.run_dir, folder)
        self._run_files = RunFiles(self.run_dir, follow_symlinks)
        self._updates = IndexUpdates(self.run_dir, self._run_files, self.file)

    def refresh(self, *, max_seconds: float | None = None) -> bool:
        """Index the lines that the run has written since the last call; see `IndexUpdates.refresh`."""
        return self._updates.refresh(max_seconds=max_seconds)

    def count_read_bytes(self) -> tuple[int, int]:
        """Return (bytes of trajectory files that are indexed, bytes that exist)."""
        return self._updates.count_read_bytes()

    def close(self) -> None:
        """Remove the index if it is in a temporary folder."""
        self.file.close()

    def query_page(self, query: TrajectoryQuery) -> Page:
        """Return the requested rows of the trajectories that match a query, with totals over all matches.

        Raises:
            RefusedError: The query is invalid.
        """
        with self.file.connect() as db:
            components = read_components(db)
            where, bound = query.sql_condition(components)
            order = query.build_order_clause(components)
            try:
                count, reward, success = db.execute(
                    f"SELECT count(*), avg(reward), avg(success) FROM trajectories t WHERE {where}", bound
                ).fetchone()
                numbers = db.execute(
                    f"SELECT number FROM trajectories t WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
                    [*bound, query.limit, query.offset],
                ).fetchall()
            except sqlite3.OperationalError as error:
                raise RefusedError(f"the index cannot answer this query: {error}") from None
            rows = _rows(db, components, [number for (number,) in numbers])
        return Page(count, reward, success, rows)

    def list_filter_values(self) -> dict[str, Any]:
        """Return the values that each filter can have.

        The filters are parts, kinds, end reasons, tools, outcomes, reward components, and the range of steps.
        """
        with self.file.connect() as db:
            values_by_filter: dict[str, Any] = {}
            for name in ("part", "kind", "ended"):
                sql = (
                    f"SELECT n.name, c FROM (SELECT {name} AS k, count(*) AS c FROM trajectories GROUP BY 1) "
                    "JOIN names n ON n.number = k WHERE n.name != '' ORDER BY c DESC LIMIT 60"
                )
                values_by_filter[name] = [list(row) for row in db.execute(sql)]
            for name, key in (("tool", "name"), ("outcome", "outcome")):
                sql = f"SELECT {key}, count(*) FROM calls GROUP BY 1 ORDER BY 2 DESC LIMIT 60"
                values_by_filter[name] = [list(row) for row in db.execute(sql)]
            values_by_filter["components"] = sorted(read_components(db))
            values_by_filter["steps"] = list(db.execute("SELECT min(step), max(step) FROM trajectories").fetchone())
        return values_by_filter

    def find_row(self, id: str, part: str) -> dict[str, Any]:
        """Return the index row of a trajectory.

        Args:
            id: Id of the trajectory.
            part: Part of the run: `training`, or `evaluation NAME`.

        Raises:
            RefusedError: The part has no trajectory with this id (status 404).
        """
        with self.file.connect() as db:
            numbers = db.execute(
                "SELECT number FROM texts_of JOIN trajectories USING (number) "
                "WHERE id = ? AND part = (SELECT number FROM names WHERE name = ?)",
                (id, part),
            ).fetchall()
            rows = _rows(db, read_components(db), [number for (number,) in numbers])
        if not rows:
            raise RefusedError(f"no trajectory {id[:200]} in {part[:80]}", status=404)
        return rows[-1]

    def read_line(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Read the whole trajectory of an index row from its file, as a JSON object.

        Raises:
            RefusedError: The file has changed since it was indexed (status 409).
        """
        path = self.run_dir / "trajectories" / row["file"]
        try:
            with self._run_files.open(path) as file:
                file.seek(row["place"])
                trajectory = parse_object(file.read(row["length"]))
            if str(trajectory.get("id")) == row["id"]:
                return trajectory
        except (OSError, ValueError):
            pass
        raise RefusedError(f"{path.name}: changed after it was indexed; it is indexed again", status=409)

    def group_members(self, group: int) -> list[dict[str, Any]]:
        """Return the index rows of all trajectories of a group, in file order."""
        with self.file.connect() as db:
            numbers = db.execute("SELECT number FROM trajectories WHERE of_group = ? ORDER BY 1", (group,)).fetchall()
            return _rows(db, read_components(db), [number for (number,) in numbers])

    def group_state(self, group: int) -> str:
        """Return the state of a group in training, such as the update that used it; empty if unknown."""
        with self.file.connect() as db:
            row = db.execute("SELECT state FROM groups WHERE number = ?", (group,)).fetchone()
        return str(row[0]) if row is not None else ""

    def list_problems(self) -> list[str]:
        """Describe the damaged lines and files that were found while indexing."""
        with self.file.connect() as db:
            return [f"{file}: {problem}" for file, problem in db.execute("SELECT file, said FROM remarks LIMIT 50")]

    def count_trajectories(self) -> int:
        """Return the number of indexed trajectories."""
        with self.file.connect() as db:
            return int(db.execute("SELECT count(*) FROM trajectories").fetchone()[0])

    def list_calls(self) -> list[tuple[str, str, int | None, float, int, str]]:
        """Return every tool call of training episodes.

        Returns:
            (tool, outcome, step, seconds, whether the result was cut, error message) per call.
        """
        with self.file.connect() as db:
            return db.execute(
                "SELECT c.name, c.outcome, t.step, c.seconds, c.truncated, c.error FROM calls c "
                f"JOIN trajectories t ON t.number = c.trajectory WHERE t.part = {_TRAINING}"
            ).fetchall()

    def iterate_steps(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (step, trajectory as a JSON object) of each training trajectory from step `first` to `last`."""
        with self.file.connect() as db:
            rows = db.execute(
                "SELECT id, step, n.name, place, length FROM trajectories t JOIN texts_of USING (number) "
                f"JOIN names n ON n.number = t.file WHERE t.part = {_TRAINING} AND step BETWEEN ? AND ? "
                "ORDER BY step, t.number",
                (first, last),
            ).fetchall()
        for id, step, file, place, length in rows:
            yield step, self.read_line({"id": id, "file": file, "place": place, "length": length})


_TRAINING = "(SELECT number FROM names WHERE name = 'training')"


def page_to_json(page: Page) -> dict[str, Any]:
    """Convert the result of a query into a JSON object."""
    return asdict(page)


def _rows(db: sqlite3.Connection, components: Mapping[str, str], numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows with the given numbers, in the given order, with names instead of their numbers.

    Reward components are in `parts`.
    """
    names = [f"(SELECT name FROM names WHERE number = t.{key}) AS {key}" for key in _NAMED]
    columns = ", ".join(("t.number AS number", *_NUMBERS, *_TEXTS, *names, *components.values()))
    marks = ", ".join("?" * len(numbers))
    cursor = db.execute(
        f"SELECT {columns} FROM trajectories t JOIN texts_of x ON x.number = t.number WHERE t.number IN ({marks})",
        list(numbers),
    )
    keys = [column[0] for column in cursor.description]
    rows = {}
    for values in cursor:
        row = dict(zip(keys, values, strict=True))
        parts = {name: row.pop(place) for name, place in components.items()}
        row["parts"] = {name: value for name, value in parts.items() if value is not None}
        rows[row["number"]] = row
    return [rows[number] for number in numbers]
