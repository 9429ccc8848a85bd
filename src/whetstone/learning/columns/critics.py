"""Values of the critics of a batch, computed when they are first requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whetstone.algorithms.returns import is_last_step
from whetstone.learning.columns.values import get_head_kind
from whetstone.learning.logprob_queries import logprob_query, next_context
from whetstone.learning.model_trainer import ModelTrainer

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


class CriticValues:
    """Reads the predictions of critics at the action tokens of a batch; available as `Columns.critics`.

    Args:
        batch: Columns of the batch.
        learner: Trainer of a policy with a critic; None: there are no values.
        reduce: Reduces the values [N, K] of an ensemble to [K].
    """

    def __init__(self, batch: Columns, learner: ModelTrainer | None, reduce: Callable[[Tensor], Tensor]) -> None:
        self._batch, self._learner, self._reduce = batch, learner, reduce
        self._values: dict[str, Tensor] | None = None
        self._last_values: dict[str, Tensor] | None = None

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the critic's heads; those of an ensemble are `values`, `values#2`, and so on."""
        return self._learner.heads if self._learner is not None else ()

    @property
    def probabilities(self) -> bool:
        """Whether critics predict probabilities of success instead of returns."""
        critic = self._learner.policy.critic if self._learner is not None else None
        return critic is not None and critic.probabilities

    def head(self, name: str) -> Tensor:
        """Return [K] predictions of a head before each action token, with ensembles reduced."""
        return self._reduced(self.members(name))

    def members(self, name: str) -> Tensor:
        """Return [N, K] predictions of each member of an ensemble before each action token.

        Args:
            name: Name of the ensemble, such as `values`; or of one member, such as `values#2`.
        """
        if self._values is None:
            model, batch = self._batch.model, self._batch
            read = batch.order_by_turn(model.values(batch.segments(), temperature=batch.temperature))
            self._values = {head: read[:, h] if read.ndim == 2 else read for h, head in enumerate(model.heads)}
        return torch.stack([self._values[head] for head in self._members(name)])

    def find_positions(self, where: str) -> Tensor:
        """Return [K] whether a critic predicts at each action token.

        Args:
            where: Token of each turn at which it predicts: `first`, `last` or `every`.
        """
        turn = self._batch["turn"]
        if where == "every":
            return torch.ones_like(turn, dtype=torch.bool)
        if where == "last":
            return is_last_step(turn)
        first = torch.ones_like(turn, dtype=torch.bool)
        first[1:] = turn[1:] != turn[:-1]
        return first

    def last_head(self, name: str) -> Tensor:
        """Return [N] bootstrap values of a head after truncated episodes; 0 for other episodes.

        The value is the prediction after the last turn of an episode that a limit truncated.
        """
        if self._last_values is None:
            model, trajectories = self._batch.model, self._batch.trajectories
            cut = [i for i, each in enumerate(trajectories) if each.trajectory.ended.cut_short and len(each)]
            length = model.policy.context_length
            probes = [logprob_query(next_context(trajectories[i]).sequence[: length - 1], (0,)) for i in cut]
            read = model.values(probes, temperature=self._batch.temperature)
            self._last_values = {head: torch.zeros(len(trajectories), dtype=torch.float64) for head in model.heads}
            for i, values in zip(cut, read, strict=True):
                for h, head in enumerate(model.heads):
                    self._last_values[head][i] = values[0, h].cpu().double()
        return self._reduced(torch.stack([self._last_values[head] for head in self._members(name)]))

    def _reduced(self, members: Tensor) -> Tensor:
        return members[0] if len(members) == 1 else self._reduce(members)

    def _members(self, name: str) -> list[str]:
        return [head for head in self._batch.model.heads if name in (head, get_head_kind(head))]
