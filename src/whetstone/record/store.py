"""How does a run write down what it samples? It only appends, so that nothing is lost and nothing counts twice.

What is in the files is in `record.py`, which reads them.

A group is kept when its trajectories are written and the journal says so; which groups an update takes is on disk
before the update begins. Weights need no entry of their own: an update is a function of the weights before it and of
its groups, so a run that was killed makes the updates on record again, from its last checkpoint, with the very same
groups, and goes on behind them.

Easy to get wrong: what a kill tore off is cut away before anything is appended, or the next line would be torn too.
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

from whetstone.atomic_write import saving
from whetstone.json_lines import writable
from whetstone.record.reader import Place, RunRecord
from whetstone.trajectory import Group, Task, Turn
from whetstone.trajectory_json import encoded_task, encoded_trajectory, encoded_turn

_TURNS_KEPT = 64 * 2**20
"""Bytes of turns after which those of finished episodes are left out."""


class RunStore(RunRecord):
    """The record of a run under way: what is there is read, what comes is appended.

    Args:
        run_dir: The run directory.
        groups_per_file: Groups whose trajectories share a file, by their numbers.
        say: Told in a line of what had to be forgotten.
    """

    def __init__(self, run_dir: Path, *, groups_per_file: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.groups_per_file, self.say = groups_per_file, say
        super().__init__(run_dir, forgotten=self._forget)
        self._touched: set[Path] = set()
        with saving(self.journal_path):
            self.journal_path.parent.mkdir(parents=True, exist_ok=True)
            (run_dir / "trajectories").mkdir(exist_ok=True)
            self._journal = open(self.journal_path, "ab", buffering=0)  # noqa: SIM115 - held as long as the store
        self._turns_file = self._rewritten_turns()

    # ------------------------------------------------------------ groups

    def admit(self, number: int, version: int, task: int | Task) -> None:
        """A group was let in, of the source's task of this index, or of one that was made."""
        self.admitted[number] = version
        self.tasks[number] = task
        said = encoded_task(task) if isinstance(task, Task) else task
        self._note({"event": "admitted", "group": number, "version": version, "task": said})

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
        place = Place(path.name, offset, len(lines), zlib.crc32(lines), group.costs)
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

    def lose(self, number: int, reason: str) -> None:
        """A group came to nothing: `failed`, `expired`, `quarantined`, `passed_over`, `too_long`,
        `recipe_changed`."""
        self.lost[number] = reason
        self._note({"event": "lost", "group": number, "reason": reason})

    # ------------------------------------------------------------ updates

    def consume(
        self,
        update: int,
        numbers: Sequence[int],
        passed_over: Sequence[int] = (),
        mixed: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Record the groups of an update, the groups that were sampled for it and did not count, and the spans of other
        sources. To survive a power cut, call `sync` before, for the trajectories, and after."""
        self.consumed[update], self.passed_over[update] = list(numbers), list(passed_over)
        event = {"event": "consumed", "update": update, "groups": list(numbers), "passed_over": list(passed_over)}
        if mixed:
            self.mixed[update] = {name: list(span) for name, span in mixed.items()}
            event["mixed"] = self.mixed[update]
        self._note(event)

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
        self.passed_over.pop(update, None)
        self.mixed.pop(update, None)
        for number in numbers:
            self.lose(number, "quarantined")
        self.begun.pop(update, None)
        self._note({"event": "quarantined", "update": update})
        self.sync()
        return numbers

    def fault(self, kind: str, said: str, *, episode: str = "") -> None:
        """Something failed that should not have, in this episode if it was in one."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if episode:
            self.causes.append(said)
        where = {"episode": episode} if episode else {}
        self._note({"event": "fault", "kind": kind, **where, "said": said, "time": round(time.time(), 3)})

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
        self._over([episode])

    def _over(self, episodes: Sequence[str]) -> None:
        """Their turns are not needed any more."""
        held = [episode for episode in episodes if self._turns.pop(episode, None)]
        if held:
            self._append(self._turns_file, self.turns_path, orjson.dumps({"over": held}) + b"\n")

    # ------------------------------------------------------------ files

    def _note(self, event: dict[str, Any]) -> None:
        try:
            line = orjson.dumps(event)
        except TypeError:
            line = orjson.dumps(writable(event))
        self._append(self._journal, self.journal_path, line + b"\n")

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

    def _forget(self, path: Path, content: bytes, good: int, line: int, torn: bool) -> None:
        if not torn:
            aside = path.with_name(f"{path.name}.damaged")
            aside.write_bytes(content[good:])
            self.say(f"{path}:{line}  is damaged; from there on the record is forgotten (kept in {aside})")
        with saving(path), open(path, "r+b") as file:
            file.truncate(good)
