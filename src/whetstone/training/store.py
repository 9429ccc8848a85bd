"""What has a run sampled, and what became of it? An append-only record: nothing is lost, nothing counts twice.

    store/journal.jsonl              one event a line: admitted, kept, lost, consumed, updated, fault
    store/turns.jsonl                turns of episodes under way, so that they can go on behind them
    trajectories/step-NNNNNN.jsonl   the trajectories themselves, one a line, as their groups finish

A group is kept when its trajectories are written and the journal says so; which groups an update takes is on disk
before the update begins. Weights need no entry of their own: an update is a function of the weights before it and of
its groups, so a run that was killed makes the updates on record again, from its last checkpoint, with the very same
groups, and goes on behind them.

Easy to get wrong: a line may be torn by a kill, and only the last one may. What a torn tail held is as if it had not
happened; damage in the middle is said aloud, and everything behind it is forgotten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from whetstone.atomic_write import saving
from whetstone.errors import RunDirectoryError
from whetstone.reporting import decoded_trajectories, decoded_turn, encoded_trajectory, encoded_turn
from whetstone.trajectory import Group, Task, Turn

_TURNS_KEPT = 64 * 2**20
"""Bytes of turns after which those of finished episodes are left out."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a group's trajectories are."""

    file: str
    offset: int
    length: int
    checksum: int


