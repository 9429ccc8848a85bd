"""Reader of the stored episodes that `data` names: a run, trajectories or a log.

Note:
    A key that applies to logs only is an error if `data` names a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from whetstone.assembly.environment import list_tools
from whetstone.assembly.instantiate import lookup_component
from whetstone.chat import Chat
from whetstone.data import Choice, logged_groups, stored_groups
from whetstone.data.conversations import LEARNED_FROM, DataUsage
from whetstone.data.offline_episodes import is_offline
from whetstone.environments import Environment
from whetstone.recipe import DataSettings, Resolved
from whetstone.trajectory import Group, Task


@dataclass(frozen=True, slots=True)
class StoredReader:
    """Reader of stored episodes for the stages of one run.

    `RunComponents.stored_reader` creates it.
    """

    resolved: Resolved
    """Recipe of the run."""
    chat: Chat
    """Chat of the policy. Stored episodes must have the tokens of its tokenizer."""
    environment: Callable[[], Environment]
    """Function that creates the environment, whose tools are assumed for logs that store no tools."""
    context_length: int
    """Maximum number of tokens of an episode from a log."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    """Number of invalid rows that were skipped, by the recipe key of their file."""
    say: Callable[[str], None] = lambda line: None
    """Callback that receives report lines about each file of a log."""
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    """Tasks of the episodes that were read, by the recipe key of their file."""

    def groups(self, settings: DataSettings, key: str) -> list[Group]:
        """Read the stored episodes that `data` names, grouped by task.

        The tasks are stored in `tasks`.

        Args:
            settings: Value of `data`.
            key: Recipe key of `data`.

        Raises:
            DataError: If there are no episodes, a row is invalid or has no reward, or the tokens are of another
                tokenizer.
            RecipeError: If a key has no effect on this kind of file.
        """
        groups = self._groups(settings, key)
        self.tasks[key] = list({group.task.id: group.task for group in groups}.values())
        return groups

    def _groups(self, settings: DataSettings, key: str) -> list[Group]:
        """Read the stored episodes that `data` names; see `groups`."""
        for name in settings.conversation_keys:
            raise self.resolved.error(f"{key}.{name}", "has no effect: it applies to conversations of supervised.data")
        path, choice = Path(settings.path), build_episode_filter(settings)
        train_on = lookup_component(self.resolved, f"{key}.train_on", "turn filter", settings.train_on, LEARNED_FROM)
        if is_offline(path):
            if settings.on_bad_row != "stop":
                raise self.resolved.error(f"{key}.on_bad_row", f"has no effect: {path} is a run, which has no rows")
            if settings.reward is not None:
                raise self.resolved.error(f"{key}.reward", f"has no effect: {path} has the rewards of its run")
            relabel = None
            if settings.relabel is not None:
                relabel = lookup_component(self.resolved, f"{key}.relabel", "function", settings.relabel, {})
            tools = list_tools(self.environment)
            return stored_groups(
                path, self.chat, choice, train_on=train_on, joined=settings.stitched, relabel=relabel, tools=tools
            )
        if settings.relabel is not None:
            raise self.resolved.error(f"{key}.relabel", f"has no effect: {path} is not a run, whose contexts are known")
        usage = DataUsage()
        groups = logged_groups(
            path,
            self.chat,
            choice,
            train_on=train_on,
            joined=settings.stitched,
            split=settings.split,
            reward=settings.reward,
            offered=list_tools(self.environment),
            context_length=self.context_length,
            on_bad_row=settings.on_bad_row,
            count_skipped=partial(count_skipped, self.skipped_rows, key),
            usage=usage,
        )
        for line in usage.describe(path):
            self.say(line)
        return groups


def count_skipped(skipped_rows: dict[str, int], key: str, count: int) -> None:
    """Store the number of skipped rows of a data file under its recipe key, if it is not 0."""
    if count:
        skipped_rows[key] = count


def build_episode_filter(settings: DataSettings) -> Choice:
    """Build the filter of stored episodes from keys such as `min_reward`."""
    return Choice(
        settings.min_reward,
        settings.top_k_per_task,
        settings.max_tokens,
        settings.well_formed_only,
        settings.deduplicate,
    )
