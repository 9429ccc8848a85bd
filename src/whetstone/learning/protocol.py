"""What is a learner to whoever trains? Groups in, better weights out; how many processes it takes is its own affair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from whetstone.learning.spec import UpdateBatch, UpdateResult
    from whetstone.trajectory import Segment


@runtime_checkable
class LooksAhead(Protocol):
    """A learner that can say what an update would find, and make none."""

    def look(self, batch: UpdateBatch) -> dict[str, float]:
        """Losses and divergences of groups under the weights there are, as `update` reports them."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A learner that holds something beyond its memory, such as processes."""

    def close(self) -> None:
        """Let go of it; nothing is learned any more."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Learns from a step's groups."""

    @property
    def token_budget(self) -> int:
        """Tokens of one forward pass; smaller from the moment memory did not suffice."""
        ...

    def update(self, batch: UpdateBatch) -> UpdateResult:
        """All updates of a step of reinforcement.

        Raises:
            CreditError, MismatchError, NonFiniteError: It cannot be learned from; no weight has changed by what failed.
        """
        ...

    def imitate(self, segments: Sequence[Segment]) -> UpdateResult:
        """One update on the tokens an expert wrote.

        Raises:
            NonFiniteError: The gradient was not finite so many updates in a row as the recipe allows.
        """
        ...

    def end_step(self) -> None:
        """The step is over, whatever updates it had: schedules move on."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """The weights there are, by name, for an engine to load."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What decides the next update beside the weights."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        ...
