"""Journal of online learning: one event per line, on the disk before the event takes effect.

    {"turn": 7, "episode": "a"}                                   the turn may be trained on
    {"update": 3, "version": 4, "turns": [7, 8], "replayed": [2]} the third step, on these turns
    {"back": 4, "version": 5, "to": 2}                            the fourth step: the weights of step 2 are restored
    {"void": 5}                                                   the update of step 5 failed; the weights are unchanged
    {"evaluated": 2, "success": 0.8}
    {"decided": "a", "approved": true} · {"deleted": "a"} · {"paused": true}
    {"unlearn": "a"} · {"begin": 9}                               all steps are discarded; versions continue from 9

The weights are a function of these lines and of the turns they name. After a crash, steps after the last checkpoint are
recomputed. Unlearning recomputes all steps without an episode.

Note:
    A version is never used twice, even after unlearning. Otherwise recorded tokens would seem to be sampled by later
    weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from whetstone.atomic_write import convert_save_errors, write_text
from whetstone.json_lines import cut_incomplete_line, make_shape, read_event, read_objects

_EVENTS = {
    name: make_shape(**{name: kind}, **fields, version=NotRequired[int])
    for name, kind, fields in (
        ("turn", int, {"episode": str}),
        ("update", int, {"turns": list[int], "replayed": list[int]}),
        ("back", int, {"to": int}),
        ("void", int, {}),
        ("evaluated", int, {"success": float}),
        ("decided", str, {"approved": bool}),
        ("deleted", str, {}),
        ("paused", bool, {}),
        ("unlearn", str, {}),
        ("begin", int, {}),
    )
}


@dataclass(frozen=True, slots=True)
class Update:
    """Step of online learning that updated the weights."""

    step: int
    """Number of the step, from 1."""
    turns: tuple[int, ...]
    """Numbers of the judged turns that were trained for the first time, in their order."""
    replayed: tuple[int, ...]
    """Numbers of earlier turns that were trained again."""


@dataclass(frozen=True, slots=True)
class Return:
    """Step of online learning that restored earlier weights (rollback)."""

    step: int
    """Number of the step, from 1."""
    to: int
    """Step whose weights were restored."""


class LearningJournal:
    """Journal of a live run, which holds the state of training that its events lead to.

    Args:
        mend: Whether an incomplete last line is removed; False if another process may be writing.
    """

    def __init__(self, path: Path, *, mend: bool = True) -> None:
        self.path, self._mends = path, mend
        self.steps: dict[int, Update | Return] = {}
        """Steps by number, from 1."""
        self.void: set[int] = set()
        self.waiting: dict[int, str] = {}
        """Episode by number of a turn that may be trained on and was not yet, in order."""
        self.learned: dict[int, tuple[str, int]] = {}
        """(Episode, step of its first update) by number of a turn, in order."""
        self.decided: dict[str, bool] = {}
        """Whether an episode was approved, by episode."""
        self.success: dict[int, float] = {}
        """Success rate of the weights on held-out tasks, by step."""
        self.paused = False
        self.version = 0
        """Version of the last weights."""
        self.next_turn = 0
        """Number greater than that of every turn in the journal."""
        self.unlearning: str | None = None
        """Episode whose unlearning was interrupted."""
        self._read()

    @property
    def step(self) -> int:
        """Return the number of the last step; 0 before the first step."""
        return max(self.steps, default=0)

    @property
    def best(self) -> tuple[int, float] | None:
        """Return (step with the highest success rate, its success rate); None without evaluations.

        If several steps have the highest success, the last of them is returned.
        """
        if not self.success:
            return None
        step = max(self.success, key=lambda each: (self.success[each], each))
        return step, self.success[step]

    @property
    def now(self) -> int:
        """Return the step whose update produced the current weights.

        The result is less than `step` after a rollback or a failed update.
        """
        step = self.step
        while step and (step in self.void or isinstance(self.steps[step], Return)):
            entry = self.steps[step]
            step = entry.to if isinstance(entry, Return) else step - 1
        return step

    def path_to(self, step: int, have: set[int]) -> tuple[int, list[Update]]:
        """Plan how to recompute the weights after a step: (step to start from, updates to apply in order).

        Args:
            have: Steps with a checkpoint; 0 always has one.
        """
        updates: list[Update] = []
        while step and step not in have:
            entry = self.steps[step]
            if isinstance(entry, Return):
                step = entry.to
                continue
            if step not in self.void:
                updates.append(entry)
            step -= 1
        return step, updates[::-1]

    def add(self, row: Mapping[str, Any]) -> None:
        """Append an event and apply it; the event is on the disk when this method returns.

        Raises:
            SaveError: The event could not be written.
        """
        with convert_save_errors(self.path), open(self.path, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._apply(row)

    def restart_without(self, episode: str) -> None:
        """Discard all steps and the turns of one episode (unlearning).

        All other turns wait to be trained again in their order, and decisions about episodes are kept.

        Raises:
            SaveError: The journal could not be written.
        """
        turns = {**{number: name for number, (name, _) in self.learned.items()}, **self.waiting}
        rows: list[dict[str, Any]] = [{"begin": self.version}]
        rows += [
            {"decided": name, "approved": is_approved} for name, is_approved in self.decided.items() if name != episode
        ]
        rows += [{"turn": number, "episode": name} for number, name in turns.items() if name != episode]
        rows += [{"evaluated": 0, "success": self.success[0]}] if 0 in self.success else []
        rows += [{"paused": True}] if self.paused else []
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        following = self.next_turn
        LearningJournal.__init__(self, self.path)
        self.next_turn = following

    def _read(self) -> None:
        """Read the file and apply its events.

        Raises:
            RunDirectoryError: A line is damaged, or contradicts those before it; the message names file and line.
        """
        if not self.path.is_file():
            return
        if self._mends:
            cut_incomplete_line(self.path)
        for _ in read_objects(self.path, lambda row: self._apply(read_event(row, _EVENTS))):
            pass

    def _apply(self, row: Mapping[str, Any]) -> None:
        kind = next(iter(row))
        self.version = int(row.get("version", self.version))
        if kind == "turn":
            self.waiting[row["turn"]] = row["episode"]
            self.next_turn = max(self.next_turn, row["turn"] + 1)
        elif kind == "update":
            self._check_next(row["update"])
            self.steps[row["update"]] = Update(row["update"], tuple(row["turns"]), tuple(row["replayed"]))
            self.learned |= {number: (self.waiting.pop(number), row["update"]) for number in row["turns"]}
        elif kind == "back":
            self._check_next(row["back"])
            if not 0 <= row["to"] < row["back"]:
                raise ValueError(f"step {row['back']} cannot go back to step {row['to']}")
            self.steps[row["back"]] = Return(row["back"], row["to"])
        elif kind == "void":
            self.void.add(row["void"])
        elif kind == "evaluated":
            self.success[row["evaluated"]] = row["success"]
        elif kind == "decided":
            self.decided[row["decided"]] = row["approved"]
            if not row["approved"]:
                self._drop(row["decided"])
        elif kind == "deleted":
            self._drop(row["deleted"])
        elif kind == "paused":
            self.paused = row["paused"]
        elif kind == "unlearn":
            self.unlearning = row["unlearn"]
        elif kind == "begin":
            self.version = row["begin"]

    def _check_next(self, step: int) -> None:
        if step != len(self.steps) + 1:
            raise ValueError(f"step {step} does not follow step {len(self.steps)}")

    def _drop(self, episode: str) -> None:
        self.waiting = {number: of for number, of in self.waiting.items() if of != episode}
