"""Where the episodes of a group begin."""

from whetstone.rollout.starts.expert_prefix import ExpertPrefix

STARTS = {"expert_prefix": ExpertPrefix}

__all__ = ["STARTS", "ExpertPrefix"]
