"""Environments in exchange formats: export as OpenEnv server, verifiers taskset and Harbor folders."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.environments.exchange.exported_episode import (
        ExportedAction as ExportedAction,
        ExportedEpisode as ExportedEpisode,
        list_offered_tools as list_offered_tools,
        read_export as read_export,
        replay_export as replay_export,
    )

__getattr__, __dir__ = export_lazily(__name__)
