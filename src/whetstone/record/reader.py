"""Reads the journal of a run: sampled groups, and their use.

    store/journal.jsonl              one event per line: `admitted`, `kept`, `lost`, `consumed`, `begun`, `updated`, …
    store/turns.jsonl                turns of running episodes, so that they can resume
    trajectories/step-NNNNNN.jsonl   the trajectories themselves, one per line, as their groups finish

Note:
    Only the last line may be incomplete, after an interruption; its event is ignored. After damage in the middle of a
    file, later records are ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

import orjson

from whetstone.errors import RunDirectoryError
from whetstone.json_lines import UNREADABLE, describe_damage, make_shape, parse_json, parse_object, validate_shape
from whetstone.trajectory import Costs, Group, Task, Turn
from whetstone.trajectory_json import decode_task, decode_trajectories, decode_turn

_OF_UPDATE = make_shape(update=int)
_EVENTS = {
    "admitted": make_shape(group=int, version=int, task=NotRequired[int | dict[str, Any]]),
    "kept": make_shape(group=int, file=str, offset=int, length=int, checksum=int, costs=NotRequired[list[int | float]]),
    "lost": make_shape(group=int, reason=str),
    "consumed": make_shape(
        update=int, groups=list[int], passed_over=NotRequired[list[int]], mixed=NotRequired[dict[str, list[int]]]
    ),
    "begun": _OF_UPDATE,
    "updated": _OF_UPDATE,
    "quarantined": _OF_UPDATE,
    "fault": make_shape(kind=str, said=str, episode=NotRequired[str]),
}
_TURNS = make_shape(over=NotRequired[list[str]], episode=NotRequired[str], turn=NotRequired[dict[str, Any]])


@dataclass(frozen=True, slots=True)
class GroupLocation:
    """Location of the trajectories of one group in the files of a run, from a `kept` event of the journal."""

    file: str
    """Name of a file in the `trajectories` folder."""
    offset: int
    """Position of the first line of the group, in bytes."""
    length: int
    """Length of all lines of the group, in bytes."""
    checksum: int
    """CRC-32 of these bytes."""
    costs: Costs = field(default_factory=Costs)
    """Costs of sampling the group."""


class RunRecord:
    """Read-only view of the journal of a run: admitted, finished, lost and consumed groups, and updates.

    Used by resume, replay and analysis. `RunStore` is the subclass that also appends.

    Args:
        run_dir: The run directory.
        forgotten: Called for a file with a damaged end: (path, content of the file, number of valid bytes, number of
            the first damaged line, whether that line is only incomplete). By default nothing is done.
    """

    def __init__(
        self, run_dir: Path, *, forgotten: Callable[[Path, bytes, int, int, bool], None] | None = None
    ) -> None:
        self.run_dir, self._forgotten = run_dir, forgotten
        self.journal_path, self.turns_path = run_dir / "store" / "journal.jsonl", run_dir / "store" / "turns.jsonl"
        self.admitted: dict[int, int] = {}
        """Admitted groups → version at admission."""
        self.tasks: dict[int, int | Task] = {}
        """Admitted groups → index of the task in the source, or the generated task."""
        self.lost: dict[int, str] = {}
        """Groups without a result → reason."""
        self.consumed: dict[int, list[int]] = {}
        """Updates → groups of each."""
        self.passed_over: dict[int, list[int]] = {}
        """Updates → groups that were sampled for each and rejected."""
        self.mixed: dict[int, dict[str, list[int]]] = {}
        """Updates → by source, the position of its first group and the number of its groups."""
        self.updated: set[int] = set()
        """Updates that were completed at least once."""
        self.begun: dict[int, int] = {}
        """Updates → number of starts without completion."""
        self.faults: dict[str, int] = {}
        """Kinds of fault → number."""
        self.causes: list[str] = []
        """Causes of episodes without a score, one per episode."""
        self._kept: dict[int, GroupLocation] = {}
        self._turns: dict[str, list[bytes]] = {}
        self._ends: dict[str, int] = {}
        """Trajectory files → end of their valid content, in bytes."""
        self._read()

    @property
    def quarantined_groups(self) -> set[int]:
        """Return the numbers of groups that are excluded from training because an update with them crashed."""
        return {number for number, reason in self.lost.items() if reason == "quarantined"}

    def too_long(self, *, before: int) -> int:
        """Count the groups with a number below `before` that were lost because the prompt fills the context."""
        return sum(reason == "too_long" and number < before for number, reason in self.lost.items())

    def has_group(self, number: int) -> bool:
        """Return whether the trajectories of a group are on disk."""
        return number in self._kept

    def load(self, number: int, task: Task) -> Group:
        """Load the trajectories of a recorded group from disk.

        Args:
            number: Number of a group for which `has_group` is true.
            task: Task of the group, which the files do not have.

        Raises:
            RunDirectoryError: The file is missing or damaged.
        """
        place = self._kept[number]
        path = self.run_dir / "trajectories" / place.file
        try:
            with open(path, "rb") as file:
                file.seek(place.offset)
                lines = file.read(place.length)
        except OSError as error:
            raise RunDirectoryError(f"{path}: group {number} cannot be read: {error.strerror}") from error
        if len(lines) != place.length or zlib.crc32(lines) != place.checksum:
            raise RunDirectoryError(
                f"{path}: group {number} is damaged: its checksum differs from the checksum in {self.journal_path}"
            )
        try:
            return Group(task, tuple(decode_trajectories(lines.splitlines())), number, place.costs)
        except ValueError as error:
            raise RunDirectoryError(f"{path}: group {number} cannot be parsed: {describe_damage(error)}") from None

    def list_waiting_groups(self) -> list[int]:
        """Return the numbers of admitted groups that are neither consumed by an update nor lost."""
        finished = {number for numbers in self.consumed.values() for number in numbers} | self.lost.keys()
        return [number for number in self.admitted if number not in finished]

    def played(self, episode: str) -> tuple[Turn, ...]:
        """Return the recorded turns of an unfinished episode; see `EpisodeRecord.played`."""
        return tuple(decode_turn(parse_object(line)["turn"]) for line in self._turns.get(episode, ()))

    def begun_episodes(self, name: str) -> dict[str, tuple[Turn, ...]]:
        """Return the recorded turns of unfinished episodes whose id has the prefix `name`, by episode id."""
        return {episode: self.played(episode) for episode in self._turns if episode.startswith(name)}

    def _read(self) -> None:
        """Read journal and turns, up to the first line that is not JSON.

        Raises:
            RunDirectoryError: A line is JSON but not a valid event; the message names file and line.
        """
        handlers: dict[str, Callable[[Any], None]] = {
            "admitted": self._heard_admitted,
            "kept": self._heard_kept,
            "lost": lambda e: self.lost.__setitem__(e["group"], e["reason"]),
            "consumed": self._heard_consumed,
            "begun": lambda e: self.begun.__setitem__(e["update"], self.begun.get(e["update"], 0) + 1),
            "updated": self._heard_updated,
            "quarantined": self._heard_quarantined,
            "fault": self._heard_fault,
        }

        def hear_event(event: dict[str, Any]) -> None:
            kind = event.get("event")
            if not isinstance(kind, str) or kind not in handlers:
                raise ValueError(f'"event" must be one of {", ".join(handlers)}, got {str(kind)[:40]!r}')
            handlers[kind](validate_shape(_EVENTS[kind], event))

        for path, hear in ((self.journal_path, hear_event), (self.turns_path, self._heard_turn)):
            for number, row in self._lines(path):
                try:
                    if not isinstance(row, dict):
                        raise ValueError(f"a JSON object is expected, got {type(row).__name__}")
                    hear(row)
                except UNREADABLE as error:
                    raise RunDirectoryError(
                        f"{path}:{number}: not a valid run journal: {describe_damage(error)}"
                    ) from None

    def _heard_turn(self, row: dict[str, Any]) -> None:
        read = validate_shape(_TURNS, row)
        for episode in read.get("over", ()):
            self._turns.pop(episode, None)
        if "turn" in read:
            if "episode" not in read:
                raise ValueError("episode: Field required")
            decode_turn(read["turn"])
            self._turns.setdefault(read["episode"], []).append(orjson.dumps(row) + b"\n")

    def _heard_admitted(self, event: dict[str, Any]) -> None:
        self.admitted[event["group"]] = event["version"]
        if "task" in event:
            stored = event["task"]
            self.tasks[event["group"]] = stored if isinstance(stored, int) else decode_task(stored)

    def _heard_consumed(self, event: dict[str, Any]) -> None:
        self.consumed[event["update"]] = event["groups"]
        self.passed_over[event["update"]] = event.get("passed_over", [])
        if "mixed" in event:
            self.mixed[event["update"]] = event["mixed"]

    def _heard_kept(self, event: dict[str, Any]) -> None:
        place = GroupLocation(
            event["file"], event["offset"], event["length"], event["checksum"], Costs(*event.get("costs", ()))
        )
        if Path(place.file).name != place.file or place.file in ("", ".", "..") or min(place.offset, place.length) < 0:
            raise ValueError(f"{place.file!r} is not a file of trajectories")
        self._kept[event["group"]] = place
        self._ends[place.file] = max(self._ends.get(place.file, 0), place.offset + place.length)

    def _heard_updated(self, event: dict[str, Any]) -> None:
        self.updated.add(event["update"])
        self.begun.pop(event["update"], None)

    def _heard_fault(self, event: dict[str, Any]) -> None:
        self.faults[event["kind"]] = self.faults.get(event["kind"], 0) + 1
        if event.get("episode"):
            self.causes.append(event["said"])

    def _heard_quarantined(self, event: dict[str, Any]) -> None:
        self.consumed.pop(event["update"], None)
        self.passed_over.pop(event["update"], None)
        self.mixed.pop(event["update"], None)
        self.begun.pop(event["update"], None)

    def _lines(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Yield (line number, JSON value) of each line of a file, up to the first damaged line."""
        if not path.is_file():
            return
        content = path.read_bytes()
        good = 0
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            try:
                row = parse_json(line) if line.endswith(b"\n") else None
            except ValueError:
                row = None
            if row is None:
                if self._forgotten is not None:
                    self._forgotten(path, content, good, number, good + len(line) >= len(content))
                return
            good += len(line)
            yield number, row
