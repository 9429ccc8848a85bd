"""Context of the teacher: the policy's, with an optional hint of the task, checked before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable

from whetstone.assembly.environment import list_tools
from whetstone.assembly.instantiate import lookup_component
from whetstone.chat import Chat
from whetstone.environments import Environment
from whetstone.recipe import Resolved
from whetstone.rollout.relabel_context import WithHint
from whetstone.tasks import Source


def teacher_reads(
    resolved: Resolved, source: Source, environment: Callable[[], Environment], chat: Chat
) -> WithHint | None:
    """Return the function that adds the hint to the teacher's context.

    None: the teacher has the policy's context.

    Raises:
        RecipeError: If there is no such function, or tasks have no such column.
    """
    named = resolved.recipe.teacher.privileged_context if resolved.recipe.teacher is not None else None
    if named is None:
        return None
    hint = lookup_component(resolved, "teacher.privileged_context", "function", named, {}) if ":" in named else named
    reads, task = WithHint(hint, chat, list_tools(environment)), source.task(0)
    if isinstance(hint, str) and hint not in task.private:
        known = ", ".join(sorted(task.private)) or "nothing"
        raise resolved.error("teacher.privileged_context", f"task {task.id} has no private `{hint}`; it has {known}")
    return reads
