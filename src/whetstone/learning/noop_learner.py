"""A learner that performs no updates, for stages that only sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from whetstone.learning.spec import UpdateBatch, UpdateResult
from whetstone.policies import Policy
from whetstone.trajectory import Segment


class NoOpLearner:
    """Learner that makes no updates, for stages that only sample; see `protocol.Learner`."""

    token_budget = 0
    """Token budget of 0: no forward pass is computed."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """Return no metrics; no update is made."""
        return UpdateResult({})

    def imitate(self, segments: Sequence[Segment]) -> UpdateResult:
        """Return no metrics; no update is made."""
        return UpdateResult({})

    def end_step(self) -> None:
        """Do nothing: there is no schedule to advance."""

    def weights(self) -> Mapping[str, Tensor]:
        """Return the unchanged weights of the policy by parameter name."""
        return dict(self.policy.model.named_parameters())

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state for checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: a checkpoint has no state of this learner."""
