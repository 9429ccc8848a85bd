"""In which order was what learned from? One line an event, on the disk before what it says is done.

    {"turn": 7, "episode": "a"}                                   it may be learned from
    {"update": 3, "version": 4, "turns": [7, 8], "replayed": [2]} the third step, made of these
    {"back": 4, "version": 5, "to": 2}                            the fourth: the weights of step 2 again
    {"void": 5}                                                   the update of step 5 failed; weights stayed
    {"evaluated": 2, "success": 0.8}
    {"decided": "a", "approved": true} · {"deleted": "a"} · {"paused": true}
    {"unlearn": "a"} · {"begin": 9}                               all steps are forgotten; versions go on from 9

Weights are a function of these lines and of the turns they name. So a kill costs nothing: steps the last checkpoint
does not have are made again; and to unlearn is to make them again without.

Easy to get wrong: versions are never given twice, however often learning begins anew, or tokens on record would seem to
be drawn by weights that came later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from whetstone.atomic_write import saving, write_text
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
    """A step that learned."""

    step: int
    turns: tuple[int, ...]
    """Numbers of judged turns, the new ones first in their order."""
    replayed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Return:
    """A step that went back."""

    step: int
    to: int
    """The step whose weights are there again."""


class LearningJournal:
    """The journal of a run, and what its lines come to.

    Args:
        mend: Whether what a kill left of a line is taken off; False where somebody may be writing to it.
    """

    def __init__(self, path: Path, *, mend: bool = True) -> None:
        self.path, self._mends = path, mend
        self.steps: dict[int, Update | Return] = {}
        """By number, from 1."""
        self.void: set[int] = set()
        self.waiting: dict[int, str] = {}
        """By number of a turn that may be learned from and was not, its episode; in order."""
        self.learned: dict[int, tuple[str, int]] = {}
        """By number of a turn, (its episode, the step it was first learned from in); in order."""
        self.decided: dict[str, bool] = {}
        """By episode, whether it was approved."""
        self.success: dict[int, float] = {}
        """By step, that of its weights on held-out tasks."""
        self.paused = False
        self.version = 0
        """Of the last weights."""
        self.next_turn = 0
        """Above every number of a turn in it."""
        self.unlearning: str | None = None
        """An episode that is to be unlearned, where a kill came between."""
        self._read()

    @property
    def step(self) -> int:
        """The last; 0 before the first."""
        return max(self.steps, default=0)

    @property
    def best(self) -> tuple[int, float] | None:
        """(the step with the highest success, of several the last; its success); None: nobody looked."""
        if not self.success:
            return None
        step = max(self.success, key=lambda each: (self.success[each], each))
        return step, self.success[step]

    @property
    def now(self) -> int:
        """The step whose weights those of the last step are: itself, unless it went back or was void."""
        step = self.step
        while step and (step in self.void or isinstance(self.steps[step], Return)):
            made = self.steps[step]
            step = made.to if isinstance(made, Return) else step - 1
        return step

    def path_to(self, step: int, have: set[int]) -> tuple[int, list[Update]]:
        """How to come to the weights behind a step: (the step to begin with, the updates to make behind it).

        Args:
            have: Steps whose weights there are; 0 always is.
        """
        updates: list[Update] = []
        while step and step not in have:
            made = self.steps[step]
            if isinstance(made, Return):
                step = made.to
                continue
            if step not in self.void:
                updates.append(made)
            step -= 1
        return step, updates[::-1]

    def add(self, row: Mapping[str, Any]) -> None:
        """One more line, on the disk when this returns.

        Raises:
            SaveError: It could not be written.
        """
        with saving(self.path), open(self.path, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._see(row)

    def without(self, episode: str) -> None:
        """Begin anew, as if an episode had never been; the order of all other turns and what was decided stay.

        Raises:
            SaveError: It could not be written.
        """
        turns = {**{number: of for number, (of, _) in self.learned.items()}, **self.waiting}
        rows: list[dict[str, Any]] = [{"begin": self.version}]
        rows += [{"decided": of, "approved": said} for of, said in self.decided.items() if of != episode]
        rows += [{"turn": number, "episode": of} for number, of in turns.items() if of != episode]
        rows += [{"evaluated": 0, "success": self.success[0]}] if 0 in self.success else []
        rows += [{"paused": True}] if self.paused else []
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        following = self.next_turn
        LearningJournal.__init__(self, self.path)
        self.next_turn = following

    def _read(self) -> None:
        """Read what is there.

        Raises:
            RunDirectoryError: A line is damaged, or contradicts those before it; the message names file and line.
        """
        if not self.path.is_file():
            return
        if self._mends:
            cut_incomplete_line(self.path)
        for _ in read_objects(self.path, lambda row: self._see(read_event(row, _EVENTS))):
            pass

    def _see(self, row: Mapping[str, Any]) -> None:
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
