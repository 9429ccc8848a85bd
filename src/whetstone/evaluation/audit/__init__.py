"""Audit of rewards: finds episodes that get a reward without doing the task (reward hacking)."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.evaluation.audit.audit import (
        REWARD_VARIES as REWARD_VARIES,
        Audit as Audit,
        AuditedEpisode as AuditedEpisode,
    )
    from whetstone.evaluation.audit.probe_policies import PLAYERS as PLAYERS

__getattr__, __dir__ = export_lazily(__name__)
