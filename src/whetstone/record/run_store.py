"""Append-only journal of a run in progress: an interrupted run loses no group and counts none twice.

The files are read by `reader.py`.

A group is recorded when its trajectories are written and the journal has its entry. The groups of an update are on disk
before the update starts. Weights need no entry: an update is a function of the weights before it and of its groups. A
run that was interrupted therefore repeats the recorded updates from its last checkpoint, with the same groups, and
continues after them.

Note:
    An incomplete last line is removed before anything is appended, or the next line would be damaged, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from whetstone.atomic_write import convert_save_errors
from whetstone.json_lines import to_writable
from whetstone.record.reader import GroupLocation, RunRecord
from whetstone.trajectory import Group, Task, Turn
from whetstone.trajectory_json import encode_task, encode_trajectory, encode_turn

_TURNS_KEPT = 64 * 2**20
"""Maximum size in bytes of the turns, after which those of finished episodes are removed."""


class RunStore(RunRecord):
    """Journal of a run in progress: reads existing records and appends new ones. Created by the training loop.

    Args:
        run_dir: The run directory.
        groups_per_file: Number of groups per file of trajectories.
        log: Receives a line about each damaged record.

    Raises:
        SaveError: The files cannot be created.
    """

    def __init__(self, run_dir: Path, *, groups_per_file: int, log: Callable[[str], None] = lambda line: None) -> None:
        self.groups_per_file, self.log = groups_per_file, log
        super().__init__(run_dir, forgotten=self._forget)
        self._touched: set[Path] = set()
        with convert_save_errors(self.journal_path):
            self.journal_path.parent.mkdir(parents=True, exist_ok=True)
            (run_dir / "trajectories").mkdir(exist_ok=True)
            self._journal = open(self.journal_path, "ab", buffering=0)  # noqa: SIM115 - held as long as the store
        self._turns_file = self._rewritten_turns()

    # ------------------------------------------------------------ groups

    def admit_group(self, number: int, version: int, task: int | Task) -> None:
        """Record that sampling of a group starts.

        Args:
            number: Number of the group.
            version: Version of the weights at admission.
            task: Index of the task in the task source, or the task itself if a curriculum generated it.
        """
        self.admitted[number] = version
        self.tasks[number] = task
        stored_task = encode_task(task) if isinstance(task, Task) else task
        self._note({"event": "admitted", "group": number, "version": version, "task": stored_task})

    def store_group(self, group: Group) -> None:
        """Write the trajectories of a finished group, and then its journal entry."""
        path = self.run_dir / "trajectories" / f"step-{group.number // self.groups_per_file + 1:06d}.jsonl"
        lines = b"".join(encode_trajectory(t) + b"\n" for t in group.trajectories)
        offset = self._ends.get(path.name, 0)  # an interrupted group may follow this offset
        with convert_save_errors(path), open(path, "r+b" if path.exists() else "w+b") as file:
            file.seek(offset)
            file.write(lines)
            file.truncate()
        self._ends[path.name] = offset + len(lines)
        place = GroupLocation(path.name, offset, len(lines), zlib.crc32(lines), group.costs)
        self._kept[group.number] = place
        self._touched.add(path)
        self._note(
            {
                "event": "kept",
                "group": group.number,
                "task": group.task.id,
                "file": place.file,
                "offset": place.offset,
                "length": place.length,
                "checksum": place.checksum,
                "costs": list(astuple(group.costs)),
            }
        )
        self._over([trajectory.id for trajectory in group.trajectories])

    def record_lost_group(self, number: int, reason: str) -> None:
        """Record that a group will not be used in an update.

        Args:
            number: Number of the group.
            reason: `failed`, `expired`, `quarantined`, `passed_over`, `too_long` or `recipe_changed`.
        """
        self.lost[number] = reason
        self._note({"event": "lost", "group": number, "reason": reason})

    # ------------------------------------------------------------ updates

    def consume_groups(
        self,
        update: int,
        numbers: Sequence[int],
        passed_over: Sequence[int] = (),
        mixed: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Record which groups an update trains on.

        To survive a power cut, call `flush_to_disk` before this method (for the trajectories) and after it.

        Args:
            update: Index of the update, from 0.
            numbers: Numbers of the groups of the update.
            passed_over: Numbers of the groups that were sampled for the update and rejected.
            mixed: By other source of groups, the position of its first group and the number of its groups.
        """
        self.consumed[update], self.passed_over[update] = list(numbers), list(passed_over)
        event = {"event": "consumed", "update": update, "groups": list(numbers), "passed_over": list(passed_over)}
        if mixed:
            self.mixed[update] = {name: list(span) for name, span in mixed.items()}
            event["mixed"] = self.mixed[update]
        self._note(event)

    def begin(self, update: int) -> None:
        """Record the start of an update, so that a crash during it is detected."""
        self.begun[update] = self.begun.get(update, 0) + 1
        self._note({"event": "begun", "update": update})

    def finish(self, update: int) -> None:
        """Record the completion of an update that `begin` recorded."""
        self.begun.pop(update, None)
        self.updated.add(update)
        self._note({"event": "updated", "update": update})

    def record_quarantine(self, update: int) -> list[int]:
        """Exclude the groups of an update that crashed the learner; the update is repeated with other groups.

        Returns:
            Numbers of the excluded groups.
        """
        numbers = self.consumed.pop(update, [])
        self.passed_over.pop(update, None)
        self.mixed.pop(update, None)
        for number in numbers:
            self.record_lost_group(number, "quarantined")
        self.begun.pop(update, None)
        self._note({"event": "quarantined", "update": update})
        self.flush_to_disk()
        return numbers

    def record_fault(self, kind: str, text: str, *, episode: str = "") -> None:
        """Record an unexpected failure.

        Args:
            kind: Kind of failure, under which it is counted in `faults`.
            text: Cause of the failure.
            episode: Id of the failed episode; empty if the failure is not of an episode.
        """
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if episode:
            self.causes.append(text)
        where = {"episode": episode} if episode else {}
        self._note({"event": "fault", "kind": kind, **where, "said": text, "time": round(time.time(), 3)})

    def flush_to_disk(self) -> None:
        """Flush all written records to disk (`fsync`), to survive a power cut. Safe to call from another thread."""
        touched, self._touched = self._touched, set()
        with convert_save_errors(self.journal_path):
            for path in touched:
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            os.fsync(self._journal.fileno())

    def close(self) -> None:
        """Flush and close the journal files."""
        with contextlib.suppress(ValueError):
            self.flush_to_disk()
        self._journal.close()
        self._turns_file.close()

    # ------------------------------------------------------------ turns of running episodes

    def add(self, episode: str, turn: Turn) -> None:
        """Append a finished turn of a running episode; see `EpisodeRecord.add`."""
        line = orjson.dumps({"episode": episode, "turn": encode_turn(turn)}) + b"\n"
        self._turns.setdefault(episode, []).append(line)
        self._turns_bytes += len(line)
        if self._turns_bytes > _TURNS_KEPT:
            self._turns_file.close()
            self._turns_file = self._rewritten_turns()
        else:
            self._append(self._turns_file, self.turns_path, line)

    def drop(self, episode: str) -> None:
        """Drop the recorded turns of an episode that will not resume; see `EpisodeRecord.drop`."""
        self._over([episode])

    def _over(self, episodes: Sequence[str]) -> None:
        """Drop the turns of finished episodes, which are in their trajectories."""
        recorded = [episode for episode in episodes if self._turns.pop(episode, None)]
        if recorded:
            self._append(self._turns_file, self.turns_path, orjson.dumps({"over": recorded}) + b"\n")

    # ------------------------------------------------------------ files

    def _note(self, event: dict[str, Any]) -> None:
        try:
            line = orjson.dumps(event)
        except TypeError:
            line = orjson.dumps(to_writable(event))
        self._append(self._journal, self.journal_path, line + b"\n")

    def _append(self, file: FileIO, path: Path, line: bytes) -> None:
        with convert_save_errors(path):
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rewritten_turns(self) -> FileIO:
        """Rewrite the file of turns with only the turns of unfinished episodes, and open the file to append."""
        aside = self.turns_path.with_name(".turns.jsonl.partial")
        with convert_save_errors(self.turns_path, aside):
            aside.write_bytes(b"".join(line for lines in self._turns.values() for line in lines))
            os.replace(aside, self.turns_path)
            self._turns_bytes = 0
            return open(self.turns_path, "ab", buffering=0)

    def _forget(self, path: Path, content: bytes, good: int, line: int, torn: bool) -> None:
        if not torn:
            aside = path.with_name(f"{path.name}.damaged")
            aside.write_bytes(content[good:])
            self.log(f"{path}:{line}: the line is damaged; it and later records are ignored and moved to {aside}")
        with convert_save_errors(path), open(path, "r+b") as file:
            file.truncate(good)
