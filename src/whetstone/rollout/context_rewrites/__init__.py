"""Context rewrites: summaries, folded memory and rollback of failed calls."""

from whetstone.rollout.context_rewrites.memory_folding import Fold as Fold
from whetstone.rollout.context_rewrites.rollback import Rollback as Rollback
from whetstone.rollout.context_rewrites.summarization import Summary as Summary

REWRITES = {"fold": Fold, "rollback": Rollback, "summary": Summary}
