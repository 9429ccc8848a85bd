"""Interface of a learner: updates the weights of a policy on groups, in any number of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from whetstone.learning.spec import UpdateBatch, UpdateResult
    from whetstone.trajectory import Segment


@runtime_checkable
class SupportsEvaluate(Protocol):
    """Optional protocol of a learner that can compute the loss of an update without making it."""

    def evaluate_loss(self, batch: UpdateBatch) -> dict[str, float]:
        """Compute losses and divergences of groups at the current weights.

        Args:
            batch: Groups, as for `Learner.update`.

        Returns:
            Metrics under the names of `Learner.update`.
        """
        ...


@runtime_checkable
class CountsAppliedSteps(Protocol):
    """A learner that counts its optimizer steps, so that an update that failed halfway is recognized."""

    @property
    def applied_steps(self) -> int:
        """Number of optimizer steps since the learner was built; one that failed while it changed weights counts."""
        ...


@runtime_checkable
class Closes(Protocol):
    """Optional protocol of a learner with resources beyond memory, such as processes."""

    def close(self) -> None:
        """Release the resources; the learner is not used afterwards."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Trains a policy on the groups of a step.

    A stage creates its learner from the recipe key `learner`, and calls `update` or `imitate`, then `end_step`, once
    per step. Custom learners implement this protocol.
    """

    @property
    def token_budget(self) -> int:
        """Maximum number of tokens of one forward pass; reduced if memory did not suffice."""
        ...

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """Make all updates of a step of reinforcement learning.

        Args:
            batch: Groups of the step, demonstrations and options.

        Returns:
            Metrics and the mean absolute advantage per trajectory.

        Raises:
            CreditError, MismatchError, NonFiniteError: If the batch cannot be trained on. The failed update changed no
                weight.
        """
        ...

    def imitate(self, segments: Sequence[Segment]) -> UpdateResult:
        """Make one update of supervised fine-tuning (SFT).

        Args:
            segments: Segments; the loss is the mean negative log-likelihood of their action tokens.

        Raises:
            NonFiniteError: If the gradient was not finite in as many consecutive updates as the recipe allows.
        """
        ...

    def end_step(self) -> None:
        """End a training step: the learning rate schedule advances, also if the step had no update."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Return the current weights by parameter name, for an engine to load."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the next updates, except the weights, for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned, when a run resumes."""
        ...


def count_applied_steps(learner: Learner) -> int:
    """Return the optimizer steps of a learner; 0 if it does not count them."""
    return learner.applied_steps if isinstance(learner, CountsAppliedSteps) else 0
