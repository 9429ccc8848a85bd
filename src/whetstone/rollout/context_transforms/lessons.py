"""A library of lessons in the prompt, written from what went differently in a group. No weight need change.

    a group that was half right → a lesson added, or one changed → all of a step's are merged → numbered anew

Easy to get wrong: a change to a lesson that does not exist is no change; and the library is the model, so it is in the
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.plugins import OptionError, find_part
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.context_transforms.plain import Untouched
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.rollout.task_keys import own
from whetstone.trajectory import Group


@dataclass(frozen=True, slots=True)
class Add:
    """A new lesson."""

    text: str


@dataclass(frozen=True, slots=True)
class Modify:
    """A lesson said differently."""

    id: str
    """`G0`, `G1`, … of the library, `C0`, … of this step's additions."""
    text: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Several lessons that become one."""

    ids: tuple[str, ...]
    text: str


Operation = Add | Modify | Merge


def revised(library: Sequence[str], proposed: Sequence[Operation], plan: Sequence[Operation] = ()) -> list[str]:
    """The library after a step: additions get ids C0, C1, …; then the plan, if any, changes and merges.

    What names an unknown lesson is ignored. Lessons that were merged go; the rest keep their order, merged ones last.

    Source: Training-free GRPO 2025, arXiv:2510.08191, its code (`math/experience.py`).
    """
    entries = {f"G{k}": text for k, text in enumerate(library)}
    changes = [each for each in proposed if isinstance(each, Modify)]
    added = (each.text for each in proposed if isinstance(each, Add))
    entries |= {f"C{k}": text for k, text in enumerate(added)}
    merged = 0
    for each in [*changes, *plan]:
        if isinstance(each, Modify) and each.id in entries:
            entries[each.id] = each.text
        elif isinstance(each, Merge) and all(id in entries for id in each.ids):
            for id in each.ids:
                del entries[id]
            entries[f"M{merged}"] = each.text
            merged += 1
    return list(entries.values())


def contrast(group: Group, library: Sequence[str]) -> list[Operation]:
    """A lesson without a model that could write one: the calls of the first success, where siblings failed."""
    solved = next(t for t in own(group) if t.solved)
    calls = [f"{call.name}({call.arguments})" for turn in solved.turns for call in turn.message.tool_calls]
    lesson = f"For: {group.task.prompt}. This worked: {', then '.join(calls) or 'to answer at once'}."
    return [] if lesson in library else [Add(lesson)]


class Lessons(Untouched):
    """Numbered lessons in front of the task, from groups that were half right (training-free GRPO).

    Source: Youtu-Agent practice 2025, arXiv:2510.08191, and its code.

    Args:
        writer: `package.module:function`, (group, library) → operations; empty: the calls that worked.
        planner: `package.module:function`, (library, operations of a step) → operations that change and merge; empty:
            none.
        texts: Lessons to begin with.
        max_lessons: Maximum number of lessons; the oldest are removed first.
    """

    at_evaluation = True

    def __init__(
        self, *, writer: str = "", planner: str = "", texts: Sequence[str] = (), max_lessons: int = 32
    ) -> None:
        if len(texts) > max_lessons:
            raise OptionError("texts", f"at most {max_lessons} (max_lessons), got {len(texts)}")
        self.writer: Callable[..., Sequence[Operation]] = find_part("writer", writer, {}) if writer else contrast
        self.planner: Callable[..., Sequence[Operation]] | None = find_part("planner", planner, {}) if planner else None
        self.max_lessons = max_lessons
        self.entries = list(texts)

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """The lessons in front of it."""
        lines = [f"[{k}] {text}" for k, text in enumerate(self.entries)]
        return noted(messages, "\n".join(["Lessons from before:", *lines]) if lines else "")

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        proposed: list[Operation] = []
        for group in heard.groups:
            success = [float(t.solved) for t in own(group)]
            if success and 0 < fmean(success) < 1:
                proposed += self.writer(group, self.entries)
        plan = self.planner(self.entries, proposed) if self.planner is not None and proposed else ()
        self.entries = revised(self.entries, proposed, plan)[-self.max_lessons :]

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"library": self.entries}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.entries = list(state["library"])

    def metrics(self) -> dict[str, float]:
        """How many there are."""
        return {"count": float(len(self.entries))}
