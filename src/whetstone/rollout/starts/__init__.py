"""Where the episodes of a group begin."""

from whetstone.rollout.starts.expert_prefix import ExpertPrefix
from whetstone.rollout.starts.own_prefix import OwnPrefix

STARTS = {"expert_prefix": ExpertPrefix, "replay_prefix": OwnPrefix}

__all__ = ["STARTS", "ExpertPrefix", "OwnPrefix"]
