"""Reader of the stored episodes that `data` of a recipe names: of a run, a file of trajectories, or a log.

Note:
    A key that applies to logs only is an error if `data` names a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from whetstone.assembly.instantiate import found
from whetstone.chat import Chat
from whetstone.data import Choice, logged_groups, stored_groups
from whetstone.data.conversations import LEARNED_FROM, DataUsage
from whetstone.data.stored_episodes import is_stored
from whetstone.environments import Environment
from whetstone.environments.protocol import tools_shown
from whetstone.recipe import DataSettings, Resolved
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True)
class StoredReader:
    """What is needed to read stored episodes."""

    resolved: Resolved
    chat: Chat
    """Whose tokenizer they must be of."""
    environment: Callable[[], Environment]
    """Offers its tools to logs that say nothing of tools."""
    context_length: int
    """Tokens an episode of a log may have."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    """Number of invalid rows that were skipped, by the recipe key of their file."""
    say: Callable[[str], None] = lambda line: None
    """Receives the lines of a report on each file of a log."""
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    """Tasks of the episodes that were read, by the recipe key of their file."""

    def groups(self, settings: DataSettings, key: str) -> list[Group]:
        """Return the stored episodes that `data` names; raises what `_groups` raises."""
        groups = self._groups(settings, key)
        self.tasks[key] = list({group.task.id: group.task for group in groups}.values())
        return groups

    def _groups(self, settings: DataSettings, key: str) -> list[Group]:
        """The stored episodes `data` names.

        Args:
            key: Where it stands in the recipe.

        Raises:
            DataError: There are none, a row is wrong or has no reward, or they are of another tokenizer.
            RecipeError: A key has no effect on them.
        """
        path, choice = Path(settings.path), choice_of(settings)
        train_on = found(self.resolved, f"{key}.train_on", "turn filter", settings.train_on, LEARNED_FROM)
        if is_stored(path):
            if settings.on_bad_row != "stop":
                raise self.resolved.error(f"{key}.on_bad_row", f"has no effect: {path} is a run, which has no rows")
            if settings.reward is not None:
                raise self.resolved.error(f"{key}.reward", f"has no effect: {path} holds the rewards its run gave")
            relabel = None
            if settings.relabel is not None:
                relabel = found(self.resolved, f"{key}.relabel", "function", settings.relabel, {})
            tools = tools_shown(self.environment())
            return stored_groups(
                path, self.chat, choice, train_on=train_on, joined=settings.stitched, relabel=relabel, tools=tools
            )
        if settings.relabel is not None:
            raise self.resolved.error(f"{key}.relabel", f"has no effect: {path} is no run, whose contexts are known")
        usage = DataUsage()
        groups = logged_groups(
            path,
            self.chat,
            choice,
            train_on=train_on,
            joined=settings.stitched,
            split=settings.split,
            reward=settings.reward,
            offered=tuple(tools_shown(self.environment())),
            context_length=self.context_length,
            on_bad_row=settings.on_bad_row,
            count_skipped=partial(count_skipped, self.skipped_rows, key),
            usage=usage,
        )
        for line in usage.describe(path):
            self.say(line)
        return groups


def count_skipped(skipped_rows: dict[str, int], key: str, count: int) -> None:
    """Store the number of rows that were skipped in the file of a recipe key."""
    if count:
        skipped_rows[key] = count


def choice_of(settings: DataSettings) -> Choice:
    """Which of the stored episodes are taken."""
    return Choice(
        settings.min_reward,
        settings.top_k_per_task,
        settings.max_tokens,
        settings.well_formed_only,
        settings.deduplicate,
    )
