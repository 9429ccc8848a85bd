"""Context transform with a library of lessons in the prompt, distilled from groups with mixed outcomes.

    a group with mixed outcomes → lessons added or changed → all of a step's are merged → renumbered

Note:
    A change to a lesson that does not exist is ignored. The library is learned state, so it is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.plugins import OptionError, find_part
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.protocol import EpisodeState, StepOutcome
from whetstone.rollout.task_keys import on_policy_trajectories
from whetstone.trajectory import Group


@dataclass(frozen=True, slots=True)
class Add:
    """Edit of a lesson library: a new lesson."""

    text: str


@dataclass(frozen=True, slots=True)
class Modify:
    """Edit of a lesson library: a lesson with another text."""

    id: str
    """Id of the lesson: `G0`, `G1`, … in the library, or `C0`, `C1`, … among the additions of the step."""
    text: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Edit of a lesson library: several lessons replaced by one."""

    ids: tuple[str, ...]
    text: str


Operation = Add | Modify | Merge


def apply_edits(library: Sequence[str], proposed: Sequence[Operation], plan: Sequence[Operation] = ()) -> list[str]:
    """Apply additions, changes and merges of a step to a lesson library, and return the new library.

    Additions get the ids C0, C1, …. Then the changes are applied, then the plan. Edits of unknown lessons are ignored.
    Merged lessons are removed; the others keep their order, and the results of merges are appended.

    Args:
        library: Texts of the lessons, with the ids G0, G1, ….
        proposed: Additions and changes that the writer proposed for the groups of the step.
        plan: Changes and merges that the planner proposed for the whole step.

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


def contrast_lesson(group: Group, library: Sequence[str]) -> list[Operation]:
    """Write a lesson without a model: the calls of the first success in a group with failures.

    Returns:
        One addition; empty if the library already has the lesson.
    """
    solved = next(t for t in on_policy_trajectories(group) if t.solved)
    calls = [f"{call.name}({call.arguments})" for turn in solved.turns for call in turn.message.tool_calls]
    lesson = f"For: {group.task.prompt}. This worked: {', then '.join(calls) or 'to answer at once'}."
    return [] if lesson in library else [Add(lesson)]


class Lessons(IdentityTransform):
    """Shows numbered lessons before the task, distilled from groups with mixed outcomes (training-free GRPO).

    Source: Youtu-Agent practice 2025, arXiv:2510.08191, and its code.

    Args:
        writer: `package.module:function`, (group, library) → edits; empty: a lesson with the calls that succeeded.
        planner: `package.module:function`, (library, edits of a step) → edits that change and merge; empty: none.
        texts: Initial lessons.
        max_lessons: Maximum number of lessons; the oldest are removed first.
    """

    at_evaluation = True

    def __init__(
        self, *, writer: str = "", planner: str = "", texts: Sequence[str] = (), max_lessons: int = 32
    ) -> None:
        if len(texts) > max_lessons:
            raise OptionError("texts", f"must have at most {max_lessons} texts (max_lessons), got {len(texts)}")
        self.writer: Callable[..., Sequence[Operation]] = find_part("writer", writer, {}) if writer else contrast_lesson
        self.planner: Callable[..., Sequence[Operation]] | None = find_part("planner", planner, {}) if planner else None
        self.max_lessons = max_lessons
        self.entries = list(texts)

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Insert the numbered lessons before the task."""
        lines = [f"[{k}] {text}" for k, text in enumerate(self.entries)]
        return prepend_to_task(messages, "\n".join(["Lessons from before:", *lines]) if lines else "")

    def observe(self, outcome: StepOutcome, /) -> None:
        """Update the lessons from the groups of a step that have successes and failures."""
        proposed: list[Operation] = []
        for group in outcome.groups:
            success = [float(t.solved) for t in on_policy_trajectories(group)]
            if success and 0 < fmean(success) < 1:
                proposed += self.writer(group, self.entries)
        plan = self.planner(self.entries, proposed) if self.planner is not None and proposed else ()
        self.entries = apply_edits(self.entries, proposed, plan)[-self.max_lessons :]

    def state(self) -> dict[str, Any]:
        """Return the lessons for a checkpoint."""
        return {"library": self.entries}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the lessons of a checkpoint."""
        self.entries = list(state["library"])

    def metrics(self) -> dict[str, float]:
        """Return the metric `count`, the number of lessons."""
        return {"count": float(len(self.entries))}
