"""What does a teacher read beside the policy? A hint of the task, asked for before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable

from whetstone.assembly.instantiate import found
from whetstone.chat import Chat
from whetstone.environments import Environment
from whetstone.environments.protocol import tools_shown
from whetstone.recipe import Resolved
from whetstone.rollout.rereading import WithHint
from whetstone.tasks import Source


def teacher_reads(
    resolved: Resolved, source: Source, environment: Callable[[], Environment], chat: Chat
) -> WithHint | None:
    """The teacher's reading of an episode; None: as the policy did.

    Raises:
        RecipeError: Nothing gives the hint: there is no such function, or tasks have no such column.
    """
    named = resolved.recipe.teacher.privileged_context if resolved.recipe.teacher is not None else None
    if named is None:
        return None
    hint = found(resolved, "teacher.privileged_context", "function", named, {}) if ":" in named else named
    reads, task = WithHint(hint, chat, tuple(tools_shown(environment()))), source.task(0)
    if isinstance(hint, str) and hint not in task.private:
        known = ", ".join(sorted(task.private)) or "nothing"
        raise resolved.error("teacher.privileged_context", f"task {task.id} has no private `{hint}`; it has {known}")
    return reads
