"""Relabels episodes with another prompt: the same actions, token for token, in newly rendered contexts.

    recorded:  prompt | action | observation | action …    relabeled:  other prompt | action | observation | action …

Used for hindsight relabeling (an instruction that matches the outcome), and for a teacher with privileged context.

Note:
    Contexts are rendered, not recorded, so they are first rendered as recorded. If that does not give the recorded
    tokens (other tools, a rewritten history, a context transform), the episode is not relabeled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from whetstone.chat import Chat, Message, ToolSpec
from whetstone.errors import CreditError
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.trajectory import Author, Task, Tokens, Trajectory, Turn


def relabel_context(
    trajectory: Trajectory, opening: Sequence[Message], chat: Chat, tools: Sequence[ToolSpec]
) -> Trajectory:
    """Replace the prompt of an episode; actions stay the same, token for token, in newly rendered contexts.

    Actions keep the log-probs of the contexts in which they were sampled.

    Args:
        trajectory: Recorded episode.
        opening: Messages of the new prompt.
        chat: Renders messages to tokens.
        tools: Tools of the episode.

    Raises:
        ValueError: If a recorded context cannot be rendered again; the message names the turn.
    """
    was, now = chat.open(trajectory.opening, tools), chat.open(opening, tools)
    turns: list[Turn] = []
    for number, turn in enumerate(trajectory.turns):
        if (
            turn.context.sequence != was.new
            or turn.opens_segment != was.opens_segment
            or turn.training_context is not None
        ):
            raise ValueError(
                f"{trajectory.id}: the messages of turn {number + 1} do not render to its recorded tokens, so the "
                "episode cannot be relabeled with another prompt"
            )
        author = next(iter(turn.context.authors), Author.ENVIRONMENT)
        turns.append(replace(turn, context=Tokens.from_ids(now.new, author), opens_segment=now.opens_segment))
        if number + 1 < len(trajectory.turns):
            was = chat.extend(was, turn.action.ids, turn.observation)
            now = chat.extend(now, turn.action.ids, turn.observation)
    return replace(trajectory, opening=tuple(opening), turns=tuple(turns), closing=None)


Hinted = Callable[[Task, Trajectory], str | None]
"""Function (task, episode) → privileged text for a teacher; None: no text."""


@dataclass(frozen=True, slots=True)
class WithHint:
    """Context of a teacher with privileged information: inserts a hint before the task of an episode.

    Built from the recipe's `teacher.privileged_context`.
    """

    hint: str | Hinted
    """Name of a private field of the task, or a function that returns the text."""
    chat: Chat
    tools: tuple[ToolSpec, ...]
    """Tools of every episode."""

    def __call__(self, trajectory: Trajectory, task: Task) -> Trajectory:
        """Return the episode with the hint in its prompt; unchanged if the hint is empty.

        Raises:
            CreditError: If the task lacks the private field, or the episode cannot be rendered again.
        """
        text = self.hint_text(task, trajectory)
        if not text:
            return trajectory
        try:
            return relabel_context(trajectory, prepend_to_task(trajectory.opening, text), self.chat, self.tools)
        except ValueError as error:
            raise CreditError(f"teacher.privileged_context: {error}") from None

    def hint_text(self, task: Task, trajectory: Trajectory) -> str:
        """Return the hint for an episode of a task; empty if there is none.

        Raises:
            CreditError: If the task lacks the private field.
        """
        if not isinstance(self.hint, str):
            return self.hint(task, trajectory) or ""
        if self.hint not in task.private:
            known = ", ".join(sorted(task.private)) or "nothing"
            raise CreditError(
                f"teacher.privileged_context: task {task.id} has no private `{self.hint}`; it has {known}"
            )
        value = task.private[self.hint]
        return "" if value is None else str(value)
