"""What becomes of what was said so far."""

from whetstone.rollout.rewrites.fold import Fold
from whetstone.rollout.rewrites.rollback import Rollback
from whetstone.rollout.rewrites.summary import Summary

REWRITES = {"fold": Fold, "rollback": Rollback, "summary": Summary}

__all__ = ["REWRITES", "Fold", "Rollback", "Summary"]
