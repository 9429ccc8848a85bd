"""What would an episode read behind another opening? The same actions, token for token, in contexts rendered anew.

    recorded:  opening | action | answer | action …      reread:  another opening | action | answer | action …

Hindsight needs it (an instruction that says what was done), and a teacher who reads more than his student.

Easy to get wrong: contexts are rendered, not recorded, so they are rendered as recorded first. Where that does not give
the tokens that were read (other tools, a rewritten history, something a view showed), nothing is reread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from whetstone.chat import Chat, Message, ToolSpec
from whetstone.errors import CreditError
from whetstone.rollout.context_transforms.note import noted
from whetstone.trajectory import Author, Task, Tokens, Trajectory, Turn


def reread(trajectory: Trajectory, opening: Sequence[Message], chat: Chat, tools: Sequence[ToolSpec]) -> Trajectory:
    """The episode behind another opening. Its actions are those that were recorded, with their log-probs, which are
    those under the contexts they were drawn in.

    Args:
        tools: On offer in it.

    Raises:
        ValueError: What it read cannot be rendered again; the message says which turn.
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
                f"{trajectory.id}: what turn {number + 1} read is not what its messages render to, so it cannot be "
                "read behind another opening"
            )
        author = next(iter(turn.context.authors), Author.ENVIRONMENT)
        turns.append(replace(turn, context=Tokens.written(now.new, author), opens_segment=now.opens_segment))
        if number + 1 < len(trajectory.turns):
            was = chat.extend(was, turn.action.ids, turn.observation)
            now = chat.extend(now, turn.action.ids, turn.observation)
    return replace(trajectory, opening=tuple(opening), turns=tuple(turns), closing=None)


Hinted = Callable[[Task, Trajectory], str | None]
"""(a task, an episode of it) → what a teacher reads beside it; None: nothing"""


@dataclass(frozen=True, slots=True)
class WithHint:
    """What a teacher reads who knows more: the episode with a hint in front of its task, and nothing else different."""

    hint: str | Hinted
    """A private column of the task, or a function."""
    chat: Chat
    tools: tuple[ToolSpec, ...]
    """On offer in every episode."""

    def __call__(self, trajectory: Trajectory, task: Task) -> Trajectory:
        """The episode behind the hinted opening.

        Raises:
            CreditError: The task has no such column, or the episode cannot be read again.
        """
        text = self.told(task, trajectory)
        if not text:
            return trajectory
        try:
            return reread(trajectory, noted(trajectory.opening, text), self.chat, self.tools)
        except ValueError as error:
            raise CreditError(f"teacher.privileged_context: {error}") from None

    def told(self, task: Task, trajectory: Trajectory) -> str:
        """The hint; empty: none.

        Raises:
            CreditError: The task has no such column.
        """
        if not isinstance(self.hint, str):
            return self.hint(task, trajectory) or ""
        if self.hint not in task.private:
            known = ", ".join(sorted(task.private)) or "nothing"
            raise CreditError(
                f"teacher.privileged_context: task {task.id} has no private `{self.hint}`; it has {known}"
            )
        said = task.private[self.hint]
        return "" if said is None else str(said)