class RunStore:
    """The record of one run. `open` reads what is there; everything else appends.

    Args:
        run_dir: The run directory.
        groups_per_file: Groups whose trajectories share a file, by their numbers.
        say: Told in a line of what had to be forgotten.
    """

    def __init__(self, run_dir: Path, *, groups_per_file: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.run_dir, self.groups_per_file, self.say = run_dir, groups_per_file, say
        self.journal_path, self.turns_path = run_dir / "store" / "journal.jsonl", run_dir / "store" / "turns.jsonl"
        self.admitted: dict[int, int] = {}
        """Groups ever let in → the version at which each was."""
        self.lost: dict[int, str] = {}
        """Groups that came to nothing → why."""
        self.consumed: dict[int, list[int]] = {}
        """Updates → the groups each took."""
        self.updated: set[int] = set()
        """Updates that were carried through at least once."""
        self.begun: dict[int, int] = {}
        """Updates → how often each was begun without having been carried through."""
        self.quarantined: set[int] = set()
        """Groups no update may take: one that did brought the learner down."""
        self.faults: dict[str, int] = {}
        """Kinds of fault → how many there were."""
        self._kept: dict[int, _Place] = {}
        self._turns: dict[str, list[bytes]] = {}
        self._ends: dict[str, int] = {}
        """Files of trajectories → where what is kept in them ends."""
        self._touched: set[Path] = set()
        self._read()
        with saving(self.journal_path):
            self.journal_path.parent.mkdir(parents=True, exist_ok=True)
            (run_dir / "trajectories").mkdir(exist_ok=True)
            self._journal = open(self.journal_path, "ab", buffering=0)  # noqa: SIM115 - held as long as the store
        self._turns_file = self._rewritten_turns()

    # ------------------------------------------------------------ groups

    def admit(self, number: int, version: int) -> None:
        """A group was let in."""
        self.admitted[number] = version
        self._note({"event": "admitted", "group": number, "version": version})

    def keep(self, group: Group) -> None:
        """A group is finished; its trajectories are written before the journal knows of them."""
        path = self.run_dir / "trajectories" / f"step-{group.number // self.groups_per_file + 1:06d}.jsonl"
        lines = b"".join(encoded_trajectory(t) + b"\n" for t in group.trajectories)
        offset = self._ends.get(path.name, 0)  # behind it may be what a kill left of a group
        with saving(path), open(path, "r+b" if path.exists() else "w+b") as file:
            file.seek(offset)
            file.write(lines)
            file.truncate()
        self._ends[path.name] = offset + len(lines)
        place = _Place(path.name, offset, len(lines), zlib.crc32(lines))
        self._kept[group.number] = place
        self._touched.add(path)
        for trajectory in group.trajectories:
            self._turns.pop(trajectory.id, None)
        self._note(
            {
                "event": "kept",
                "group": group.number,
                "task": group.task.id,
                "file": place.file,
                "offset": place.offset,
                "length": place.length,
                "checksum": place.checksum,
            }
        )

    def lose(self, number: int, reason: str) -> None:
        """A group came to nothing: `failed`, `expired`, `quarantined`."""
        self.lost[number] = reason
        self._note({"event": "lost", "group": number, "reason": reason})

    def holds(self, number: int) -> bool:
        """Whether a group's trajectories are on record."""
        return number in self._kept

    def load(self, number: int, task: Task) -> Group:
        """A group on record.

        Raises:
            RunDirectoryError: What is on disk is not what was written.
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
            raise RunDirectoryError(f"{path}: group {number} is damaged (its checksum does not match the journal's)")
        return Group(task, tuple(decoded_trajectories(lines.splitlines())), number)

    def waiting(self) -> list[int]:
        """Groups that were let in and neither consumed nor lost."""
        gone = {number for numbers in self.consumed.values() for number in numbers} | self.lost.keys()
        return [number for number in self.admitted if number not in gone]

    # ------------------------------------------------------------ updates

    def consume(self, update: int, numbers: Sequence[int]) -> None:
        """This update takes these groups. To survive a power cut it stands between two calls of `sync`: the first
        brings the trajectories to disk, the second this."""
        self.consumed[update] = list(numbers)
        self._note({"event": "consumed", "update": update, "groups": list(numbers)})

    def begin(self, update: int) -> None:
        """An update begins; one that never ends is known by this."""
        self.begun[update] = self.begun.get(update, 0) + 1
        self._note({"event": "begun", "update": update})

    def finish(self, update: int) -> None:
        """It was carried through."""
        self.begun.pop(update, None)
        self.updated.add(update)
        self._note({"event": "updated", "update": update})

    def quarantine(self, update: int) -> list[int]:
        """The groups of this update are never drawn again, and the update takes others. The groups."""
        numbers = self.consumed.pop(update, [])
        for number in numbers:
            self.quarantined.add(number)
            self.lose(number, "quarantined")
        self.begun.pop(update, None)
        self._note({"event": "quarantined", "update": update})
        self.sync()
        return numbers

    def fault(self, kind: str, said: str) -> None:
        """Something failed that should not have."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self._note({"event": "fault", "kind": kind, "said": said, "time": round(time.time(), 3)})

    def sync(self) -> None:
        """Everything so far survives a power cut. May be called from another thread."""
        touched, self._touched = self._touched, set()
        with saving(self.journal_path):
            for path in touched:
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            os.fsync(self._journal.fileno())

    def close(self) -> None:
        """Let go of the files."""
        with contextlib.suppress(ValueError):
            self.sync()
        self._journal.close()
        self._turns_file.close()

    # ------------------------------------------------------------ turns of episodes under way

    def played(self, episode: str) -> tuple[Turn, ...]:
        """See `EpisodeRecord.played`."""
        return tuple(decoded_turn(orjson.loads(line)["turn"]) for line in self._turns.get(episode, ()))

    def add(self, episode: str, turn: Turn) -> None:
        """See `EpisodeRecord.add`."""
        line = orjson.dumps({"episode": episode, "turn": encoded_turn(turn)}) + b"\n"
        self._turns.setdefault(episode, []).append(line)
        self._turns_bytes += len(line)
        if self._turns_bytes > _TURNS_KEPT:
            self._turns_file.close()
            self._turns_file = self._rewritten_turns()
        else:
            self._append(self._turns_file, self.turns_path, line)

    def drop(self, episode: str) -> None:
        """See `EpisodeRecord.drop`."""
        if self._turns.pop(episode, None):
            self._append(self._turns_file, self.turns_path, orjson.dumps({"episode": episode, "turn": None}) + b"\n")

    # ------------------------------------------------------------ files

    def _note(self, event: dict[str, Any]) -> None:
        self._append(self._journal, self.journal_path, orjson.dumps(event) + b"\n")

    def _append(self, file: FileIO, path: Path, line: bytes) -> None:
        with saving(path):
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rewritten_turns(self) -> FileIO:
        """The turns of episodes that are not over, and nothing else, in a file to append to."""
        aside = self.turns_path.with_name(".turns.jsonl.partial")
        with saving(self.turns_path, aside):
            aside.write_bytes(b"".join(line for lines in self._turns.values() for line in lines))
            os.replace(aside, self.turns_path)
            self._turns_bytes = 0
            return open(self.turns_path, "ab", buffering=0)

    def _read(self) -> None:
        """What is on record; a torn tail is cut off, and what stands behind a damaged line is moved aside."""
        heard: dict[str, Callable[[dict[str, Any]], None]] = {
            "admitted": lambda e: self.admitted.__setitem__(e["group"], e["version"]),
            "kept": self._heard_kept,
            "lost": lambda e: self.lost.__setitem__(e["group"], e["reason"]),
            "consumed": lambda e: self.consumed.__setitem__(e["update"], e["groups"]),
            "begun": lambda e: self.begun.__setitem__(e["update"], self.begun.get(e["update"], 0) + 1),
            "updated": self._heard_updated,
            "quarantined": self._heard_quarantined,
            "fault": lambda e: self.faults.__setitem__(e["kind"], self.faults.get(e["kind"], 0) + 1),
        }
        for event in self._lines(self.journal_path):
            heard[event["event"]](event)
        for row in self._lines(self.turns_path):
            if row["turn"] is None:
                self._turns.pop(row["episode"], None)
            else:
                self._turns.setdefault(row["episode"], []).append(orjson.dumps(row) + b"\n")

    def _heard_kept(self, event: dict[str, Any]) -> None:
        place = _Place(event["file"], event["offset"], event["length"], event["checksum"])
        self._kept[event["group"]] = place
        self._ends[place.file] = max(self._ends.get(place.file, 0), place.offset + place.length)

    def _heard_updated(self, event: dict[str, Any]) -> None:
        self.updated.add(event["update"])
        self.begun.pop(event["update"], None)

    def _heard_quarantined(self, event: dict[str, Any]) -> None:
        self.quarantined.update(self.consumed.pop(event["update"], []))
        self.begun.pop(event["update"], None)

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        if not path.is_file():
            return
        content = path.read_bytes()
        good = 0
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            try:
                row = orjson.loads(line) if line.endswith(b"\n") else None
            except orjson.JSONDecodeError:
                row = None
            if row is None:
                if good + len(line) < len(content):
                    aside = path.with_name(f"{path.name}.damaged")
                    aside.write_bytes(content[good:])
                    self.say(f"{path}:{number}  is damaged; from there on the record is forgotten (kept in {aside})")
                with saving(path), open(path, "r+b") as file:
                    file.truncate(good)
                return
            good += len(line)
            yield row
