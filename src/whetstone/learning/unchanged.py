"""What does a stage learn with that learns nothing? With this: the weights stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from whetstone.learning.spec import UpdateBatch, UpdateResult
from whetstone.policies import Policy
from whetstone.trajectory import Segment


class Unchanged:
    """A learner that leaves a policy as it is; see `protocol.Learner`."""

    token_budget = 0
    """Nothing is computed."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """Nothing."""
        return UpdateResult({})

    def imitate(self, segments: Sequence[Segment]) -> UpdateResult:
        """Nothing."""
        return UpdateResult({})

    def end_step(self) -> None:
        """Nothing is laid out over steps."""

    def weights(self) -> Mapping[str, Tensor]:
        """Those there were."""
        return dict(self.policy.model.named_parameters())

    def state_dict(self) -> dict[str, Any]:
        """Nothing is remembered."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was."""
